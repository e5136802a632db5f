"""The scripted sidecar; `liveness.testing` explains how to use it.

It drives the sidecar's own rules from a single task, without threads or a disk. Between
two calls of `pass_time` its time stands still.
"""

import math
import socket
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, assert_never

import anyio
from anyio.lowlevel import checkpoint

from liveness import __version__
from liveness.compiled import Reader, Wheel
from liveness.core.changes import Decisions
from liveness.core.clearance import GatewayState
from liveness.core.conversation import Conversation, ConversationLimits
from liveness.core.frames import FEATURES, PROTOCOL, bad_uid_text
from liveness.core.framing import encode, encode_notices
from liveness.core.presence import Presence
from liveness.core.records import (
    EVENTS,
    GATEWAY,
    LOGIN,
    LOGOUT,
    OFFLINE,
    Ack,
    ActivityBatch,
    After,
    Answer,
    Cancel,
    Gap,
    Hello,
    Instant,
    ListSessions,
    Logged,
    Login,
    Logout,
    Ping,
    Record,
    Refusal,
    Request,
    Subscription,
    TimerRecord,
    Uid,
    Where,
)
from liveness.core.table import Entry
from liveness.core.timer_scheduler import RING_S, Due, TimerScheduler
from liveness.core.timer_states import REPLACED, RETRY_POLICY, STATES
from liveness.core.uids import is_uid
from liveness.core.wheel import BUCKET_S
from liveness.errors import NOT_FATAL, Code
from liveness.host_clock import read_host
from liveness.testing.scripted_disk import Disk

# As the sidecar's own.
SLOTS: Final = 30
GATEWAY_HOLD_S: Final = 60.0
RECONNECT_S: Final = 1.0
MAX_REPLIES: Final = 1_000
NOTICES_PER_FRAME: Final = 1_000
LIST_ROWS: Final = 1_000
RECEIVE_BYTES: Final = 16_384
BACKLOG: Final = 512
MAX_TIMERS: Final = 20_000_000
MAX_LOADED: Final = 1_000_000

# Time goes this much further than asked, so that rounding does not make three times 10 s
# less than 30 s.
ROUNDING_S: Final = 1e-6
# Wheels are this far ahead of the time, so that users and timers fire at their exact
# deadline, not at the end of its bucket. Two buckets contain at least one whole one.
AHEAD_S: Final = 2 * BUCKET_S
# Between two calls of `pass_time` the time of logins runs at this share of real time, so
# that the older of two connections is still the older.
IDLE_RATE: Final = 1e-6
# The clocks begin at fixed times, so that a test gets the same records every time.
START_MONO_S: Final = 1_000.0
START_WALL_MS: Final = 1_795_168_800_000
# The core works in bounded steps. Here one step does everything.
UNLIMITED: Final = 2**31

REFUSED: Final = "the script of this test refuses it"


class Event(NamedTuple):
    """One event that a gateway has reported."""

    event: str  # login, keepalive, message or logout
    uid: Uid
    conn: int | None
    gateway: str


class Session(NamedTuple):
    """The session that keeps a user online."""

    gateway: str
    session: int
    conn: int | None


class Timer(NamedTuple):
    """A timer as it is now."""

    state: str  # pending, fired, done, failed, cancelled or replaced
    payload: str | None
    ext: str | None
    attempts: int
    left: float | None  # seconds until it fires, or its attempt is over; None: ended
    message: str | None  # of the latest answer


@dataclass(slots=True, eq=False)
class _Link:
    """A connected socket, and what is to be written to it."""

    sock: socket.socket
    conversation: Conversation
    gateway: GatewayState | None = None
    is_open: bool = True  # else it is only read to its end, and frames are dropped
    is_broken: bool = False  # the peer has closed: nothing is written any more
    is_welcome: bool = False
    replies: deque[bytes] = field(default_factory=deque)
    unsent: bytes = b""
    position: int = 0  # the seq up to which records were sent or skipped
    unacked: deque[int] = field(default_factory=deque)
    watched: int = 0  # the events that the selector waits for
    host_offset: float | None = None  # see `HostReading`; None: another clock

    @property
    def hello(self) -> Hello:
        assert self.conversation.hello is not None
        return self.conversation.hello

    @property
    def key(self) -> tuple[str, str]:
        return self.hello.role, self.hello.name

    @property
    def has_cursor(self) -> bool:
        return self.hello.role == GATEWAY or self.hello.ack

    @property
    def is_full(self) -> bool:
        return len(self.replies) > MAX_REPLIES

    def reply(self, *frame: object) -> None:
        if not self.is_broken:
            self.replies.append(encode(frame))

    @property
    def subscription(self) -> Subscription:
        hello = self.hello
        return Subscription(
            None if hello.scope == "all" else hello.name,
            hello.kinds,
            runs=hello.name if hello.role == GATEWAY else None,
        )

    def is_concerned_by(self, record: Logged) -> bool:
        """Whether this link gets a gap if the record is trimmed."""
        names = (record.gateway, record.from_gateway)
        return self.hello.scope == "all" or self.hello.name in names


@asynccontextmanager
async def scripted_sidecar(
    *,
    timeout: float = 30.0,  # noqa: ASYNC109 - of users, not of this function
    flush: float = 0.01,
    window: int = 10_000,
    within: float = 10.0,
    max_timers: int = MAX_TIMERS,
) -> AsyncIterator["ScriptedSidecar"]:
    """Serve on a Unix socket in a private temporary folder, until the context is left.

    Args:
        timeout: The silence timeout, in seconds, of gateways that name none.
        flush: How long a gateway may collect, in seconds of its own clock. Small, so
            that tests need not wait for it.
        window: Records that may be unacknowledged on a link.
        within: After this many seconds of the event loop's clock a wait fails.
        max_timers: Timers that may be pending or fired; one more is refused.
    """
    with TemporaryDirectory(prefix="liveness-") as folder:
        script = ScriptedSidecar(
            Path(folder) / "gateway.sock",
            timeout=timeout,
            flush=flush,
            window=window,
            within=within,
            max_timers=max_timers,
        )
        only: BaseException | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(script._serve)
                yield script
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # A test sees its own exception, not a group that holds it.
            if len(group.exceptions) > 1:
                raise
            only = group.exceptions[0]
        finally:
            script._leave()
    if only is not None:
        raise only


def _timer_wheel(mono: float) -> Wheel:
    return Wheel(timeout=RING_S, slots=SLOTS, now=mono)


class ScriptedSidecar:
    """A running sidecar that a test controls; from `scripted_sidecar`.

    Every method and property first reads all that gateways have written. What a gateway
    is still collecting is not written yet: wait for it, or flush the gateway. Use it from
    its event loop only. Links are named by their gateway.

    Attributes:
        path: The socket to connect to.
        events: All events that gateways have reported, in order.
        refused: Each refusal, with the name of the gateway or watcher if it had one.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout: float,
        flush: float,
        window: int,
        within: float,
        max_timers: int,
    ) -> None:
        self.path = path
        self.events: list[Event] = []
        self.refused: list[tuple[str | None, Refusal]] = []
        self._timeout, self._flush = timeout, flush
        self._window, self._within = window, within
        self._max_timers = max_timers
        self._now = self._unattended = 0.0  # seconds attended, and not attended
        # Pairs of a time by the event loop's clock and the scripted time of that moment.
        self._time_points = [(anyio.current_time(), START_MONO_S)]
        self._disk = Disk()
        self._is_disk_full = False
        self._is_reading = True
        self._limits = ConversationLimits()
        self._links: dict[_Link, None] = {}
        self._by_name: dict[tuple[str, str], _Link] = {}
        self._written_up_to: dict[str, int] = {}  # by gateway: seq, of closed links
        self._refuse_next: dict[str, Code] = {}
        self._unread_events: defaultdict[Uid, deque[Event]] = defaultdict(deque)
        self._selector = DefaultSelector()
        self._listener: socket.socket | None = None
        self._changed = anyio.Event()
        self.start()

    # --- time -----------------------------------------------------------------

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, without waiting for it.

        What gateways wrote before is applied first. Silent users and due timers are
        recorded at their moments, and the records are sent when this returns. While the
        sidecar is stopped or does not read, time counts for no user's silence; timers
        that come due meanwhile fire afterwards.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{seconds!r} seconds cannot pass; time goes forward only")
        await checkpoint()
        self._turn()
        if self._listener is None or not self._is_reading:
            self._unattended += seconds + ROUNDING_S
        else:
            self._advance_by(seconds)
        self._time_points.append((anyio.current_time(), self._at.mono))
        self._write_and_notify()
        await checkpoint()

    # --- looking and waiting --------------------------------------------------

    @property
    def users(self) -> dict[Uid, Session]:
        """The users online, each with its session."""
        self._turn()
        return {row[0]: Session(*row[1:]) for row in self._rows()}

    @property
    def records(self) -> list[dict[str, object]]:
        """The records on disk, as readers see them."""
        self._turn()
        records = self._disk.records[self._disk.first - 1 :]
        return [record.as_map() for record in records]

    @property
    def timers(self) -> dict[tuple[str, str], Timer]:
        """The newest timers on disk, by gateway and key."""
        self._turn()
        return {
            (due.timer.gateway, due.timer.key): self._timer_now(due)
            for due in self._disk.timers.values()
        }

    @property
    def links(self) -> dict[str, int]:
        """The connected gateways, and how many records each has not acknowledged."""
        self._turn()
        return {
            name: len(link.unacked)
            for (role, name), link in self._by_name.items()
            if role == GATEWAY
        }

    async def online(self, uid: Uid, *, within: float | None = None) -> Session:
        """Wait until this user is online; return its session."""
        await self._until(
            lambda: self._find(uid),
            f"{uid!r} is not online",
            within,
            lambda: self._known_of(uid),
        )
        (row,) = self._presence.where([uid])
        return Session(*row[1:])

    async def offline(
        self, uid: Uid, *, within: float | None = None
    ) -> dict[str, object]:
        """Wait until the newest record of this user is an offline; return the record."""

        def ending() -> Record | None:
            record = self._newest_record(uid)
            return record if record and record.kind == OFFLINE else None

        await self._until(
            ending,
            f"{uid!r} did not go offline",
            within,
            lambda: self._known_of(uid),
        )
        record = ending()
        assert record is not None
        return record.as_map()

    async def next_event(self, uid: Uid, *, within: float | None = None) -> Event:
        """Wait for the next event of this user; each is returned once, in order."""
        events = self._unread_events[uid]
        await self._until(
            lambda: events, f"no event of {uid!r}", within, lambda: self._known_of(uid)
        )
        return events.popleft()

    async def timer(
        self, gateway: str, key: str, state: str, *, within: float | None = None
    ) -> Timer:
        """Wait until the newest timer of this key is in a state; return it.

        Args:
            gateway: The gateway that asked for it.
            key: Its key.
            state: pending, fired, done, failed or cancelled.
            within: As for every wait.
        """
        if state not in STATES or state == REPLACED:
            raise ValueError(f"the newest timer of a key is never {state!r}")

        def newest() -> Timer | None:
            due = self._disk.newest(gateway, key)
            return None if due is None else self._timer_now(due)

        def is_so() -> bool:
            timer = newest()
            return timer is not None and timer.state == state

        await self._until(
            is_so,
            f"timer {key!r} of {gateway} is not {state}",
            within,
            lambda: f"it is {newest() or 'not known'}",
        )
        timer = newest()
        assert timer is not None
        return timer

    async def linked(self, gateway: str, *, within: float | None = None) -> None:
        """Wait until this gateway is connected and has said hello."""
        key = GATEWAY, gateway
        await self._until(
            lambda: key in self._by_name, f"{gateway} has no link", within
        )

    async def until(
        self, is_so: Callable[[], object], *, within: float | None = None
    ) -> None:
        """Wait until *is_so* returns something true; it is called after each change.

        Raises:
            AssertionError: As in every wait: it was not true within that many seconds of
                the event loop's clock. The text says what is known.
        """
        await self._until(is_so, "it is not so", within)

    # --- faults of links ------------------------------------------------------

    def drop(self, gateway: str) -> None:
        """Close the link of this gateway. It may connect again."""
        self._turn()
        link = self._by_name.get((GATEWAY, gateway))
        if link is None:
            raise ValueError(f"{gateway} has no link to drop; {self._summary()}")
        self._close(link)
        self._write_and_notify()

    def refuse(self, gateway: str, code: str) -> None:
        """End the link of this gateway with an error of this code.

        If it has no link, its next hello gets the error.
        """
        known = Code(code)
        if known in NOT_FATAL:
            raise ValueError(
                f"{code} ends no link; have the gateway send a frame that causes it"
            )
        self._turn()
        link = self._by_name.get((GATEWAY, gateway))
        if link is None:
            self._refuse_next[gateway] = known
        else:
            self._refuse_link(link, known, REFUSED)
        self._write_and_notify()

    @contextmanager
    def not_reading(self) -> Iterator[None]:
        """Read nothing inside this `with`, like a sidecar that is too busy."""
        self._turn()
        self._is_reading = False
        self._write_and_notify()
        try:
            yield
        finally:
            self._is_reading = True
            self._turn()
            self._write_and_notify()

    # --- disk and restarts ----------------------------------------------------

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        """Write nothing to disk inside this `with`: no pong, answer, welcome or record
        is sent.

        What gateways report is applied all the same, and written afterwards. A `crash`
        inside forgets it.
        """
        self._turn()
        self._is_disk_full = True
        try:
            yield
        finally:
            self._is_disk_full = False
            self._turn()
            self._write_and_notify()

    def trim(self) -> None:
        """Remove all records, as the retention removes old ones, and ended timers.

        A gateway that has not acknowledged all records of its own gets a gap on its next
        link.
        """
        self._turn()
        self._scheduler.deleted(self._disk.trim())

    def stop(self, reason: str = "the sidecar stops") -> None:
        """Stop as planned, with `bye`. After `start`, users' clocks continue."""
        self._turn()
        self._stop_listening()
        self.path.unlink()
        if not self._is_disk_full:
            entries = [self._find(row.uid) for row in self._disk.online.values()]
            self._disk.clocks = [entry for entry in entries if entry]
        for link in [*self._links]:
            said_hello = link.conversation.hello is not None
            self._end_link(link, *(["bye", {"reason": reason}] if said_hello else []))
        self._write_and_notify()

    def crash(self) -> None:
        """End as by `kill -9`. After `start`, users on disk have a whole timeout."""
        self._turn()
        self._stop_listening()
        for link in [*self._links]:
            self._close(link)
        self._write_and_notify()

    def start(self, *, new_log: bool = False) -> None:
        """Come back after `stop` or `crash`.

        Args:
            new_log: Whether to come back with an empty disk: a new log, no user online.
        """
        if self._listener is not None:
            raise ValueError("it is running; call stop() or crash() first")
        if new_log:
            self._disk = Disk()
        disk, at = self._disk, self._at
        decided = Decisions(disk.next_seq)
        self._scheduler = TimerScheduler(
            _timer_wheel,
            decided,
            at=self._whole_ms,
            next_id=disk.next_timer,
            states=disk.states(),
            retry_policy=RETRY_POLICY,
            max_live=self._max_timers,
            max_loaded=MAX_LOADED,
        )
        self._presence = Presence(
            Wheel(timeout=self._timeout, slots=SLOTS, now=self._now),
            decided=decided,
            timeout=self._timeout,
            gateway_hold=GATEWAY_HOLD_S,
            reconnect_grace=RECONNECT_S + self._flush,
        )
        self._cursors = dict(disk.cursors)
        self._written_up_to.clear()
        for name, timeout in disk.timeouts.items():
            self._presence.set_timeout(
                self._presence.gateway(name),
                timeout,
                self._now,
                in_force=disk.in_force[name],
            )
        stopped = [
            (entry.session, entry.timeout, left, at.mono - entry.seen, entry.event)
            for entry in disk.clocks
            for left in [max(0.0, entry.deadline - at.now)]
        ]
        disk.clocks = []
        self._presence.restore(disk.online.values(), at, stopped)
        for gateway in self._presence.gateways.values():
            gateway.unlinked(self._now)  # its time to connect begins now
        self._listen()

    # --- the clock ------------------------------------------------------------

    @property
    def _at(self) -> Instant:
        passed = self._now + self._unattended
        # Rounding must not make this a millisecond less: a timer due now would be taken
        # and put back for ever, as this clock stands still.
        wall_ms = START_WALL_MS + int((passed + ROUNDING_S) * 1_000)
        return Instant(self._now, START_MONO_S + passed, wall_ms)

    @property
    def _whole_ms(self) -> Instant:
        """Now in whole milliseconds, the unit in which timers are due."""
        at = self._at
        passed_ms = at.wall_ms - START_WALL_MS
        return at._replace(mono=START_MONO_S + passed_ms / 1_000)

    @property
    def _timers_at(self) -> Instant:
        """`_whole_ms` and a little more, so that rounding cannot make it less."""
        at = self._whole_ms
        return at._replace(mono=at.mono + ROUNDING_S)

    def _scripted_age(self, age: float) -> float:
        """Turn an age by the gateway's clock, the event loop's, into one by this clock.

        It follows from the scripted time at which the connection began. So the newer of
        two connections stays the newer, however much time passes by each clock.
        """
        return self._at.mono - self._scripted_time(anyio.current_time() - age)

    def _scripted_began(
        self, link: _Link, login: Login
    ) -> Sequence[float | None] | None:
        """When connections began, by this clock if the gateway has the host's."""
        if login.began is None or link.host_offset is None:
            return login.began
        now, offset = anyio.current_time(), link.host_offset
        return [
            None
            if host_s is None
            # A time in the future stays as far in the future, so that the core notices.
            else self._scripted_time(min(host_s - offset, now))
            + max(host_s - offset - now, 0.0)
            for host_s in login.began
        ]

    def _scripted_time(self, loop_s: float) -> float:
        """Turn a time of the event loop's clock into one of this clock."""
        place = bisect_right(self._time_points, loop_s, key=itemgetter(0))
        point_loop_s, point_s = self._time_points[max(place - 1, 0)]
        return point_s + (loop_s - point_loop_s) * IDLE_RATE

    def _advance_by(self, seconds: float) -> None:
        """Let time pass, in steps from one due moment to the next; exact at the end."""
        until = self._now + seconds + ROUNDING_S
        while (step := min(self._next_for_users(), self._next_for_timers())) < until:
            self._advance_to(max(step, self._now), ahead=0)
        # Ahead, so that what is due at the very end fires too.
        self._advance_to(until, ahead=AHEAD_S)

    def _next_for_users(self) -> float:
        presence, wheel = self._presence, self._presence.wheel
        if not len(presence):
            return math.inf
        # Due users wait for their gateway, or for the end of a bucket.
        is_waiting = presence.due_gateways()
        return self._now + wheel.bucket_s if is_waiting else wheel.next_due()

    def _next_for_timers(self) -> float:
        """When a timer next needs attention; until then time can pass in one step."""
        scheduler, now_ms = self._scheduler, self._scheduler.ms(self._timers_at.mono)
        moments = self._disk.moments()
        ahead_ms = min((at - now_ms for at in moments if at > now_ms), default=math.inf)
        is_waiting = scheduler.loaded and any(at <= now_ms for at in moments)
        if not is_waiting:
            return self._now + ahead_ms / 1_000
        ring = scheduler.next_due() - START_MONO_S - self._unattended
        again = self._now + BUCKET_S if scheduler.has_due else ring
        return min(again, self._now + ahead_ms / 1_000)

    def _advance_to(self, now: float, *, ahead: float) -> None:
        self._now = now
        for link in self._by_name.values():
            if link.gateway is not None:
                link.gateway.heard_at = link.gateway.empty_at = now
        self._presence.wheel.advance(now + ahead, UNLIMITED)
        while self._presence.fire(self._at, limit=UNLIMITED):
            pass
        self._fire_timers()

    def _fire_timers(self) -> None:
        """Fire due timers, and end attempts without an answer, until none is left."""
        scheduler, disk, mono = self._scheduler, self._disk, self._at.mono
        while True:
            self._commit()
            scheduler.advance(mono, ahead_until=mono + AHEAD_S)
            while window := scheduler.window():
                scheduler.fill(window, disk.coming(window))
            numbers = scheduler.take(UNLIMITED)
            rows = disk.due(numbers)
            names = {timer.gateway for timer, _ in rows}
            delivered = {name: self._sent_up_to(name) for name in names}
            scheduler.fire(rows, self._timers_at, delivered)
            if numbers:
                # First send the records: an attempt is not over before that.
                for link in [*self._links]:
                    self._write(link)
            if not numbers and scheduler.next_due() > mono:
                return

    def _sent_up_to(self, gateway: str) -> int:
        """The seq up to which a gateway was sent its records."""
        key = GATEWAY, gateway
        link = self._by_name.get(key)
        position = self._disk.next_seq - 1
        if link is not None and link.is_welcome:
            position = link.position
        elif key in self._cursors:
            position = self._cursors[key]
        return max(position, self._disk.first - 1)

    # --- sockets --------------------------------------------------------------

    async def _serve(self) -> None:
        while True:
            await anyio.wait_readable(self._selector.fileno())
            self._turn()

    def _listen(self) -> None:
        self.path.unlink(missing_ok=True)  # a crash leaves it
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(str(self.path))
        self._listener.listen(BACKLOG)
        self._selector.register(self._listener, EVENT_READ)

    def _stop_listening(self) -> None:
        if self._listener is None:
            raise ValueError("it is not running; call start() first")
        self._selector.unregister(self._listener)
        self._listener.close()
        self._listener = None
        self._presence.decided.take()  # what is not on disk is lost

    def _leave(self) -> None:
        if self._listener is not None:
            self._stop_listening()
        for link in [*self._links]:
            self._close(link)
        self._selector.close()

    def _turn(self) -> None:
        """Accept and read everything there is, then write what follows from it."""
        has_read = False
        with suppress(BlockingIOError):
            while self._listener is not None:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                self._links[_Link(sock, Conversation(self._limits, Reader))] = None
        for link in [*self._links]:
            if self._is_reading or not link.is_open:
                has_read |= self._read(link)
        if has_read:
            self._write_and_notify()
        else:
            # Waiters are not woken: each makes a turn when it checks its condition, so
            # two of them could wake each other for ever.
            self._write_links()

    def _write_and_notify(self) -> None:
        """Write to all links, and wake the waits."""
        self._write_links()
        self._changed.set()
        self._changed = anyio.Event()

    def _write_links(self) -> None:
        if self._listener is not None and self._is_reading:
            self._fire_timers()
        self._commit()
        for link in [*self._links]:
            self._write(link)
            self._watch(link)

    def _watch(self, link: _Link) -> None:
        """Set the events for which the selector waits on a link."""
        reads = not link.is_open or (self._is_reading and not link.is_full)
        wanted = EVENT_READ * reads | EVENT_WRITE * bool(link.unsent)
        if wanted != link.watched:
            if link.watched:
                self._selector.unregister(link.sock)
            if wanted:
                self._selector.register(link.sock, wanted)
            link.watched = wanted

    def _read(self, link: _Link) -> bool:
        """Read a link until it is empty; return whether there was data, or its end."""
        has_read = False
        while link in self._links and not (link.is_open and link.is_full):
            try:
                data = link.sock.recv(RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            has_read = True
            if not data:
                self._write(link)
                self._close(link)
            elif link.is_open:
                self._receive(link, data)
        return has_read

    def _receive(self, link: _Link, data: bytes) -> None:
        if link.gateway is not None:
            link.gateway.heard(self._now)
        for request in link.conversation.receive(data, self._now):
            if link.is_open:
                self._apply(link, request)
        if link.is_full:
            self._write(link)
        if link.is_full and not self._is_disk_full:
            text = "too many replies are left unread; read while you write"
            self._refuse_link(link, Code.OVERLOADED, text)

    def _write(self, link: _Link) -> None:
        self._commit()
        while not link.is_broken:
            link.unsent = link.unsent or self._next_bytes(link)
            if not link.unsent:
                return
            try:
                link.unsent = link.unsent[link.sock.send(link.unsent) :]
            except BlockingIOError:
                return
            except OSError:
                # What the peer wrote before is still read.
                link.is_broken, link.unsent = True, b""
                link.replies.clear()

    def _next_bytes(self, link: _Link) -> bytes:
        if self._is_disk_full and link.is_open:
            return b""
        if link.replies:
            replies = b"".join(link.replies)
            link.replies.clear()
            return replies
        if not link.is_open or not link.is_welcome:
            return b""
        records = self._next_records(link)
        if link.hello.ack:
            link.unacked.extend(record.seq for record in records)
        self._move_cursor(link)
        encoded = [encode(record.as_map()) for record in records]
        return encode_notices(encoded) if encoded else b""

    def _end_link(self, link: _Link, *frame: object) -> None:
        """Apply nothing more from a link; write its replies and *frame*; shut it down."""
        self._release_name(link)
        if self._is_disk_full:
            link.replies.clear()
        if frame:
            link.reply(*frame)
        link.is_open = False
        self._write(link)
        if link.unsent:
            self._close(link)  # it may never read the rest
            return
        with suppress(OSError):  # the peer may have closed
            # With unread bytes, a close would make the peer's next read fail.
            link.sock.shutdown(socket.SHUT_WR)

    def _close(self, link: _Link) -> None:
        if link in self._links:
            self._release_name(link)
            if link.watched:
                self._selector.unregister(link.sock)
            del self._links[link]
            link.sock.close()

    def _release_name(self, link: _Link) -> None:
        """Free the name of a link that ends."""
        if link.conversation.hello and self._by_name.get(link.key) is link:
            del self._by_name[link.key]
            if link.gateway is not None:
                link.gateway.unlinked(self._now)
                if link.is_welcome:
                    self._written_up_to[link.hello.name] = max(
                        link.position, self._written_up_to.get(link.hello.name, 0)
                    )

    # --- what links ask for ---------------------------------------------------

    def _apply(self, link: _Link, request: Request) -> None:
        """Apply a request as `service.engine.dispatch` does."""
        match request:
            case ActivityBatch():
                self._apply_activity(link, request)
            case Login():
                assert link.gateway is not None
                self._note_events(link, [LOGIN] * len(request.uids), request)
                login = replace(
                    request,
                    age=self._scripted_age(request.age),
                    began=self._scripted_began(link, request),
                )
                self._presence.login(link.gateway, login, self._at)
            case Logout():
                assert link.gateway is not None
                self._note_events(link, [LOGOUT] * len(request.uids), request)
                self._presence.logout(link.gateway, request, self._at)
            case Ack():
                self._acknowledge(link, request)
            case After():
                self._create_timer(link, request)
            case Cancel():
                self._scheduler.cancel(link.hello.name, request, self._timers_at)
            case Answer():
                self._scheduler.answer(link.hello.name, request, self._timers_at)
            case Ping():
                link.reply("pong", request.payload)
            case Where():
                link.reply("where", self._presence.where(request.uids))
            case ListSessions():
                self._reply_list(link)
            case Hello():
                self._accept_hello(link, request)
            case Refusal():
                self._refuse(link, request)
            case never:
                assert_never(never)

    def _note_events(
        self,
        link: _Link,
        events: Sequence[str],
        request: ActivityBatch | Login | Logout,
    ) -> None:
        for event, uid, conn in zip(events, request.uids, request.conns, strict=True):
            if is_uid(uid):
                noted = Event(event, uid, conn, link.hello.name)
                self.events.append(noted)
                self._unread_events[uid].append(noted)

    def _apply_activity(self, link: _Link, batch: ActivityBatch) -> None:
        assert link.gateway is not None
        events = [EVENTS[number] for number in batch.events]
        self._note_events(link, events, batch)
        for n, position, index in self._presence.heard(link.gateway, batch, self._at):
            refusal = link.conversation.refuse(
                Code.BAD_UID,
                bad_uid_text(batch.uids[position]),
                self._now,
                n=n,
                frame=events[position],
                index=index,
            )
            self._refuse(link, refusal)

    def _create_timer(self, link: _Link, after: After) -> None:
        # Otherwise rounding up to whole milliseconds would add one.
        asked = after._replace(seconds=after.seconds - 2 * ROUNDING_S)
        if not self._scheduler.after(link.hello.name, asked, self._timers_at):
            self._refuse(
                link,
                Refusal(
                    Code.TOO_MANY_TIMERS,
                    f"there are {self._max_timers} timers already; ask again once some "
                    "have ended",
                    link.conversation.n,
                    fatal=False,
                    frame="after",
                    key=after.key,
                ),
            )

    def _reply_list(self, link: _Link) -> None:
        is_all = link.hello.role != GATEWAY and link.hello.scope == "all"
        rows = [row for row in self._rows() if is_all or row[1] == link.hello.name]
        while len(rows) > LIST_ROWS:
            link.reply("list", rows[:LIST_ROWS])
            rows = rows[LIST_ROWS:]
        link.reply("list", rows, self._presence.decided.next_seq - 1)

    def _accept_hello(self, link: _Link, hello: Hello) -> None:
        if hello.role == GATEWAY and hello.name in self._refuse_next:
            self._refuse_link(link, self._refuse_next.pop(hello.name), REFUSED)
            return
        older = self._by_name.get(link.key)
        if older is not None:
            self._read(older)
        if older is not None and older.is_open:
            text = "the same name connected anew; do not reconnect by yourself"
            self._refuse_link(older, Code.REPLACED, text)
        self._by_name[link.key] = link
        if hello.role == GATEWAY:
            link.gateway = gateway = self._presence.gateway(hello.name)
            self._presence.set_timeout(gateway, hello.timeout, self._now)
            self._disk.timeouts[hello.name] = hello.timeout
            self._disk.in_force[hello.name] = gateway.in_force
            reading = read_host(anyio.current_time) if hello.clock else None
            if reading and hello.clock and hello.clock.is_same_clock(reading.host):
                link.host_offset = reading.offset
            gateway.linked(
                ping=hello.ping,
                now=self._now,
                clock_offset=None if link.host_offset is None else 0.0,
            )
            if hello.fresh:
                self._presence.reset_sessions([gateway], 0, self._at, limit=UNLIMITED)
        self._welcome(link, hello)

    def _welcome(self, link: _Link, hello: Hello) -> None:
        """Send welcome. Records begin after `after`, else after the cursor, else now."""
        newest = self._presence.decided.next_seq - 1
        if hello.after is None:
            link.position = newest
        elif hello.after == 0 or (
            hello.log == self._disk.log and hello.after <= newest
        ):
            link.position = hello.after
        else:
            link.position = self._disk.first - 1
        is_known = link.key in self._cursors
        if link.has_cursor:
            stored = self._cursors.setdefault(link.key, link.position)
            if hello.role == GATEWAY and (hello.fresh or not is_known):
                written = self._written_up_to.get(hello.name, 0)
                sent = max(stored, written) if is_known else 0
                self._refire_unsent(hello.name, sent, link.position)
            if hello.fresh:
                stored = self._cursors[link.key] = max(stored, link.position)
            if hello.after is None:
                link.position = stored
        link.is_welcome = True
        welcome = {
            "protocol": PROTOCOL,
            "server": f"liveness/{__version__}",
            "features": FEATURES,
            "log": self._disk.log,
            "next": newest + 1,
            "timeout": hello.timeout or self._timeout,
            "flush": self._flush,
            "max_batch": self._limits.max_batch,
            "max_frame": self._limits.max_frame_bytes,
            "window": self._window,
            "run_timeout": RETRY_POLICY.attempt_ms / 1_000,
        }
        if link.has_cursor:
            welcome["known"] = is_known
        if hello.clock is not None:
            welcome["began"] = link.host_offset is not None
        link.reply("welcome", welcome)

    def _refire_unsent(self, name: str, after: int, until: int) -> None:
        """Fire timers again whose records this gateway will not receive."""
        for record in self._disk.records[after:until]:
            if isinstance(record, TimerRecord) and record.gateway == name:
                self._scheduler.fire_again(
                    name, record.key, record.seq, self._timers_at
                )

    def _refuse_link(self, link: _Link, code: Code, text: str) -> None:
        self._refuse(link, link.conversation.close(code, text))

    def _refuse(self, link: _Link, refusal: Refusal) -> None:
        hello = link.conversation.hello
        self.refused.append((hello.name if hello else None, refusal))
        if refusal.fatal:
            self._end_link(link, *refusal.as_frame())
        else:
            link.reply(*refusal.as_frame())

    # --- the log and its readers ----------------------------------------------

    def _commit(self) -> None:
        """Write to disk what was decided."""
        if self._is_disk_full:
            return
        self._disk.cursors = dict(self._cursors)
        for gateway in self._presence.timeouts_over(self._now):
            self._disk.in_force[gateway.name] = gateway.in_force
        if changes := self._presence.decided.take():
            transaction = self._disk.write(changes, RETRY_POLICY)
            self._scheduler.applied(changes.commands, transaction)

    def _next_records(self, link: _Link) -> list[Logged | Gap]:
        """The next records for a link: as many as its window has room for."""
        disk = self._disk
        room = min(self._window - len(link.unacked), NOTICES_PER_FRAME)
        if room > 0 and link.position + 1 < disk.first:
            gap = Gap(link.position + 1, disk.first, self._at.wall_ms)
            trimmed = disk.records[link.position : gap.seq]
            link.position = gap.seq
            if any(map(link.is_concerned_by, trimmed)):
                return [gap]
        records, link.position = disk.read(link.position, link.subscription, room)
        return [*records]

    def _acknowledge(self, link: _Link, ack: Ack) -> None:
        following = self._disk.next_seq
        if ack.seq >= following:
            text = f"ack of {ack.seq}, but the next record will be {following}"
            refusal = link.conversation.refuse(
                Code.BAD_OPTION, text, self._now, n=ack.n, frame="ack"
            )
            self._refuse(link, refusal)
            return
        while link.unacked and link.unacked[0] <= ack.seq:
            link.unacked.popleft()
        self._cursors[link.key] = max(self._cursors[link.key], ack.seq)
        self._move_cursor(link)

    def _move_cursor(self, link: _Link) -> None:
        """If none is unacked, move the cursor past records not for this link."""
        if link.has_cursor and not link.unacked:
            self._cursors[link.key] = max(self._cursors[link.key], link.position)

    def _rows(self) -> list[tuple[Uid, str, int, int | None]]:
        presence = self._presence
        owned = (
            presence.wheel.owned([gateway.number], 0, UNLIMITED)[0]
            for gateway in presence.gateways.values()
        )
        return presence.where([uid for uids in owned for uid in uids])

    def _find(self, uid: Uid) -> Entry | None:
        return self._presence.wheel.find(uid)

    def _newest_record(self, uid: Uid) -> Record | None:
        for record in reversed(self._disk.records):
            if isinstance(record, Record) and record.uid == uid:
                return record
        return None

    # --- waiting --------------------------------------------------------------

    async def _until(
        self,
        is_so: Callable[[], object],
        otherwise: str,
        within: float | None,
        known: Callable[[], str] | None = None,
    ) -> None:
        await checkpoint()
        self._turn()
        within = self._within if within is None else within
        with anyio.move_on_after(within):
            while not is_so():
                await self._changed.wait()
            return
        details = [self._summary()] if known is None else [known(), self._summary()]
        raise AssertionError("; ".join([f"{otherwise} after {within:g} s", *details]))

    def _timer_now(self, due: Due) -> Timer:
        timer, payload = due
        left = None
        if timer.next is not None:
            now_ms = self._scheduler.ms(self._timers_at.mono)
            left = max(0, timer.next - now_ms) / 1_000
        return Timer(
            timer.state, payload, timer.ext, timer.attempts, left, timer.message
        )

    def _known_of(self, uid: Uid) -> str:
        event = next((each for each in reversed(self.events) if each.uid == uid), None)
        record = self._newest_record(uid)
        heard = "nothing was heard of it" if event is None else f"heard last: {event}"
        return heard if record is None else f"{heard}; recorded last: {record.as_map()}"

    def _summary(self) -> str:
        """The state that may explain why a wait failed."""
        state = [f"linked: {', '.join(self.links) or 'no gateway'}"]
        if self._listener is None:
            state.append("the sidecar is not running")
        if not self._is_reading:
            state.append("it does not read")
        if self._is_disk_full:
            state.append("its disk is full")
        if self.refused:
            name, refusal = self.refused[-1]
            state.append(f"refused last: {name}, {refusal.code}: {refusal.message}")
        return "; ".join(state)
