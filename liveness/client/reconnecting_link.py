"""The client's link to the sidecar, which reconnects whenever it ends.

One task connects, reads frames of the sidecar, and connects again when the link has ended.
While a link lasts, a second task writes the frames of the `Client`: activity is collected
for up to `flush`, and everything else is written soon after it was reported.
"""

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from threading import Lock
from typing import Final

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint

from liveness.client.link_state import (
    LinkState,
    no_link_line,
    refused_line,
    replaced_line,
)
from liveness.client.protocol import EMPTY_KEEPALIVE, FINAL_CODES, Client
from liveness.core.wire.framing import PIECE_BYTES, Reader
from liveness.errors import Refused, Replaced, WireError
from liveness.host_clock import read_host

# Logins, logouts and acks are collected for this long.
GATHER_S: Final = 0.02
# Activity may be one flush old when it is written. A tenth of that is reserved for delays
# of the event loop.
FLUSH_SHARE: Final = 0.9
LEAST_FLUSH_S: Final = 0.01
# The pause after a link has ended, and between two tries to connect. It is random, so
# that not all gateways reach a restarted sidecar at once, and always below a second.
RECONNECT_S: Final = (0.0, 0.5)
RETRY_S: Final = (0.25, 0.75)
# After a refusal for load or a bug of ours, the pause is up to 1 s, 2 s, 4 s and so on. It
# starts over once a link has lasted as long as the longest pause.
MAX_BACKOFF_S: Final = 10.0
# The same after a refusal that only an operator can end, and never below half of it. A
# gateway is watched at most this long after the operator has acted.
MAX_REFUSED_BACKOFF_S: Final = 30.0
# A link without a welcome is logged after this long, but kept: a hanging sidecar would read
# the hellos later, and could take the older link for the newer one.
WELCOME_S: Final = 5.0
# A frame from the sidecar has 1,000 records, or a row for each requested uid. It may hold
# four times MAX_BATCH values: 99 for each record, counting keys.
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
MAX_BATCH: Final = 25_000

logger: Final = logging.getLogger("liveness.client")


class ReconnectingLink:
    """A link to the sidecar that reconnects whenever it ends.

    Attributes:
        client: The protocol: makes frames to send, and handles received ones.
        lock: Hold it to use the client, except for reports of connections, which only one
            thread makes; see `SyncSidecar`.
        clock: The event loop's clock, in seconds.
        call_soon: Has the event loop call a function; from any thread.
        changed: Set, and replaced, whenever frames were read, the state has changed or
            `close` was called.
        state: Whether there is a link, and if not, why.
        refusals: How many links the sidecar has refused or ended with an error.
        replacements: How often another process has taken the name.
        error: With *strict*: why the link has ended for good; None if it has not.
        is_closed: Whether `close` was called.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        clock: Callable[[], float],
        call_soon: Callable[[Callable[[], object]], None],
        strict: bool = False,
        on_state: Callable[[LinkState], object] | None = None,
    ) -> None:
        self.client = client
        self.lock = Lock()
        self.clock = clock
        self.call_soon = call_soon
        self.changed = anyio.Event()
        self.state = LinkState.CONNECTING
        self.refusals = 0
        self.replacements = 0
        self.error: Refused | None = None
        self.is_closed = False
        self._path = path
        self._scope = anyio.CancelScope(shield=True)
        self._is_write_requested = False  # requested, and not begun
        self._write_event = anyio.Event()
        self._logged = ""
        self._is_strict = strict
        self._on_state = on_state
        self._replaced: Replaced | None = None  # the latest
        self._resumed = anyio.Event()
        self._failures = 0  # refusals and faults in a row, for the next pause
        self._linked_at = inf  # by the clock; infinity without a link

    def write_soon(self) -> None:
        """Wake the writing task, from any thread."""
        if not self._is_write_requested:
            self._is_write_requested = True
            self.call_soon(self._set_write_event)

    def _set_write_event(self) -> None:
        self._write_event.set()  # looked up now, as it may have been replaced

    def notify_waiters(self) -> None:
        """Wake all tasks that wait for `changed`."""
        self.changed.set()
        self.changed = anyio.Event()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until *condition* is true; it is checked after each change.

        Raises:
            anyio.ClosedResourceError: The link was closed.
        """
        await checkpoint()
        while not condition():
            if self.is_closed:
                raise anyio.ClosedResourceError
            await self.changed.wait()

    async def flush(self) -> None:
        """Wait until everything reported is on the sidecar's disk; see `Sidecar.flush`."""
        with self.lock:
            number = self.client.request_ping()
        self.write_soon()
        await self.wait_until(lambda: self.client.has_pong(number))

    def close(self) -> None:
        """End the link, and `run`."""
        self.is_closed = True
        self.notify_waiters()
        self._scope.cancel()

    def _set_state(self, state: LinkState) -> None:
        if state is self.state:
            return
        self.state = state
        if self._on_state is not None:
            try:
                self._on_state(state)
            except Exception:
                logger.exception("%s: on_state failed at %s", self.client.name, state)
        self.notify_waiters()

    async def resume(self) -> None:
        """If another process has the name, take it over again; return once linked.

        Raises:
            Replaced: Yet another process was faster.
            anyio.ClosedResourceError: The link was closed.
        """
        await checkpoint()
        if self.state is not LinkState.REPLACED:
            return
        links, replacements = self.client.links, self.replacements
        self._resumed.set()
        await self.wait_until(
            lambda: self.client.links > links or self.replacements > replacements
        )
        if self.client.links == links and self._replaced is not None:
            raise self._replaced

    @property
    def is_urgent(self) -> bool:
        """Whether something waits to be written at once."""
        with self.lock:
            return self.client.is_urgent

    async def run(self, received: Callable[[], None]) -> None:
        """Keep linking until `close`; log once why a link ended.

        Args:
            received: Called whenever frames were read.
        Raises:
            Refused: With *strict*: the sidecar has refused this gateway, or given its name
                to another process.
        """
        with self._scope:
            while True:
                pause_s = RECONNECT_S
                try:
                    reason: Exception | None = await self._link(received)
                except (OSError, anyio.BrokenResourceError) as error:
                    reason, pause_s = error, RETRY_S
                except Exception as error:
                    if self._is_strict:
                        raise
                    # A bug of this library must not end the service that it watches.
                    logger.exception("%s: a fault of this library", self.client.name)
                    reason = error
                if isinstance(reason, Replaced):
                    await self._wait_for_resume(reason)
                else:
                    await self._pause(reason, pause_s)

    async def _wait_for_resume(self, reason: Replaced) -> None:
        """Stay without a link, since another process has the name, until `resume`."""
        self._end_if_strict(reason)
        self.replacements += 1
        self._replaced, self._resumed = reason, anyio.Event()
        with self.lock:
            self.client.shut_out()
            self.client.link_lost()
        self._log(replaced_line(self.client.name, reason), logging.ERROR)
        self._set_state(LinkState.REPLACED)
        await self._resumed.wait()
        self._failures = 0
        self._set_state(self._state_without_link)

    async def _pause(
        self, reason: Exception | None, pause_s: tuple[float, float]
    ) -> None:
        """Note why a link has ended, and wait before the next.

        *pause_s* has the shortest and longest pause, in seconds, if it was no refusal.
        """
        is_refusal = isinstance(reason, Refused)
        final = reason if isinstance(reason, Refused) else None
        if final is not None and final.code not in FINAL_CODES:
            final = None
        if final is not None:
            self._end_if_strict(final)
        self.refusals += is_refusal
        with self.lock:
            # After a refusal of its hello the gateway may have been without a link for
            # long; a link that was welcomed has ended just now.
            if is_refusal and (final is not None or not self.client.is_linked):
                self.client.shut_out()
            self.client.link_lost()
        has_lasted = self.clock() - self._linked_at >= MAX_BACKOFF_S
        self._linked_at = inf
        if has_lasted:
            self._failures = 0
        if reason is None or isinstance(reason, OSError | anyio.BrokenResourceError):
            self._failures = 0
        else:
            longest = MAX_BACKOFF_S if final is None else MAX_REFUSED_BACKOFF_S
            longest = min(2.0 ** min(self._failures, 10), longest)
            pause_s = (0.0 if final is None else longest / 2, longest)
            self._failures += 1
        if final is not None:
            self._log(refused_line(self._path, final), logging.ERROR)
            self._set_state(LinkState.REFUSED)
        else:
            self._log(no_link_line(self._path, reason))
            self._set_state(self._state_without_link)
        await anyio.sleep(random.uniform(*pause_s))

    @property
    def _state_without_link(self) -> LinkState:
        return LinkState.AWAY if self.client.links else LinkState.CONNECTING

    def _end_if_strict(self, reason: Refused) -> None:
        if self._is_strict:
            with self.lock:
                self.client.link_lost()
            self.error = reason
            raise reason

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
                    self._linked_at = self.clock()
                    self._set_state(LinkState.LINKED)
                    tasks.start_soon(self._write, stream)
                self.notify_waiters()
                received()
                if self.is_urgent:  # a ping may have waited for this pong
                    self.write_soon()
        except (Refused, WireError, anyio.BrokenResourceError) as error:
            return error
        return None

    async def _write(self, stream: anyio.abc.ByteSendStream) -> None:
        """Write waiting frames while the link lasts; `_read` handles its end."""
        assert self.client.welcome is not None
        flush_s = max(self.client.welcome.flush * FLUSH_SHARE, LEAST_FLUSH_S)
        idle_s = self.client.ping_s / 3
        due_at = self.clock()
        # Compared with the same sum as it is waited for: rounding of a difference could
        # keep it from being reached, on a clock that stands still while the loop is busy.
        idle_at = due_at + idle_s
        with suppress(anyio.BrokenResourceError):
            while True:
                is_due = self.clock() >= due_at
                if is_due:
                    due_at = self.clock() + flush_s
                if await self._write_frames(stream, is_due=is_due):
                    idle_at = self.clock() + idle_s
                elif self.clock() >= idle_at:
                    await stream.send(EMPTY_KEEPALIVE)
                    idle_at = self.clock() + idle_s
                await self._wait_for_request(min(due_at, idle_at))

    async def _write_frames(
        self, stream: anyio.abc.ByteSendStream, *, is_due: bool
    ) -> bool:
        """Write waiting frames, in pieces; return whether there were any."""
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
