"""The scripted sidecar: what it is and how it is used says `liveness.testing`."""

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
    SignsOfLife,
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

# Time goes this much further than it was told to: three times 10 s must not fall short
# of 30 s by the rounding of their sum.
ROUNDING_S: Final = 1e-6
# Wheels are laid so far ahead where time stands still: two buckets, a whole one at least.
AHEAD_S: Final = 2 * BUCKET_S
# While no time is passed, what came first must still be the older.
SLOWLY: Final = 1e-6
# Where the clocks begin, so that the records of a test are the same every time.
START_MONO_S: Final = 1_000.0
START_WALL_MS: Final = 1_795_168_800_000
# The core takes its work in bounded steps. Here time stands still until all is done.
ALL: Final = 2**31

REFUSED: Final = "the script of this test refuses it"


class Event(NamedTuple):
    """What a gateway has reported of one connection."""

    event: str  # login, keepalive, message or logout
    uid: Uid
    conn: int | None
    gateway: str


class Session(NamedTuple):
    """By what a user is online."""

    gateway: str
    session: int
    conn: int | None


class Timer(NamedTuple):
    """What has become of a timer by now."""

    state: str  # pending, fired, done, failed, cancelled or replaced
    payload: str | None
    ext: str | None
    attempts: int
    left: float | None  # seconds until it fires, or its run is over; None: no more
    message: str | None  # of the latest answer


@dataclass(slots=True, eq=False)
class _Link:
    """A connected socket, and what is to be written to it."""

    sock: socket.socket
    conversation: Conversation
    gateway: GatewayState | None = None
    is_open: bool = True  # what comes is taken; else it is only read to its end
    is_broken: bool = False  # nothing that is written arrives any more
    is_welcome: bool = False
    replies: deque[bytes] = field(default_factory=deque)
    unsent: bytes = b""
    position: int = 0  # records up to here were told, or did not concern it
    unacked: deque[int] = field(default_factory=deque)
    watched: int = 0  # what the selector waits for
    host_offset: float | None = None  # see `HostReading`; None: its clock is another

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
    def wanted(self) -> Subscription:
        hello = self.hello
        return Subscription(
            None if hello.scope == "all" else hello.name,
            hello.kinds,
            runs=hello.name if hello.role == GATEWAY else None,
        )

    def is_concerned_by(self, record: Logged) -> bool:
        """Whether that it is gone is a gap to this one."""
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
    """Serve on a Unix socket in a private temporary folder until left.

    Args:
        timeout: The silence timeout, in seconds, of gateways that name none.
        flush: How long `welcome` allows a gateway to collect, in seconds of its own
            clock. Small, so that tests need not wait for it.
        window: Records that may be in flight to a gateway.
        within: After so many seconds of the event loop's clock a wait has failed.
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
            # A test fails by its own fault, not by a group with that one in it.
            if len(group.exceptions) > 1:
                raise
            only = group.exceptions[0]
        finally:
            script._leave()
    if only is not None:
        raise only


def _ring(mono: float) -> Wheel:
    return Wheel(timeout=RING_S, slots=SLOTS, now=mono)


class ScriptedSidecar:
    """A running sidecar, and the script it goes by; from `scripted_sidecar`.

    Every verb and property first has it read all that gateways have written. What a
    gateway is collecting is not written yet: wait for it, or have the gateway flush.
    For use from its event loop only; names are those of gateways.

    Attributes:
        path: The socket to connect to.
        events: All that gateways have reported, in order.
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
        self._now = self._away = 0.0  # seconds attended, and seconds that were not
        # What time it was here from when on, by the clock of the event loop.
        self._times = [(anyio.current_time(), START_MONO_S)]
        self._disk = Disk()
        self._is_disk_full = False
        self._is_reading = True
        self._limits = ConversationLimits()
        self._links: dict[_Link, None] = {}
        self._named: dict[tuple[str, str], _Link] = {}
        self._written_to: dict[str, int] = {}  # by gateway, of links that are closed
        self._to_refuse: dict[str, Code] = {}
        self._not_given: defaultdict[Uid, deque[Event]] = defaultdict(deque)
        self._selector = DefaultSelector()
        self._listener: socket.socket | None = None
        self._changed = anyio.Event()
        self.start()

    # --- time -----------------------------------------------------------------

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, without waiting for it.

        What gateways have written counts as of before. Who falls silent is recorded at
        its moment, as is a timer that fires, and the records are on their way when this
        returns. While the sidecar is stopped or does not read, time counts for nobody's
        silence; timers that come due meanwhile fire afterwards.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{seconds!r} seconds cannot pass; time goes forward only")
        await checkpoint()
        self._turn()
        if self._listener is None or not self._is_reading:
            self._away += seconds + ROUNDING_S
        else:
            self._live_through(seconds)
        self._times.append((anyio.current_time(), self._at.mono))
        self._tell()
        await checkpoint()

    # --- looking and waiting --------------------------------------------------

    @property
    def users(self) -> dict[Uid, Session]:
        """Who is online."""
        self._turn()
        return {row[0]: Session(*row[1:]) for row in self._rows()}

    @property
    def records(self) -> list[dict[str, object]]:
        """The records on disk, as everybody is shown them."""
        self._turn()
        kept = self._disk.records[self._disk.first - 1 :]
        return [record.as_map() for record in kept]

    @property
    def timers(self) -> dict[tuple[str, str], Timer]:
        """By gateway and key the newest timers, as on disk."""
        self._turn()
        return {
            (it.timer.gateway, it.timer.key): self._shown(it)
            for it in self._disk.timers.values()
        }

    @property
    def links(self) -> dict[str, int]:
        """The gateways that are connected, and how many records each has yet to ack."""
        self._turn()
        return {
            name: len(link.unacked)
            for (role, name), link in self._named.items()
            if role == GATEWAY
        }

    async def online(self, uid: Uid, *, within: float | None = None) -> Session:
        """Wait until this user is online; return by what."""
        await self._until(
            lambda: self._find(uid),
            f"{uid!r} is not online",
            within,
            lambda: self._known(uid),
        )
        (row,) = self._presence.where([uid])
        return Session(*row[1:])

    async def offline(
        self, uid: Uid, *, within: float | None = None
    ) -> dict[str, object]:
        """Wait until the newest record of this user is its offline; return that."""

        def ending() -> Record | None:
            record = self._newest(uid)
            return record if record and record.kind == OFFLINE else None

        await self._until(
            ending,
            f"{uid!r} did not go offline",
            within,
            lambda: self._known(uid),
        )
        record = ending()
        assert record is not None
        return record.as_map()

    async def next_event(self, uid: Uid, *, within: float | None = None) -> Event:
        """Wait for the next event of this user: each is given once, in order."""
        events = self._not_given[uid]
        await self._until(
            lambda: events, f"no event of {uid!r}", within, lambda: self._known(uid)
        )
        return events.popleft()

    async def timer(
        self, gateway: str, key: str, state: str, *, within: float | None = None
    ) -> Timer:
        """Wait until the newest timer of this key is in a state; return it.

        Args:
            gateway: Who asked for it.
            key: By what.
            state: pending, fired, done, failed or cancelled.
            within: As with every wait.
        """
        if state not in STATES or state == REPLACED:
            raise ValueError(f"the newest timer of a key is never {state!r}")

        def newest() -> Timer | None:
            due = self._disk.newest(gateway, key)
            return None if due is None else self._shown(due)

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
        await self._until(lambda: key in self._named, f"{gateway} has no link", within)

    async def until(
        self, is_so: Callable[[], object], *, within: float | None = None
    ) -> None:
        """Wait until *is_so*, which is asked whenever something has come or was done.

        Raises:
            AssertionError: It did not come about within that many seconds of the event
                loop's clock; the text tells what is known. So with every wait here.
        """
        await self._until(is_so, "it is not so", within)

    # --- faults of links ------------------------------------------------------

    def drop(self, gateway: str) -> None:
        """End the link of this gateway without a word. It may connect again."""
        self._turn()
        link = self._named.get((GATEWAY, gateway))
        if link is None:
            raise ValueError(f"{gateway} has no link to drop; {self._state()}")
        self._close(link)
        self._tell()

    def refuse(self, gateway: str, code: str) -> None:
        """End the link of this gateway with an error of this code.

        If it has none, its next hello is answered so.
        """
        known = Code(code)
        if known in NOT_FATAL:
            raise ValueError(f"{code} ends no link; a frame that deserves it causes it")
        self._turn()
        link = self._named.get((GATEWAY, gateway))
        if link is None:
            self._to_refuse[gateway] = known
        else:
            self._refuse_link(link, known, REFUSED)
        self._tell()

    @contextmanager
    def not_reading(self) -> Iterator[None]:
        """Read nothing within, like a sidecar that is too busy to."""
        self._turn()
        self._is_reading = False
        self._tell()
        try:
            yield
        finally:
            self._is_reading = True
            self._turn()
            self._tell()

    # --- disk and restarts ----------------------------------------------------

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        """Get nothing onto disk within: no pong, answer, welcome or record goes out.

        What gateways report is applied all the same, and told when there is room. A
        `crash` within forgets it.
        """
        self._turn()
        self._is_disk_full = True
        try:
            yield
        finally:
            self._is_disk_full = False
            self._turn()
            self._tell()

    def trim(self) -> None:
        """Let go of all records, as the retention does of old ones, and of ended timers.

        A gateway that has not acknowledged all that concerned it is told of a gap by its
        next link.
        """
        self._turn()
        self._timetable.forgot(self._disk.trim())

    def stop(self, reason: str = "the sidecar stops") -> None:
        """Stop as planned, with `bye`. After `start`, all go on with the time they had."""
        self._turn()
        self._stop_listening()
        self.path.unlink()
        if not self._is_disk_full:
            known = [self._find(row.uid) for row in self._disk.online.values()]
            self._disk.clocks = [entry for entry in known if entry]
        for link in [*self._links]:
            said_hello = link.conversation.hello is not None
            self._end(link, *(["bye", {"reason": reason}] if said_hello else []))
        self._tell()

    def crash(self) -> None:
        """End as by `kill -9`. After `start`, who is on disk has its whole timeout."""
        self._turn()
        self._stop_listening()
        for link in [*self._links]:
            self._close(link)
        self._tell()

    def start(self, *, new_log: bool = False) -> None:
        """Come back after `stop` or `crash`.

        Args:
            new_log: On an empty disk, so under a new log and knowing nobody.
        """
        if self._listener is not None:
            raise ValueError("it is running; have it stop or crash first")
        if new_log:
            self._disk = Disk()
        disk, at = self._disk, self._at
        decided = Decisions(disk.next_seq)
        self._timetable = TimerScheduler(
            _ring,
            decided,
            at=self._whole_ms,
            next_id=disk.next_timer,
            states=disk.states(),
            ladder=RETRY_POLICY,
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
        self._written_to.clear()
        for name, timeout in disk.timeouts.items():
            self._presence.set_timeout(
                self._presence.gateway(name),
                timeout,
                self._now,
                in_force=disk.in_force[name],
            )
        stopped = [
            (it.session, it.timeout, left, at.mono - it.seen, it.event)
            for it in disk.clocks
            for left in [max(0.0, it.deadline - at.now)]
        ]
        disk.clocks = []
        self._presence.restore(disk.online.values(), at, stopped)
        for gateway in self._presence.gateways.values():
            gateway.unlinked(self._now)  # it gets as long to come as after a lost link
        self._listen()

    # --- the clock ------------------------------------------------------------

    @property
    def _at(self) -> Instant:
        passed = self._now + self._away
        # A sum that is a whole millisecond but for its rounding is that one: what is due
        # in it would be taken, put back, and taken again, as this clock stands still.
        wall_ms = START_WALL_MS + int((passed + ROUNDING_S) * 1_000)
        return Instant(self._now, START_MONO_S + passed, wall_ms)

    @property
    def _whole_ms(self) -> Instant:
        """Now in whole milliseconds, as timers are due in such."""
        at = self._at
        passed_ms = at.wall_ms - START_WALL_MS
        return at._replace(mono=START_MONO_S + passed_ms / 1_000)

    @property
    def _timers_at(self) -> Instant:
        """The same and a little more, so that no rounding makes it a millisecond less."""
        at = self._whole_ms
        return at._replace(mono=at.mono + ROUNDING_S)

    def _age(self, age: float) -> float:
        """Turn an age by a gateway's clock, the event loop's, into one by this clock.

        A connection began at the time that it was here then: so of two connections the
        newer one stays the newer, however time passes here and there.
        """
        return self._at.mono - self._moment(anyio.current_time() - age)

    def _began(self, link: _Link, login: Login) -> Sequence[float | None] | None:
        """When connections began by this clock, if theirs is the host's."""
        if login.began is None or link.host_offset is None:
            return login.began
        now, offset = anyio.current_time(), link.host_offset
        return [
            None
            if it is None
            # What is to come stays as far away, so that it is found out.
            else self._moment(min(it - offset, now)) + max(it - offset - now, 0.0)
            for it in login.began
        ]

    def _moment(self, began: float) -> float:
        """Turn a moment of the event loop's clock into one of this clock."""
        place = bisect_right(self._times, began, key=itemgetter(0))
        there, here = self._times[max(place - 1, 0)]
        return here + (began - there) * SLOWLY

    def _live_through(self, seconds: float) -> None:
        """Judge everyone at its moment: users to within a bucket, and at the end exactly."""
        until = self._now + seconds + ROUNDING_S
        while (step := min(self._next_of_users(), self._next_of_timers())) < until:
            self._judge(max(step, self._now), ahead=0)
        # Laid ahead, so that who is due at the very end is among them.
        self._judge(until, ahead=AHEAD_S)

    def _next_of_users(self) -> float:
        presence, wheel = self._presence, self._presence.wheel
        if not len(presence):
            return math.inf
        # Who is due already waits: for its gateway, or for the end of a bucket.
        is_waiting = presence.due_gateways()
        return self._now + wheel.bucket_s if is_waiting else wheel.next_due()

    def _next_of_timers(self) -> float:
        """When there is next something to do: all at once between two such moments."""
        timetable, now_ms = self._timetable, self._timetable.ms(self._timers_at.mono)
        moments = self._disk.moments()
        ahead_ms = min((at - now_ms for at in moments if at > now_ms), default=math.inf)
        is_looked_at_again = timetable.loaded and any(at <= now_ms for at in moments)
        if not is_looked_at_again:
            return self._now + ahead_ms / 1_000
        ring = timetable.next_due() - START_MONO_S - self._away
        again = self._now + BUCKET_S if timetable.has_due else ring
        return min(again, self._now + ahead_ms / 1_000)

    def _judge(self, now: float, *, ahead: float) -> None:
        self._now = now
        for link in self._named.values():
            if link.gateway is not None:
                link.gateway.heard_at = link.gateway.empty_at = now
        self._presence.wheel.advance(now + ahead, ALL)
        while self._presence.fire(self._at, limit=ALL):
            pass
        self._judge_timers()

    def _judge_timers(self) -> None:
        """Fire timers that are due, or end their runs, until there are no more."""
        timetable, disk, mono = self._timetable, self._disk, self._at.mono
        while True:
            self._commit()
            timetable.advance(mono, laid_until=mono + AHEAD_S)
            while window := timetable.window():
                timetable.fill(window, disk.coming(window))
            numbers = timetable.take(ALL)
            timetable.fire(disk.due(numbers), self._timers_at, self._handed)
            if numbers:
                # Whether they are told by then decides whether their runs go on.
                for link in [*self._links]:
                    self._write(link)
            if not numbers and timetable.next_due() > mono:
                return

    def _handed(self, gateway: str) -> int:
        """The seq up to which a gateway was told its records."""
        key = GATEWAY, gateway
        link = self._named.get(key)
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
            raise ValueError("it is not running; start it first")
        self._selector.unregister(self._listener)
        self._listener.close()
        self._listener = None
        self._presence.decided.take()  # what is not on disk by now is lost

    def _leave(self) -> None:
        if self._listener is not None:
            self._stop_listening()
        for link in [*self._links]:
            self._close(link)
        self._selector.close()

    def _turn(self) -> None:
        """Make one pass: read everything there is, then tell whom it concerns."""
        is_news = False
        with suppress(BlockingIOError):
            while self._listener is not None:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                self._links[_Link(sock, Conversation(self._limits, Reader))] = None
        for link in [*self._links]:
            if self._is_reading or not link.is_open:
                is_news |= self._read(link)
        if is_news:
            self._tell()
        else:
            # Nobody is woken: of two who wait, each may make a turn to look.
            self._write_links()

    def _tell(self) -> None:
        """Write to gateways, and wake whoever waits here."""
        self._write_links()
        self._changed.set()
        self._changed = anyio.Event()

    def _write_links(self) -> None:
        if self._listener is not None and self._is_reading:
            self._judge_timers()
        self._commit()
        for link in [*self._links]:
            self._write(link)
            self._watch(link)

    def _watch(self, link: _Link) -> None:
        """Have the selector wait for what there is to do, and for nothing else."""
        reads = not link.is_open or (self._is_reading and not link.is_full)
        wanted = EVENT_READ * reads | EVENT_WRITE * bool(link.unsent)
        if wanted != link.watched:
            if link.watched:
                self._selector.unregister(link.sock)
            if wanted:
                self._selector.register(link.sock, wanted)
            link.watched = wanted

    def _read(self, link: _Link) -> bool:
        """Read a link empty; return whether anything came, be it its end."""
        is_news = False
        while link in self._links and not (link.is_open and link.is_full):
            try:
                data = link.sock.recv(RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            is_news = True
            if not data:
                self._write(link)
                self._close(link)
            elif link.is_open:
                self._listen_to(link, data)
        return is_news

    def _listen_to(self, link: _Link, data: bytes) -> None:
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
                # What it had written is still taken, until the end of its stream.
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

    def _end(self, link: _Link, *frame: object) -> None:
        """Take no more of a link; write what is queued and *frame*; let it close."""
        self._part(link)
        if self._is_disk_full:
            link.replies.clear()
        if frame:
            link.reply(*frame)
        link.is_open = False
        self._write(link)
        if link.unsent:
            self._close(link)  # it does not read, and might keep this for ever
            return
        with suppress(OSError):  # it may have gone
            # To close with bytes unread would make its next read fail instead of end.
            link.sock.shutdown(socket.SHUT_WR)

    def _close(self, link: _Link) -> None:
        if link in self._links:
            self._part(link)
            if link.watched:
                self._selector.unregister(link.sock)
            del self._links[link]
            link.sock.close()

    def _part(self, link: _Link) -> None:
        """Let go of the name of a link that ends."""
        if link.conversation.hello and self._named.get(link.key) is link:
            del self._named[link.key]
            if link.gateway is not None:
                link.gateway.unlinked(self._now)
                if link.is_welcome:
                    self._written_to[link.hello.name] = max(
                        link.position, self._written_to.get(link.hello.name, 0)
                    )

    # --- what links ask for ---------------------------------------------------

    def _apply(self, link: _Link, request: Request) -> None:
        """Do it, as the engine does."""
        match request:
            case SignsOfLife():
                self._hear(link, request)
            case Login():
                assert link.gateway is not None
                self._note(link, [LOGIN] * len(request.uids), request)
                login = replace(
                    request,
                    age=self._age(request.age),
                    began=self._began(link, request),
                )
                self._presence.login(link.gateway, login, self._at)
            case Logout():
                assert link.gateway is not None
                self._note(link, [LOGOUT] * len(request.uids), request)
                self._presence.logout(link.gateway, request, self._at)
            case Ack():
                self._acknowledge(link, request)
            case After():
                self._schedule(link, request)
            case Cancel():
                self._timetable.cancel(link.hello.name, request, self._timers_at)
            case Answer():
                self._timetable.answer(link.hello.name, request, self._timers_at)
            case Ping():
                link.reply("pong", request.payload)
            case Where():
                link.reply("where", self._presence.where(request.uids))
            case ListSessions():
                self._list(link)
            case Hello():
                self._introduce(link, request)
            case Refusal():
                self._refuse(link, request)
            case never:
                assert_never(never)

    def _note(
        self, link: _Link, events: Sequence[str], request: SignsOfLife | Login | Logout
    ) -> None:
        for event, uid, conn in zip(events, request.uids, request.conns, strict=True):
            if is_uid(uid):
                noted = Event(event, uid, conn, link.hello.name)
                self.events.append(noted)
                self._not_given[uid].append(noted)

    def _hear(self, link: _Link, signs: SignsOfLife) -> None:
        assert link.gateway is not None
        events = [EVENTS[number] for number in signs.events]
        self._note(link, events, signs)
        for n, position, index in self._presence.heard(link.gateway, signs, self._at):
            refusal = link.conversation.refuse(
                Code.BAD_UID,
                bad_uid_text(signs.uids[position]),
                self._now,
                n=n,
                frame=events[position],
                index=index,
            )
            self._refuse(link, refusal)

    def _schedule(self, link: _Link, after: After) -> None:
        # In whole milliseconds rounding would make it one more.
        asked = after._replace(seconds=after.seconds - 2 * ROUNDING_S)
        if not self._timetable.after(link.hello.name, asked, self._timers_at):
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

    def _list(self, link: _Link) -> None:
        is_all = link.hello.role != GATEWAY and link.hello.scope == "all"
        rows = [row for row in self._rows() if is_all or row[1] == link.hello.name]
        while len(rows) > LIST_ROWS:
            link.reply("list", rows[:LIST_ROWS])
            rows = rows[LIST_ROWS:]
        link.reply("list", rows, self._presence.decided.next_seq - 1)

    def _introduce(self, link: _Link, hello: Hello) -> None:
        if hello.role == GATEWAY and hello.name in self._to_refuse:
            self._refuse_link(link, self._to_refuse.pop(hello.name), REFUSED)
            return
        older = self._named.get(link.key)
        if older is not None:
            self._read(older)
        if older is not None and older.is_open:
            text = "the same name connected anew; do not reconnect by yourself"
            self._refuse_link(older, Code.REPLACED, text)
        self._named[link.key] = link
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
                self._presence.lose([gateway], 0, self._at, limit=ALL)
        self._greet(link, hello)

    def _greet(self, link: _Link, hello: Hello) -> None:
        """Say welcome. Reading begins where asked, else where it ended, else now."""
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
                written = self._written_to.get(hello.name, 0)
                told = max(stored, written) if is_known else 0
                self._pass_over(hello.name, told, link.position)
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
            "run_timeout": RETRY_POLICY.run_ms / 1_000,
        }
        if link.has_cursor:
            welcome["known"] = is_known
        if hello.clock is not None:
            welcome["began"] = link.host_offset is not None
        link.reply("welcome", welcome)

    def _pass_over(self, name: str, after: int, until: int) -> None:
        """Have timers fire again of whose runs a gateway is not told."""
        for record in self._disk.records[after:until]:
            if isinstance(record, TimerRecord) and record.gateway == name:
                self._timetable.undelivered(
                    name, record.key, record.seq, self._timers_at
                )

    def _refuse_link(self, link: _Link, code: Code, text: str) -> None:
        self._refuse(link, link.conversation.close(code, text))

    def _refuse(self, link: _Link, refusal: Refusal) -> None:
        hello = link.conversation.hello
        self.refused.append((hello.name if hello else None, refusal))
        if refusal.fatal:
            self._end(link, *refusal.as_frame())
        else:
            link.reply(*refusal.as_frame())

    # --- the log, and who reads it --------------------------------------------

    def _commit(self) -> None:
        """Have on disk what was decided."""
        if self._is_disk_full:
            return
        self._disk.cursors = dict(self._cursors)
        for gateway in self._presence.timeouts_over(self._now):
            self._disk.in_force[gateway.name] = gateway.in_force
        if changes := self._presence.decided.take():
            settlement = self._disk.write(changes, RETRY_POLICY)
            self._timetable.settled(changes.orders, settlement)

    def _next_records(self, link: _Link) -> list[Logged | Gap]:
        """What to tell a link next: as many records as there is room for."""
        disk = self._disk
        room = min(self._window - len(link.unacked), NOTICES_PER_FRAME)
        if room > 0 and link.position + 1 < disk.first:
            gap = Gap(link.position + 1, disk.first, self._at.wall_ms)
            gone = disk.records[link.position : gap.seq]
            link.position = gap.seq
            if any(map(link.is_concerned_by, gone)):
                return [gap]
        records, link.position = disk.read(link.position, link.wanted, room)
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
        """With nothing outstanding, follow the log past what did not concern it."""
        if link.has_cursor and not link.unacked:
            self._cursors[link.key] = max(self._cursors[link.key], link.position)

    def _rows(self) -> list[tuple[Uid, str, int, int | None]]:
        presence = self._presence
        owned = (
            presence.wheel.owned([gateway.number], 0, ALL)[0]
            for gateway in presence.gateways.values()
        )
        return presence.where([uid for uids in owned for uid in uids])

    def _find(self, uid: Uid) -> Entry | None:
        return self._presence.wheel.find(uid)

    def _newest(self, uid: Uid) -> Record | None:
        for it in reversed(self._disk.records):
            if isinstance(it, Record) and it.uid == uid:
                return it
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
        details = [self._state()] if known is None else [known(), self._state()]
        raise AssertionError("; ".join([f"{otherwise} after {within:g} s", *details]))

    def _shown(self, due: Due) -> Timer:
        timer, payload = due
        left = None
        if timer.next is not None:
            now_ms = self._timetable.ms(self._timers_at.mono)
            left = max(0, timer.next - now_ms) / 1_000
        return Timer(
            timer.state, payload, timer.ext, timer.attempts, left, timer.message
        )

    def _known(self, uid: Uid) -> str:
        event = next((it for it in reversed(self.events) if it.uid == uid), None)
        record = self._newest(uid)
        heard = "nothing was heard of it" if event is None else f"heard last: {event}"
        return heard if record is None else f"{heard}; recorded last: {record.as_map()}"

    def _state(self) -> str:
        """Whatever may explain why something does not come."""
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
