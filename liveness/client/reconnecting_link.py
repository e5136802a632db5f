"""The client's link to the sidecar, which reconnects whenever it ends.

One task connects, reads frames of the sidecar, and connects again when the link has ended.
While a link lasts, a second task writes the frames of the `Client`: activity is collected
for up to `flush`, and everything else is written soon after it was reported.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from threading import Lock, get_ident
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from liveness.client.dialer import Dialer, SidecarLink, logger, remedy_of
from liveness.client.protocol import EMPTY_KEEPALIVE, Client
from liveness.core.wire.framing import PIECE_BYTES
from liveness.errors import LivenessError, Refused, Replaced
from liveness.host_clock import read_host

# Logins, logouts and acks are collected for this long.
GATHER_S: Final = 0.02
# Activity may be one flush old when it is written. A tenth of that is reserved for delays
# of the event loop.
FLUSH_SHARE: Final = 0.9
LEAST_FLUSH_S: Final = 0.01


def loop_call_soon() -> Callable[[Callable[[], object]], None]:
    """Return a function that has this event loop call another; for use in any thread."""
    own_thread = get_ident()
    trio = sys.modules.get("trio")
    soon: Callable[[Callable[[], object]], object]
    if trio is not None and trio.lowlevel.in_trio_run():
        soon = trio.lowlevel.current_trio_token().run_sync_soon
    else:
        soon = sys.modules["asyncio"].get_running_loop().call_soon_threadsafe

    def call_soon(function: Callable[[], object]) -> None:
        if get_ident() == own_thread:
            function()
            return
        with suppress(RuntimeError):  # the loop has ended, and the link with it
            soon(function)

    return call_soon


def loop_clock() -> Callable[[], float]:
    """The event loop's own clock. One call is cheaper than `anyio.current_time`."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        clock: Callable[[], float] = trio.lowlevel.current_clock().current_time
        return clock
    # The clock of asyncio's own loops. That of uvloop advances once in a turn of the loop:
    # another thread, or a long turn, would get a time that has passed.
    return time.monotonic


class LinkState(StrEnum):
    """Whether a gateway has its link to the sidecar, and if not, why.

    Reports are collected in every state. Only `replaced` needs an action of the gateway,
    `resume`; every other state ends by itself.
    """

    CONNECTING = "connecting"  # no link yet since the start
    LINKED = "linked"
    AWAY = "away"  # the link has ended, and reconnects
    REFUSED = "refused"  # the sidecar has refused this gateway, which tries again
    REPLACED = "replaced"  # another process has the name; only `resume` connects again


class ReconnectingLink:
    """A link to the sidecar that reconnects whenever it ends."""

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        on_state: Callable[[LinkState], object] | None = None,
    ) -> None:
        self.client = client
        # Hold it to use the client, except for reports of connections, which only one
        # thread makes; see `SyncSidecar`.
        self.lock = Lock()
        self.clock = loop_clock()
        self.call_soon = loop_call_soon()
        # Set, and replaced, when frames were read, the state has changed or at `close`.
        self.changed = anyio.Event()
        self.state = LinkState.CONNECTING
        self.refusals = 0
        self.replacements = 0
        self.is_closed = False
        self._dialer = Dialer(path, client.name, is_gateway=True)
        self._scope = anyio.CancelScope(shield=True)
        self._is_write_requested = False  # requested, and not begun
        self._write_event = anyio.Event()
        self._on_state = on_state
        self._replaced: Replaced | None = None  # the latest
        self._resumed = anyio.Event()

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
        """Wait until *condition* is true; ClosedResourceError if the link is closed before."""
        await checkpoint()
        while not condition():
            if self.is_closed:
                raise anyio.ClosedResourceError
            await self.changed.wait()

    async def flush(self) -> None:
        with self.lock:
            number = self.client.request_ping()
        self.write_soon()
        await self.wait_until(lambda: self.client.has_pong(number))

    def close(self) -> None:
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
        with self.lock:
            return self.client.is_urgent

    async def run(self, received: Callable[[], None]) -> None:
        """Keep linking until `close`; call *received* whenever frames were read."""
        with self._scope:
            while True:
                try:
                    link = await self._dialer.dial(self._hello)
                    await self._keep(link, received)
                except (OSError, LivenessError) as error:
                    await self._ended(error)
                except Exception as error:
                    # A bug of this library must not end the service that it watches.
                    logger.exception("%s: a fault of this library", self.client.name)
                    await self._ended(error)

    def _hello(self) -> bytes:
        with self.lock:
            return self.client.hello(*read_host(self.clock) or ())

    async def _keep(self, link: SidecarLink, received: Callable[[], None]) -> None:
        try:
            with self.lock:
                line = self.client.welcomed(link.welcome)
            self._dialer.say_linked()
            if line:
                self._dialer.say(line)
            self._set_state(LinkState.LINKED)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write, link)
                error = await self._read(link, received)
                tasks.cancel_scope.cancel()
            raise error
        finally:
            await link.aclose()

    async def _read(
        self, link: SidecarLink, received: Callable[[], None]
    ) -> LivenessError:
        """Read until the link ends, and return why."""
        while True:
            if not link.has_frame:
                self.notify_waiters()
                received()
                if self.is_urgent:  # a ping may have waited for this pong
                    self.write_soon()
            try:
                frame = await link.next_frame()
                with self.lock:
                    line = self.client.receive(frame)
            except LivenessError as error:
                return error
            if line:
                self._dialer.say(line)

    async def _ended(self, error: Exception) -> None:
        is_final = remedy_of(error) is not None
        is_replaced = isinstance(error, Replaced)
        self.replacements += is_replaced
        self.refusals += isinstance(error, Refused) and not is_replaced
        with self.lock:
            # After a refusal of its hello the gateway may have been without a link for
            # long; a link that was welcomed has ended just now.
            was_welcomed = self.client.is_linked
            if (
                is_final
                or is_replaced
                or (isinstance(error, Refused) and not was_welcomed)
            ):
                self.client.shut_out()
            self.client.link_lost()
        try:
            self._dialer.ended(error)
        except Replaced as replaced:
            await self._wait_for_resume(replaced)
        else:
            self._set_state(LinkState.REFUSED if is_final else self._state_without_link)

    async def _wait_for_resume(self, replaced: Replaced) -> None:
        """Stay without a link, since another process has the name, until `resume`."""
        self._replaced, self._resumed = replaced, anyio.Event()
        self._set_state(LinkState.REPLACED)
        await self._resumed.wait()
        self._dialer.failures = 0
        self._set_state(self._state_without_link)

    @property
    def _state_without_link(self) -> LinkState:
        return LinkState.AWAY if self.client.links else LinkState.CONNECTING

    async def _write(self, link: SidecarLink) -> None:
        """Write waiting frames while the link lasts; `_read` handles its end."""
        flush_s = max(link.welcome.flush * FLUSH_SHARE, LEAST_FLUSH_S)
        idle_s = self.client.ping_s / 3
        due_at = self.clock()
        # Compared with the same sum as it is waited for: rounding of a difference could
        # keep it from being reached, on a clock that stands still while the loop is busy.
        idle_at = due_at + idle_s
        while True:
            is_due = self.clock() >= due_at
            if is_due:
                due_at = self.clock() + flush_s
            if await self._write_frames(link, is_due=is_due):
                idle_at = self.clock() + idle_s
            elif self.clock() >= idle_at:
                await link.send_bytes(EMPTY_KEEPALIVE)
                idle_at = self.clock() + idle_s
            await self._wait_for_request(min(due_at, idle_at))

    async def _write_frames(self, link: SidecarLink, *, is_due: bool) -> bool:
        """Write waiting frames, in pieces; return whether there were any."""
        self._is_write_requested = False
        self._write_event = anyio.Event()
        frames = self.client.frames(self.clock(), is_due=is_due)
        has_written = False
        while piece := self._next_piece(frames):
            await link.send_bytes(piece)
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
