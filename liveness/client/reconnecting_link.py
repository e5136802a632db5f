"""The client's link to the sidecar, which is made again whenever it ends.

One task connects, reads what the sidecar sends, and connects again when the link has
ended. While a link lasts, a second task writes the frames of the `Client`: activity is
collected for up to `flush`, and all else is written soon after it was reported.
"""

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Lock
from typing import Final

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint

from liveness.client.protocol import EMPTY_KEEPALIVE, FINAL_CODES, Client
from liveness.core.framing import PIECE_BYTES, Reader
from liveness.errors import LivenessError, Refused, WireError
from liveness.host_clock import read_host

# Logins, logouts and acks are collected for this long.
GATHER_S: Final = 0.02
# Activity may be one flush old when it is written. A tenth of that is left for delays of
# the event loop.
FLUSH_SHARE: Final = 0.9
LEAST_FLUSH_S: Final = 0.01
# The pause after a link has ended, and between two tries to connect. It is random, so
# that not all gateways reach a restarted sidecar at once, and always below a second.
RECONNECT_S: Final = (0.0, 0.5)
RETRY_S: Final = (0.25, 0.75)
# After a refusal for load or a bug of ours, the pause is up to 1 s, 2 s, 4 s and so on.
MAX_BACKOFF_S: Final = 10.0
# A link without a welcome is logged after this long, but not given up: a sidecar that
# hangs reads the hellos later, and could take the older link for the newer one.
WELCOME_S: Final = 5.0
# A frame from the sidecar has 1,000 records, or a row for each uid that was asked for. It
# may hold four times MAX_BATCH values: 99 for each record, counting keys.
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
MAX_BATCH: Final = 25_000

logger: Final = logging.getLogger("liveness.client")


class ReconnectingLink:
    """A link to the sidecar that is made again whenever it ends.

    Attributes:
        client: The protocol: what to send, and what received frames mean.
        lock: Hold it to use the client. Reports of connections do without it, as only
            one thread makes them; see `SyncSidecar`.
        clock: The event loop's clock, in seconds.
        call_soon: Has the event loop call a function; from any thread.
        changed: Is set, and replaced, whenever something was read or `close` was called.
        error: Why the sidecar has refused this gateway for good; None if it has not.
        is_closed: Whether `close` was called.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        clock: Callable[[], float],
        call_soon: Callable[[Callable[[], object]], None],
    ) -> None:
        self.client = client
        self.lock = Lock()
        self.clock = clock
        self.call_soon = call_soon
        self.changed = anyio.Event()
        self.error: LivenessError | None = None
        self.is_closed = False
        self._path = path
        self._scope = anyio.CancelScope(shield=True)
        self._is_write_requested = False  # and not begun
        self._write_event = anyio.Event()
        self._logged = ""

    def write_soon(self) -> None:
        """Have the writing task look for something to write; from any thread."""
        if not self._is_write_requested:
            self._is_write_requested = True
            self.call_soon(self._set_write_event)

    def _set_write_event(self) -> None:
        self._write_event.set()  # looked up only now: it may have been replaced

    def notify_waiters(self) -> None:
        """Wake all tasks that wait for `changed`."""
        self.changed.set()
        self.changed = anyio.Event()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until *condition* is true; it is checked after each change.

        Raises:
            anyio.ClosedResourceError: The link was closed meanwhile.
        """
        await checkpoint()
        while not condition():
            if self.is_closed:
                raise anyio.ClosedResourceError
            await self.changed.wait()

    def close(self) -> None:
        """End the link, and `run`."""
        self.is_closed = True
        self.notify_waiters()
        self._scope.cancel()

    @property
    def is_urgent(self) -> bool:
        """Whether something waits to be written at once."""
        with self.lock:
            return self.client.is_urgent

    async def run(self, received: Callable[[], None]) -> None:
        """Keep linking until `close`; log once why a link ended.

        Args:
            received: Is called whenever frames were read.
        Raises:
            Refused: The sidecar has refused this gateway for good.
        """
        refusals = 0
        with self._scope:
            while True:
                wait_s = RECONNECT_S
                try:
                    reason: Exception | None = await self._link(received)
                except (OSError, anyio.BrokenResourceError) as error:
                    reason, wait_s = error, RETRY_S
                with self.lock:
                    self.client.link_lost()
                if isinstance(reason, Refused) and reason.code in FINAL_CODES:
                    self.error = reason
                    raise reason
                if isinstance(reason, LivenessError):
                    wait_s = (0.0, min(2.0 ** min(refusals, 10), MAX_BACKOFF_S))
                    refusals += 1
                else:
                    refusals = 0
                self._log(f"no link to the sidecar at {self._path}: {_advice(reason)}")
                await anyio.sleep(random.uniform(*wait_s))

    async def _link(self, received: Callable[[], None]) -> Exception | None:
        """Keep one link until it ends; return the reason, if there is one."""
        async with await anyio.connect_unix(self._path) as stream:
            reading = read_host(self.clock)
            with self.lock:
                hello = self.client.hello(*reading or ())
            # The sidecar may have refused and closed already: read its refusal.
            with suppress(anyio.BrokenResourceError):
                await stream.send(hello)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._log_if_unwelcome)
                reason = await self._read(stream, tasks, received)
                tasks.cancel_scope.cancel()
        return reason

    async def _log_if_unwelcome(self) -> None:
        await anyio.sleep(WELCOME_S)
        if not self.client.is_linked:
            self._log(
                f"no welcome at {self._path} for {WELCOME_S:g} s; it hangs, or is no "
                "sidecar. Still waiting"
            )

    async def _read(
        self,
        stream: anyio.abc.ByteStream,
        tasks: anyio.abc.TaskGroup,
        received: Callable[[], None],
    ) -> Exception | None:
        """Read until the link ends; start the writing task at the welcome."""
        reader = Reader(max_frame_bytes=MAX_FRAME_BYTES, max_batch=MAX_BATCH)
        try:
            async for data in stream:
                was_linked = self.client.is_linked
                for frame in reader.feed(data):
                    with self.lock:
                        line = self.client.receive(frame)
                    if line:
                        self._log(line)
                if self.client.is_linked and not was_linked:
                    self._log(f"linked to the sidecar at {self._path}", logging.INFO)
                    tasks.start_soon(self._write, stream)
                self.notify_waiters()
                received()
                if self.is_urgent:  # a ping may have waited for this pong
                    self.write_soon()
        except (Refused, WireError, anyio.BrokenResourceError) as error:
            return error
        return None

    async def _write(self, stream: anyio.abc.ByteSendStream) -> None:
        """Write what waits, while the link lasts; its end is left to `_read`."""
        assert self.client.welcome is not None
        flush_s = max(self.client.welcome.flush * FLUSH_SHARE, LEAST_FLUSH_S)
        idle_s = self.client.ping_s / 3
        due_at = wrote_at = self.clock()
        with suppress(anyio.BrokenResourceError):
            while True:
                is_due = self.clock() >= due_at
                if is_due:
                    due_at = self.clock() + flush_s
                if await self._write_frames(stream, is_due=is_due):
                    wrote_at = self.clock()
                elif self.clock() - wrote_at >= idle_s:
                    await stream.send(EMPTY_KEEPALIVE)
                    wrote_at = self.clock()
                await self._wait_for_request(min(due_at, wrote_at + idle_s))

    async def _write_frames(
        self, stream: anyio.abc.ByteSendStream, *, is_due: bool
    ) -> bool:
        """Write what there is, in pieces; return whether there was anything."""
        self._is_write_requested = False
        self._write_event = anyio.Event()
        frames = self.client.frames(self.clock(), is_due=is_due)
        has_written = False
        while piece := self._next_piece(frames):
            await stream.send(piece)
            has_written = True
        return has_written

    def _next_piece(self, frames: Iterator[bytes]) -> bytes:
        piece = bytearray()
        with self.lock:
            for frame in frames:
                piece += frame
                if len(piece) >= PIECE_BYTES:
                    break
        return bytes(piece)

    async def _wait_for_request(self, until: float) -> None:
        if self.client.reports.has_backlog:
            await checkpoint()
            return
        with anyio.move_on_after(until - self.clock()):
            if not self.is_urgent:
                await self._write_event.wait()
            await anyio.sleep(GATHER_S)

    def _log(self, line: str, level: int = logging.WARNING) -> None:
        """Log *line*, but not twice in a row: there may be many tries."""
        if line != self._logged:
            self._logged = line
            logger.log(level, "%s: %s", self.client.name, line)


def _advice(reason: Exception | None) -> str:
    """Why there is no link, and what to do about it."""
    match reason:
        case FileNotFoundError() | ConnectionRefusedError():
            return "it is not running, or runs elsewhere"
        case PermissionError():
            return "not allowed to connect; be its user, or of its group"
        case OSError() | LivenessError():
            return str(reason)
        case _:
            return "the link has ended"
