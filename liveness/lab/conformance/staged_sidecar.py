"""The sidecar of a conformance run: scripted, with more operations than tests of one
gateway need, and a tape of what passes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio

from liveness.core.framing import encode
from liveness.core.records import GATEWAY
from liveness.errors import Code
from liveness.lab.conformance.findings import BrokeOff
from liveness.lab.conformance.tape import Tape
from liveness.testing import ScriptedSidecar
from liveness.testing.scripted_link import ScriptedSocket

# Small, so that it has room only if the gateway acknowledges.
WINDOW: Final = 20
MAX_TIMERS: Final = 1_000
PIECE_PAUSE_S: Final = 0.005
FIRST_BYTES: Final = 64  # of a frame that never ends
MOST_REFUSALS: Final = 1_000  # inside one `refusing`


class StagedSidecar(ScriptedSidecar):
    """A running sidecar that situations control.

    Args:
        path: The socket.
        tape: Records what passes.
        timeout: Of silence, in seconds.
        flush: For how long the gateway may collect, in seconds.
        within: Seconds after which a wait fails.
    """

    def __init__(
        self,
        path: Path,
        tape: Tape,
        *,
        timeout: float,
        flush: float,
        within: float,
    ) -> None:
        super().__init__(
            path,
            timeout=timeout,
            flush=flush,
            window=WINDOW,
            within=within,
            max_timers=MAX_TIMERS,
            device_separator="",
        )
        self._host.tap = tape

    async def serve(self) -> None:
        """Serve until cancelled."""
        try:
            await self._serve()
        finally:
            self._leave()
            self.path.unlink(missing_ok=True)

    @property
    def is_running(self) -> bool:
        """Whether it listens."""
        return self._host.listener is not None

    @property
    def newest_seq(self) -> int:
        """The seq of the newest record; 0 if there is none."""
        self._host.turn()
        return self._host.disk.durable_seq

    def unread_bytes(self, gateway: str) -> int:
        """How much the sidecar has not read of this gateway's link."""
        return self._socket_of(gateway).unread_bytes

    # --- frames of the script ---------------------------------------------------------

    def send(self, gateway: str, *frames: object) -> None:
        """Write these frames to the gateway, beside those of the server.

        Nothing is read before, so that no record can come in between.
        """
        held = self._socket_of(gateway)
        held.extra += b"".join(map(encode, frames))
        self._host.settle()

    def end_with(self, gateway: str, frame: object) -> None:
        """Write a last frame to the gateway, and close its link."""
        self._end_with(gateway, encode(frame))

    def end_within(self, gateway: str, frame: object) -> None:
        """Write the first bytes of a last frame, and close its link."""
        self._end_with(gateway, encode(frame)[:FIRST_BYTES])

    def _end_with(self, gateway: str, data: bytes) -> None:
        held = self._socket_of(gateway)
        held.extra += data
        self._host.write_links()
        self._host.close(held)
        self._host.settle()

    async def send_in_pieces(self, gateway: str, size: int, *frames: object) -> None:
        """Write these frames in pieces of *size* bytes, with pauses."""
        held = self._socket_of(gateway)
        held.most_bytes = size
        self.send(gateway, *frames)
        while held.unsent or held.extra:
            await anyio.sleep(PIECE_PAUSE_S)
            self._host.settle()
        held.most_bytes = None
        self._host.settle()

    def _socket_of(self, gateway: str) -> ScriptedSocket:
        link = self._host.server.registry.named.get((GATEWAY, gateway))
        if link is None:
            raise BrokeOff("the gateway has no link")
        return self._host.sockets[link.number]

    def drop(self, gateway: str) -> None:
        """Close the link of this gateway. It may connect again.

        Raises:
            BrokeOff: It has none; as in all that needs one.
        """
        self._host.turn()
        self._host.close(self._socket_of(gateway))
        self._host.settle()

    # --- faults -----------------------------------------------------------------------

    @contextmanager
    def refusing(self, gateway: str, *codes: str) -> Iterator[None]:
        """Refuse the gateway's hellos inside this `with`, by each code in turn."""
        waiting = self._host.refuse_next[gateway]
        waiting.extend(map(Code, codes * MOST_REFUSALS))
        try:
            yield
        finally:
            waiting.clear()

    @contextmanager
    def not_accepting(self) -> Iterator[None]:
        """Accept no links inside this `with`: they connect, and wait."""
        self._host.is_accepting = False
        try:
            yield
        finally:
            self._host.is_accepting = True
            self._host.turn()

    @contextmanager
    def not_reading_from(self, gateway: str) -> Iterator[None]:
        """Read nothing of this gateway inside this `with`, and write to it all the same."""
        self._host.turn()
        self._host.unread_gateways.add(gateway)
        self._host.settle()
        try:
            yield
        finally:
            self._host.unread_gateways.discard(gateway)
            self._host.turn()
            self._host.settle()

    # --- while it is stopped ----------------------------------------------------------

    def limit(self, *, max_batch: int, max_frame: int) -> None:
        """Have other limits from the next `start` on."""
        host = self._host
        limits = replace(
            host.config.limits, max_batch=max_batch, max_frame_bytes=max_frame
        )
        host.config = replace(host.config, limits=limits)

    def lose_end(self, records: int) -> None:
        """Lose the newest records of the log."""
        self._host.disk.lose_end(records)

    def forget(self, gateway: str) -> None:
        """Lose the name of this gateway, and how far it has read."""
        self._host.disk.cursors.pop((GATEWAY, gateway), None)
