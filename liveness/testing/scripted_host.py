"""The host of a scripted sidecar: sockets, a clock that the script moves, a disk.

It runs the sidecar's own server from a single task, without threads. Between two calls of
`pass_time` its time stands still.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from socket import AF_UNIX, SHUT_WR
from socket import socket as Socket
from typing import Final, assert_never

import anyio

from liveness import __version__
from liveness.config.assembly import make_attended_clock, make_server
from liveness.config.compiled import Reader, RecordBatch, SessionRestorer
from liveness.config.settings import Config
from liveness.core.access import Access, Allowed, Peer
from liveness.core.changes import Commit, Decisions
from liveness.core.cursors import Cursors
from liveness.core.effects import (
    AskCluster,
    Close,
    Deliver,
    LogLine,
    LogRefusal,
    ReadFirst,
    SearchSkipped,
    WakeWriter,
    WriteAttempt,
)
from liveness.core.links.conversation import Conversation, ConversationLimits
from liveness.core.links.link import Link
from liveness.core.records import (
    EVENTS,
    GATEWAY,
    LOGIN,
    LOGOUT,
    Instant,
    TimerRecord,
    Uid,
)
from liveness.core.server import MayRead
from liveness.core.wheel.restart import no_clocks
from liveness.core.wheel.timing_wheel import BUCKET_S
from liveness.core.wire.framing import encode_notices
from liveness.core.wire.link_requests import (
    ActivityBatch,
    After,
    Hello,
    Login,
    Logout,
    Refusal,
    Request,
    TimerBatch,
)
from liveness.core.wire.uids import is_uid
from liveness.errors import Code
from liveness.testing.scripted_clock import ScriptedClock
from liveness.testing.scripted_disk import ScriptedDisk
from liveness.testing.scripted_link import LinkCounters, LinkTap, ScriptedSocket

RECEIVE_BYTES: Final = 16_384
BACKLOG: Final = 512
# What the script does not bound. The core works in bounded steps; here one does all.
UNLIMITED: Final = 2**31
# The wheels are this far ahead, so that users and timers fire at their exact
# deadline, not at the end of its bucket. Two buckets contain at least one whole one.
AHEAD_S: Final = 2 * BUCKET_S
# What is due fires this much later, so that rounding does not make it too early.
ROUNDING_S: Final = 1e-6
ANYONE: Final = Allowed(anyone=True)
REFUSED: Final = "the script of this test refuses it"


class ScriptedConversation(Conversation):
    """A link's state machine that shows its requests to the script."""

    def __init__(self, limits: ConversationLimits, host: "ScriptedHost") -> None:
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
                    request = self._host.clock.in_scripted_time(request)
            elif isinstance(request, TimerBatch):
                # Otherwise rounding up to whole milliseconds would add one.
                scripted = [
                    timer._replace(seconds=timer.seconds - ROUNDING_S)
                    if isinstance(timer, After)
                    else timer
                    for timer in request.requests
                ]
                request = request._replace(requests=scripted)
            yield request


class ScriptedHost:
    """Runs the server; `ScriptedSidecar` is its interface for tests.

    Args:
        config: The settings.
        on_event: Called with event, uid, conn and gateway of all that is reported.
    """

    def __init__(
        self, config: Config, on_event: Callable[[str, Uid, int | None, str], None]
    ) -> None:
        self.config = config
        # By gateway, at its next hellos.
        self.refuse_next = defaultdict[str, deque[Code]](deque)
        self.refused: list[tuple[str | None, Refusal]] = []
        self.disk = ScriptedDisk()
        self.is_reading = True
        self.is_accepting = True
        self.unread_gateways: set[str] = set()  # whose links are not read
        self.tap = LinkTap()
        self.changed = anyio.Event()  # a new one after each change
        self.listener: Socket | None = None
        self.sockets: dict[int, ScriptedSocket] = {}  # by number of the link
        self.selector = DefaultSelector()
        self._path, self._on_event = config.socket.path, on_event
        self.clock = ScriptedClock()
        self._number = 0

    # --- the clock ------------------------------------------------------------

    def at(self, later_s: float = 0.0) -> Instant:
        """This moment, or one that is a little later."""
        now = self.attended.now + later_s
        mono = self.clock.mono + later_s
        return Instant(now, mono, self.clock.wall_ms, state_s=mono)

    def pass_time(self, seconds: float) -> None:
        """Fire everything that comes due within *seconds*, each at its moment."""
        clock = self.clock
        until = clock.us + round(seconds * 1e6)
        if self.listener is None or not self.is_reading:
            clock.us = until  # time for nobody
            self.attended.begin(mono=clock.mono, cpu=0.0)
            self.server.scheduler.turned(self.at(), is_absent=True)
        else:
            while (us := clock.us + round(self._next_in() * 1e6)) < until:
                self._move_to(us)
            self._move_to(until)
        clock.note()

    def _move_to(self, us: int) -> None:
        self.clock.us = us
        server = self.server
        server.advance(self.at(), cpu=0.0, asked=math.inf)
        server.firing.advance(self.attended.now + AHEAD_S, UNLIMITED)
        at = self.at(ROUNDING_S)
        for link in server.registry.named.values():
            if link.name not in self.unread_gateways:
                server.read_empty(link, at.now)
            if link.gateway is not None:
                link.gateway.heard_at = at.now  # as if it kept its promised ping
        while server.fire(at, limit=UNLIMITED):
            pass
        self.fire_timers()

    def fire_timers(self) -> None:
        """Fire due timers, and end attempts without an answer, until none is left."""
        server, scheduler, at = self.server, self.server.scheduler, self.at(ROUNDING_S)
        while True:
            server.commit()
            self.carry_out()
            scheduler.advance(at, ahead_s=AHEAD_S)
            while window := scheduler.window():
                scheduler.fill(window, self.disk.coming(window))
            numbers = server.take_timers(UNLIMITED)
            server.fire_timers(self.disk.due(numbers), at)
            self.carry_out()
            if numbers:  # first send the records: an attempt is not over before that
                self.write_links()
            elif scheduler.next_due() > at.state_s:
                return

    def _next_in(self) -> float:
        """Seconds until a user or a timer next needs attention."""
        presence, scheduler = self.server.presence, self.server.scheduler
        user_in = math.inf
        if len(presence):
            # Due users wait for their gateway, or for the end of a bucket.
            due_in = presence.wheel.next_due() - self.at().now
            user_in = BUCKET_S if self.server.firing.due_gateways() else due_in
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
        decided, self.cursors = (
            Decisions(disk.durable_seq + 1, cursors, new_batch=RecordBatch),
            cursors,
        )
        disk.waiting.clear()
        disk.written = 0
        self.attended = make_attended_clock(self.config, mono=self.clock.mono, cpu=0.0)
        self.server = make_server(
            self.config,
            version=__version__,
            disk=disk,
            decided=decided,
            attended=self.attended,
            counts=LinkCounters(),
            access=Access(
                gateways=ANYONE, watchers=ANYONE, everyone=ANYONE, admin=ANYONE
            ),
            at=self.at(),
            next_timer=disk.next_timer,
            timer_states=disk.states(),
            new_conversation=lambda limits: ScriptedConversation(limits, self),
        )
        mono = self.at().mono
        clocks = no_clocks()
        if disk.stopped is not None:
            clocks, stopped_at = disk.stopped
            clocks = clocks._replace(away=mono - stopped_at)
            disk.stopped = None
        restorer = SessionRestorer(clocks, at=self.at(), next_seq=decided.next_seq)
        self.server.restore(disk.online.values(), self.at(), restorer)
        for gateway in self.server.gateways.by_name.values():
            gateway.unlinked(self.at().now)  # its time to connect begins now
        if disk.timers:  # a gateway cannot answer them before it is back
            grace = self.attended.reconnect_grace
            self.server.scheduler.will_be_absent(self.at(), grace)
        if self._path.is_socket():  # a crash leaves it; any other file is not ours
            self._path.unlink()
        with ExitStack() as on_error:
            listener = on_error.enter_context(Socket(AF_UNIX))
            listener.setblocking(False)
            listener.bind(str(self._path))
            listener.listen(BACKLOG)
            on_error.pop_all()
        self.listener = listener
        self.selector.register(self.listener, EVENT_READ)

    def stop_listening(self) -> None:
        """Accept no more links."""
        if self.listener is None:
            raise ValueError("it is not running; call start() first")
        self.selector.unregister(self.listener)
        self.listener.close()
        self.listener = None

    def forget(self) -> None:
        """Lose what is not on disk, as the process has ended."""
        self.server.presence.decided.take()
        self.cursors.take_moved()
        self.disk.waiting.clear()

    def save_clocks(self) -> None:
        """Note for the next start how much is left of each user's timeout."""
        at = self.at()
        clocks = self.server.presence.wheel.clocks(at.now, at.mono)
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
                link = self.server.connected(self._number, peer, self.at())
                self.sockets[link.number] = ScriptedSocket(sock, link)
                self.tap.opened(link.number, sock)
        for socket in [*self.sockets.values()]:
            if self._is_read(socket.link):
                has_read |= self._read(socket)
        # Waiters are woken by changes only: each makes a turn when it checks its
        # condition, so two of them could wake each other for ever.
        self.settle(notify=has_read)

    def settle(self, *, notify: bool = True) -> None:
        """Write what was decided, and to all links; wake those that wait."""
        if self.listener is not None and self.is_reading:
            self.fire_timers()
        self.server.note_cursors(self.at())
        self.server.commit()
        self.carry_out()
        self._search_skipped()
        self.write_links()
        if notify:
            self.changed.set()
            self.changed = anyio.Event()

    def carry_out(self) -> None:
        """Do what the server wants done, in order."""
        server = self.server
        while server.effects:
            effect = server.effects.popleft()
            match effect:
                case Commit():
                    self.disk.waiting.append(effect)
                case Deliver():
                    self.sockets[effect.link].position = effect.position
                case ReadFirst():
                    older = self.sockets[effect.link]
                    self._read(older)
                    server.replace(older.link)
                case LogRefusal():
                    self.refused.append((effect.name, effect.refusal))
                case LogLine(fields={"exc_info": BaseException() as fault}):
                    raise fault
                case Close():
                    self._finish(self.sockets[effect.link])
                case WakeWriter() | WriteAttempt() | SearchSkipped():
                    pass  # here nothing sleeps that would have to be woken
                case LogLine() | AskCluster():
                    pass  # without the name of a host, the server asks no cluster
                case never:
                    assert_never(never)
        self.disk.write(self.cursors, server.scheduler)

    def _search_skipped(self) -> None:
        """Fire timers again whose records their gateways skipped."""
        skipped = self.server.skipped
        is_running = self.listener is not None and not self.disk.failure
        while is_running and (gateways := skipped.gateways()):
            gateway = gateways[0]
            after, until = skipped.next(gateway)
            found = [
                record
                for record in self.disk.records[after or 0 : until]
                if isinstance(record, TimerRecord) and record.gateway == gateway
            ]
            skipped.searched(gateway, until)
            self.server.fire_again(found, self.at())
            self.carry_out()

    def _read(self, socket: ScriptedSocket) -> bool:
        """Read a link until it is empty; return whether there was data, or its end."""
        has_read, link = False, socket.link
        while link.number in self.sockets:
            if link.is_open:
                may_read = self.server.may_read(link)
                self.carry_out()
                if may_read is MayRead.LATER:
                    self._write(socket)
                    may_read = self.server.may_read(link)
                    self.carry_out()
                if may_read is not MayRead.YES:
                    break
            try:
                data = socket.sock.recv(RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            has_read = True
            self.tap.received(link.number, data)
            if not data:
                self._write(socket)
                self.close(socket)
            elif link.is_open:
                self._received(link, data)
        return has_read

    def _received(self, link: Link, data: bytes) -> None:
        host = self.clock.host() if link.hello is None else None
        self.server.received(link, data, self.at(), host)
        self.carry_out()
        while self.server.has_resets:
            self.server.reset_sessions(self.at())
            self.carry_out()

    def write_links(self) -> None:
        """Write to all links what may be sent now, as far as their peers read."""
        for socket in [*self.sockets.values()]:
            self._write(socket)
            self._watch(socket)

    def _write(self, socket: ScriptedSocket) -> None:
        link, outbox = socket.link, socket.link.outbox
        while not outbox.is_broken and not socket.is_shut:
            if not socket.unsent:
                socket.sent = bool
                socket.unsent = self._next_bytes(socket)
            if not socket.unsent:
                return
            try:
                sent = socket.sock.send(socket.unsent[: socket.most_bytes])
            except BlockingIOError:
                outbox.blocked(True)
                return
            except OSError:
                # What the peer wrote before is still read.
                outbox.broken()
                socket.unsent = b""
                return
            self.tap.sent(link.number, socket.unsent[:sent])
            socket.unsent = socket.unsent[sent:]
            if not socket.unsent:
                outbox.blocked(False)
                socket.sent()
            if socket.most_bytes is not None:
                return

    def _next_bytes(self, socket: ScriptedSocket) -> bytes:
        outbox = socket.link.outbox
        if socket.extra:
            extra, socket.extra = socket.extra, b""
            return extra
        if frames := outbox.take_frames():
            socket.sent = partial(outbox.frames_sent, len(frames))
            return frames
        if outbox.take_up_list():
            data = self.disk.listed(outbox.lists[0].gateway)
            outbox.list_begins(len(data))
            socket.sent = outbox.list_sent
            return data
        if outbox.is_ending or socket.position is None:
            return b""
        before, room = socket.position.seq, outbox.room
        if room <= 0:
            return b""
        at = self.at()
        records, socket.position.seq = self.disk.read(
            before, socket.position.wanted, room, at.wall_ms
        )
        if not records:
            outbox.records_sent(at.state_ms)
            return b""
        outbox.records_begin([seq for seq, _ in records], before)
        socket.sent = partial(outbox.records_sent, at.state_ms)
        encoded = b"".join(encoded for _, encoded in records)
        return encode_notices(len(records), encoded)

    def _finish(self, socket: ScriptedSocket) -> None:
        """Write the rest to a link that has ended, and shut it down."""
        self.disk.write(self.cursors, self.server.scheduler)
        self._write(socket)
        outbox = socket.link.outbox
        if not outbox.is_broken and not socket.unsent:
            with suppress(OSError):
                sent = socket.sock.send(outbox.last_frame)
                self.tap.sent(socket.link.number, outbox.last_frame[:sent])
                socket.unsent = outbox.last_frame[sent:]
        if socket.unsent:
            self.close(socket)  # it may never read the rest
            return
        socket.is_shut = True
        with suppress(OSError):  # the peer may have closed
            # With unread bytes, a close would make the peer's next read fail.
            socket.sock.shutdown(SHUT_WR)

    def _watch(self, socket: ScriptedSocket) -> None:
        """Set the events for which the selector waits on a link."""
        link = socket.link
        reads = self._is_read(link) and not (link.is_open and link.outbox.is_full)
        writes = bool(socket.unsent) and socket.most_bytes is None
        wanted = EVENT_READ * reads | EVENT_WRITE * writes
        if wanted != socket.watched and link.number in self.sockets:
            if socket.watched:
                self.selector.unregister(socket.sock)
            if wanted:
                self.selector.register(socket.sock, wanted)
            socket.watched = wanted

    def _is_read(self, link: Link) -> bool:
        """Whether the script lets a link be read; one that has ended is read to its end."""
        is_unread = not self.is_reading or link.name in self.unread_gateways
        return not link.is_open or not is_unread

    def close(self, socket: ScriptedSocket) -> None:
        """Close a link at once."""
        if self.sockets.pop(socket.link.number, None) is not None:
            self.tap.closed(socket.link.number)
            if socket.watched:
                self.selector.unregister(socket.sock)
            socket.sock.close()
            if socket.link.number in self.server.registry.links:  # not of one before it
                self.server.closed(socket.link)

    # --- what is reported -----------------------------------------------------

    def note_events(
        self, gateway: str, request: ActivityBatch | Login | Logout
    ) -> None:
        """Show the events of a request to the script."""
        events: Sequence[str] = [
            EVENTS[number] for number in getattr(request, "events", ())
        ]
        if not isinstance(request, ActivityBatch):
            name = LOGIN if isinstance(request, Login) else LOGOUT
            events = [name] * len(request.uids)
        for event, uid, conn in zip(events, request.uids, request.conns, strict=True):
            if is_uid(uid):
                self._on_event(event, uid, conn, gateway)
