"""The sidecar of a conformance run: scripted, with more operations than tests of one
gateway need, and a tape of what passes."""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD
from typing import Final

import trio

from liveness.config.settings import (
    Config,
    SocketSettings,
    StateSettings,
    TimerSettings,
)
from liveness.core.limits import Limits
from liveness.core.records import GATEWAY, OFFLINE, SILENCE, Record
from liveness.core.wire.framing import encode
from liveness.errors import Code
from liveness.lab.conformance.rules import BrokeOff
from liveness.lab.conformance.tape import Tape
from liveness.testing.scripted import ScriptedSidecar
from liveness.testing.scripted_shell import ScriptedSocket

FLUSH_S: Final = 0.1
TIMEOUT_S: Final = 30.0  # scripted seconds: they cost no time
# The time for something that takes a gateway milliseconds: the machine may be busy.
SOON_S: Final = 5.0
# A small window, which has room only if the gateway acknowledges.
WINDOW: Final = 20
MAX_TIMERS: Final = 1_000
PIECE_PAUSE_S: Final = 0.005
MOST_REFUSALS: Final = 1_000  # inside one `refusing`


class StagedSidecar(ScriptedSidecar):
    """A running sidecar that situations control."""

    def __init__(self, path: Path, tape: Tape) -> None:
        config = Config(
            timeout_s=TIMEOUT_S,
            flush_s=FLUSH_S,
            socket=SocketSettings(path=path),
            state=StateSettings(dir=path.parent),
            limits=Limits(window=WINDOW),
            timers=TimerSettings(max_live=MAX_TIMERS),
        )
        super().__init__(config, within=SOON_S)
        self._host.shell.tap = tape.take

    async def serve(self) -> None:
        try:
            await self._serve()
        finally:
            self._leave()
            self.path.unlink(missing_ok=True)

    @property
    def is_running(self) -> bool:
        return self._host.listener is not None

    @property
    def newest_seq(self) -> int:
        self._host.turn()
        return self._host.disk.durable_seq

    def unread_bytes(self, gateway: str) -> int:
        count = array("i", [0])
        ioctl(self._socket_of(gateway).sock, FIONREAD, count)
        return count[0]

    def record_others(self, count: int) -> int:
        """Record decisions that do not concern the gateway; return the first one's seq.

        That leaves seqs that it has not seen for records made by hand.
        """
        self._host.turn()
        decided = self._host.parts.presence.decided
        first = decided.next_seq
        for seq in range(first, first + count):
            record = Record(seq, OFFLINE, "visitor", "elsewhere", 1, None, SILENCE, 0)
            decided.record(record)
        self._host.settle()
        return first

    # --- frames of the script ---------------------------------------------------------

    def send(self, gateway: str, *frames: object) -> None:
        """Write these frames to the gateway, beside those of the server.

        The sidecar reads nothing before that, so no record can come in between.
        """
        self._socket_of(gateway).extra += b"".join(map(encode, frames))
        self._host.settle()

    def drop(self, gateway: str, last: bytes = b"") -> None:
        self._host.turn()
        held = self._socket_of(gateway)
        held.extra += last
        self._host.shell.write_all()
        self._host.shell.close(held)
        self._host.settle()

    async def send_in_pieces(self, gateway: str, size: int, *frames: object) -> None:
        held = self._socket_of(gateway)
        held.most_bytes = size
        self.send(gateway, *frames)
        while held.unsent or held.extra:
            await trio.sleep(PIECE_PAUSE_S)
            self._host.settle()
        held.most_bytes = None
        self._host.settle()

    def _socket_of(self, gateway: str) -> ScriptedSocket:
        link = self._host.parts.registry.named.get((GATEWAY, gateway))
        if link is None:
            raise BrokeOff("the gateway has no link")
        return self._host.shell.sockets[link.number]

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
    def shutting_out(self, gateway: str) -> Iterator[None]:
        """Close the gateway's link; inside this `with`, new ones are not accepted."""
        self._host.is_accepting = False
        try:
            self.drop(gateway)
            yield
        finally:
            self._host.is_accepting = True
            self._host.turn()

    @contextmanager
    def not_reading_from(self, gateway: str) -> Iterator[None]:
        """Read nothing of this gateway inside this `with`, and write to it all the same."""
        self._host.turn()
        self._host.shell.unread_gateways.add(gateway)
        self._host.settle()
        try:
            yield
        finally:
            self._host.shell.unread_gateways.discard(gateway)
            self._host.turn()
            self._host.settle()

    # --- while it is stopped ----------------------------------------------------------

    def limit(self, **limits: int) -> None:
        """Use these limits from the next `start` on; the others have their usual values."""
        config = self._host.config
        self._host.config = replace(config, limits=Limits(window=WINDOW, **limits))

    def lose_end(self, records: int) -> None:
        """Lose the newest records, and what they changed, as a broken disk may."""
        disk = self._host.disk
        del disk.records[len(disk.records) - records :]
        newest = disk.durable_seq
        for session in [number for number in disk.online if number > newest]:
            del disk.online[session]
        for key, cursor in disk.cursors.items():
            disk.cursors[key] = cursor._replace(seq=min(cursor.seq, newest))

    def forget(self, gateway: str) -> None:
        self._host.disk.cursors.pop((GATEWAY, gateway), None)
