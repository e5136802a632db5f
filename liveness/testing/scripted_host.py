"""The host of a scripted sidecar: sockets, a clock that the script moves, a disk.

It runs the sidecar's own server from a single task, without threads. Its time does not run
between two calls of `pass_time`.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from operator import itemgetter
from selectors import EVENT_READ
from socket import AF_UNIX
from socket import socket as Socket
from types import SimpleNamespace
from typing import Any, Final

import anyio

from liveness import __version__
from liveness.config.assembly import make_attended_clock, make_server
from liveness.config.compiled import Reader, RecordBatch, SessionRestorer
from liveness.config.settings import Config
from liveness.core.access import Access, Allowed, Peer
from liveness.core.changes import Decisions
from liveness.core.cursors import Cursors
from liveness.core.limits import Limits
from liveness.core.links.conversation import Conversation
from liveness.core.records import (
    EVENTS,
    GATEWAY,
    LOGIN,
    LOGOUT,
    HostReading,
    Instant,
    TimerRecord,
    Uid,
)
from liveness.core.wheel.restart import no_clocks
from liveness.core.wheel.timing_wheel import BUCKET_S
from liveness.core.wire.link_requests import (
    ActivityBatch,
    After,
    Hello,
    Login,
    Logout,
    Request,
)
from liveness.core.wire.uids import is_uid
from liveness.errors import Code
from liveness.host_clock import read_host
from liveness.testing.scripted_disk import ScriptedDisk
from liveness.testing.scripted_shell import ScriptedShell, ScriptedSocket

BACKLOG: Final = 512
# What the script does not bound. The core works in bounded steps; here one does all.
UNLIMITED: Final = 2**31
# The wheels are this far ahead, so that users and timers fire at their exact
# deadline, not at the end of its bucket. Two buckets contain at least one whole one.
AHEAD_S: Final = 2 * BUCKET_S
# What is due fires this much later, so that rounding does not make it too early.
ROUNDING_S: Final = 1e-6
# Between moves of the clock, the time of logins runs at this share of real time, so that
# the older of two connections is still the older.
IDLE_RATE: Final = 1e-6
# The clocks begin at fixed times, so that a test gets the same records every time.
START_MONO_S: Final = 1_000.0
START_WALL_MS: Final = 1_795_168_800_000
ANYONE: Final = Allowed(anyone=True)
REFUSED: Final = "the script of this test refuses it"


class ScriptedConversation(Conversation):
    """A link's state machine that shows its requests to the script."""

    def __init__(self, limits: Limits, host: "ScriptedHost") -> None:
        super().__init__(limits, Reader)
        self._host = host

    def receive(self, data: bytes, now: float) -> Iterator[Request]:
        """Yield the requests, with ages and beginnings in scripted time."""
        for request in super().receive(data, now):
            if isinstance(request, Hello) and request.role == GATEWAY:
                if codes := self._host.refuse_next[request.name]:
                    yield self.close(codes.popleft(), REFUSED)
                    return
            elif isinstance(request, ActivityBatch | Login | Logout):
                assert self.hello is not None
                self._host.note_events(self.hello.name, request)
                if isinstance(request, Login):
                    request = self._host.in_scripted_time(request)
            elif isinstance(request, After):
                # Otherwise rounding up to whole milliseconds would add one.
                request = request._replace(seconds=request.seconds - ROUNDING_S)
            yield request


class ScriptedHost:
    """Runs the server; `ScriptedSidecar` is its interface for tests."""

    def __init__(
        self, config: Config, on_event: Callable[[str, Uid, int | None, str], None]
    ) -> None:
        self.config = config
        # By gateway, at its next hellos.
        self.refuse_next = defaultdict[str, deque[Code]](deque)
        self.disk = ScriptedDisk()
        self.us = 0  # microseconds that have passed: no sum of these is rounded
        # Pairs of a time by the event loop's clock and the scripted time of that moment.
        self._points = [(anyio.current_time(), START_MONO_S)]
        self._reading: HostReading | None = None
        self.shell = ScriptedShell(self.host_time, now=self.at)
        self.is_accepting = True
        self.changed = anyio.Event()  # a new one after each change
        self.listener: Socket | None = None
        self._path, self._on_event = config.socket.path, on_event
        self._number = 0

    # --- the clock ------------------------------------------------------------

    def at(self, later_s: float = 0.0) -> Instant:
        now = self.attended.now + later_s
        mono = self.mono + later_s
        return Instant(now, mono, START_WALL_MS + self.us // 1_000, state_s=mono)

    @property
    def mono(self) -> float:
        return START_MONO_S + self.us / 1e6

    def host_time(self) -> HostReading | None:
        """The host's clocks, with the offset of a clock that `in_scripted_time` gives."""
        reading = read_host(anyio.current_time)
        self._reading = self._reading or reading
        return None if reading is None else reading._replace(offset=0.0)

    def _scripted_time(self, loop_s: float) -> float:
        """Turn a time of the event loop's clock into one of the scripted clock."""
        place = bisect_right(self._points, loop_s, key=itemgetter(0))
        point_loop_s, point_s = self._points[max(place - 1, 0)]
        return point_s + (loop_s - point_loop_s) * IDLE_RATE

    def in_scripted_time(self, login: Login) -> Login:
        """A login with its age and its beginnings by the scripted clock.

        So the newer of two connections stays the newer, however much time passes by each
        clock.
        """
        now, began = anyio.current_time(), login.began
        if began is not None and self._reading is not None:
            theirs = [None if at is None else at - self._reading.offset for at in began]
            began = [
                # A time in the future stays as far in the future.
                None if at is None
                else self._scripted_time(min(at, now)) + max(at - now, 0.0)
                for at in theirs
            ]  # fmt: skip
        age = self.mono - self._scripted_time(now - login.age)
        return login._replace(age=age, began=began)

    def pass_time(self, seconds: float) -> None:
        """Fire everything that comes due within *seconds*, each at its moment."""
        until = self.us + round(seconds * 1e6)
        if self.listener is None or not self.shell.is_reading:
            self.us = until  # this time counts for no user's silence
            self.attended.begin(mono=self.mono, cpu=0.0)
            self.parts.scheduler.turned(self.at(), is_absent=True)
        else:
            while (us := self.us + round(self._next_in() * 1e6)) < until:
                self._move_to(us)
            self._move_to(until)
        self._points.append((anyio.current_time(), self.mono))

    def _move_to(self, us: int) -> None:
        self.us = us
        with self.shell as server:
            server.advance(self.at(), cpu=0.0, asked=math.inf)
            self.parts.presence.wheel.advance(self.attended.now + AHEAD_S, UNLIMITED)
            at = self.at(ROUNDING_S)
            for link in self.parts.registry.named.values():
                if link.name not in self.shell.unread_gateways:
                    server.read_empty(link, at.now)
                if link.gateway is not None:
                    link.gateway.heard_at = at.now  # as if it kept its promised ping
            while server.fire(at, limit=UNLIMITED):
                pass
        self.fire_timers()

    def fire_timers(self) -> None:
        """Fire due timers, and end attempts without an answer, until none is left."""
        scheduler, at = self.parts.scheduler, self.at(ROUNDING_S)
        while True:
            with self.shell as server:
                server.commit()
            scheduler.advance(at, ahead_s=AHEAD_S)
            while window := scheduler.window():
                scheduler.fill(window, self.disk.coming(window))
            with self.shell as server:
                numbers = server.take_timers(UNLIMITED)
                server.fire_timers(self.disk.due(numbers), at)
            if numbers:  # first send the records: an attempt is not over before that
                self.shell.write_all()
            elif scheduler.next_due() > at.state_s:
                return

    def _next_in(self) -> float:
        """Seconds until a user or a timer next needs attention."""
        presence, scheduler = self.parts.presence, self.parts.scheduler
        user_in = math.inf
        if len(presence):
            # Due users wait for their gateway, or for the end of a bucket.
            due_in = presence.wheel.next_due() - self.at().now
            user_in = BUCKET_S if self.parts.firing.due_gateways() else due_in
        at, moments = self.at(ROUNDING_S), self.disk.moments()
        ahead = [
            (moment - at.state_ms) / 1_000 for moment in moments if moment > at.state_ms
        ]
        timer_in = min(ahead, default=math.inf)
        if scheduler.loaded and len(ahead) < len(moments):
            ring = scheduler.next_due() - at.state_s
            timer_in = min(BUCKET_S if scheduler.has_due else ring, timer_in)
        return max(min(user_in, timer_in, UNLIMITED), BUCKET_S / 10)

    # --- the process ----------------------------------------------------------

    def start(self) -> None:
        """Start a server on what is on disk, and listen."""
        disk, cursors = self.disk, Cursors(self.disk.cursors)
        decided = Decisions(disk.durable_seq + 1, cursors, new_batch=RecordBatch)
        disk.waiting.clear()
        disk.written = 0
        self.attended = make_attended_clock(self.config, mono=self.mono, cpu=0.0)
        counts: Any = SimpleNamespace(  # which a script does not show
            refused=Counter(), limits_met=Counter(), notices_acked=0
        )
        server, self.parts = make_server(
            self.config,
            disk=disk,
            version=__version__,
            decided=decided,
            attended=self.attended,
            counts=counts,
            access=Access(
                gateways=ANYONE, watchers=ANYONE, everyone=ANYONE, admin=ANYONE
            ),
            at=self.at(),
            new_conversation=lambda limits: ScriptedConversation(limits, self),
        )
        self.parts.scheduler.resume(disk.next_timer, disk.states())
        self.cursors = cursors
        self.shell.start(server, self.parts, disk, cursors)
        clocks = no_clocks()
        if disk.stopped is not None:
            clocks, stopped_at = disk.stopped
            clocks = clocks._replace(away=self.mono - stopped_at)
            disk.stopped = None
        restorer = SessionRestorer(clocks, at=self.at(), next_seq=decided.next_seq)
        with self.shell as server:
            server.restore(disk.online.values(), self.at(), restorer)
        for gateway in self.parts.gateways.by_name.values():
            gateway.unlinked(self.at().now)  # its time to connect begins now
        if disk.timers:  # a gateway cannot answer them before it is back
            grace = self.attended.reconnect_grace
            self.parts.scheduler.will_be_absent(self.at(), grace)
        if self._path.is_socket():  # a crash leaves it; any other file is not ours
            self._path.unlink()
        with ExitStack() as on_error:
            listener = on_error.enter_context(Socket(AF_UNIX))
            listener.setblocking(False)
            listener.bind(str(self._path))
            listener.listen(BACKLOG)
            on_error.pop_all()
        self.listener = listener
        self.shell.selector.register(self.listener, EVENT_READ)

    def stop_listening(self) -> None:
        if self.listener is None:
            raise ValueError("it is not running; call start() first")
        self.shell.selector.unregister(self.listener)
        self.listener.close()
        self.listener = None

    def forget(self) -> None:
        """Lose what is not on disk, as the process has ended."""
        self.parts.presence.decided.take()
        self.cursors.take_moved()
        self.disk.waiting.clear()

    def save_clocks(self) -> None:
        """Note for the next start how much is left of each user's timeout."""
        at = self.at()
        clocks = self.parts.presence.wheel.clocks(at.now, at.mono)
        self.disk.stopped = clocks, at.mono

    # --- sockets --------------------------------------------------------------

    def turn(self) -> None:
        """Accept and read everything there is, then write what follows from it."""
        has_read = False
        with suppress(BlockingIOError):
            while self.listener is not None and self.is_accepting:
                sock, _ = self.listener.accept()
                sock.setblocking(False)
                self._number += 1
                peer = Peer(0, 0, frozenset())
                with self.shell as server:
                    link = server.connected(self._number, peer, self.at())
                    self.shell.opened(ScriptedSocket(sock, link))
        for socket in [*self.shell.sockets.values()]:
            if self.shell.is_read(socket.link):
                has_read |= self.shell.read(socket)
        # Waiters are woken by changes only: each makes a turn when it checks its
        # condition, so two of them could wake each other for ever.
        self.settle(notify=has_read)

    def settle(self, *, notify: bool = True) -> None:
        """Write what was decided, and to all links; wake those that wait."""
        if self.listener is not None and self.shell.is_reading:
            self.fire_timers()
        with self.shell as server:
            server.note_cursors(self.at())
            server.commit()
        self._search_skipped()
        self.shell.write_all()
        if notify:
            self.changed.set()
            self.changed = anyio.Event()

    def _search_skipped(self) -> None:
        """Fire timers again whose records their gateways skipped."""
        skipped = self.parts.skipped
        is_running = self.listener is not None and not self.disk.failure
        while is_running and skipped:
            gateway, (after, until) = next(iter(skipped.items()))
            found = [
                (record.key, record.seq)
                for record in self.disk.records[after or 0 : until]
                if isinstance(record, TimerRecord) and record.gateway == gateway
            ]
            skipped.searched(gateway, until)
            with self.shell as server:
                server.fire_again(gateway, found, self.at())

    # --- what is reported -----------------------------------------------------

    def note_events(
        self, gateway: str, request: ActivityBatch | Login | Logout
    ) -> None:
        events: Sequence[str] = [
            EVENTS[number] for number in getattr(request, "events", ())
        ]
        if not isinstance(request, ActivityBatch):
            name = LOGIN if isinstance(request, Login) else LOGOUT
            events = [name] * len(request.uids)
        for event, uid, conn in zip(events, request.uids, request.conns, strict=True):
            if is_uid(uid):
                self._on_event(event, uid, conn, gateway)
