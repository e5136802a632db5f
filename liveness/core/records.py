"""The vocabulary: what a link asks for, and what is decided.

A *request* is one frame of a gateway or watcher, checked and with every default
filled in. A *record* is one decision about a session or a timer, in the one shape
that it keeps everywhere: on the socket, in the log, on a terminal.

Records are named tuples, not dataclasses: a mass offline makes a hundred thousand
of them at once, and building a frozen dataclass of this width costs five times as
much.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from liveness.core.timer_states import TimerCommand
from liveness.errors import Code

Uid: TypeAlias = str | int

ONLINE: Final = "online"
OFFLINE: Final = "offline"
MOVED: Final = "moved"
TIMER: Final = "timer"
GAP: Final = "gap"
SESSION_KINDS: Final = (ONLINE, OFFLINE, MOVED)
KINDS: Final = (*SESSION_KINDS, TIMER)

SILENCE: Final = "silence"
LOGOUT: Final = "logout"
GATEWAY_LOST: Final = "gateway_lost"
OFFLINE_REASONS: Final = (SILENCE, LOGOUT, GATEWAY_LOST)

LOGIN: Final = "login"
KEEPALIVE: Final = "keepalive"
MESSAGE: Final = "message"
# The wheel keeps the last event of a uid as an index into this tuple. 0: nothing
# was heard since a crash.
EVENTS: Final = ("", LOGIN, KEEPALIVE, MESSAGE, LOGOUT)
EVENT_NUMBER: Final = {name: number for number, name in enumerate(EVENTS)}

GATEWAY: Final = "gateway"
WATCHER: Final = "watcher"
ROLES: Final = (GATEWAY, WATCHER)

# A gateway may read its two clocks so far apart, as one that is preempted in between. Where
# a time namespace shifts its clock by no more, logins are no more wrong than that.
SAME_CLOCK_S: Final = 0.050


class Instant(NamedTuple):
    """One moment on the three clocks; nobody but the service reads them."""

    now: float  # attended seconds: what the wheel runs on
    mono: float  # raw monotonic seconds: what silence and lateness are measured on
    wall_ms: int  # Unix milliseconds: for stamps in records only


class HostTime(NamedTuple):
    """One moment on the clocks that all processes of a host may share."""

    monotonic_s: float  # CLOCK_MONOTONIC, which each time namespace shifts
    unix_s: float

    def is_same_clock(self, other: "HostTime") -> bool:
        """Whether two processes that read these have the same CLOCK_MONOTONIC.

        They need not have read them at the same moment: both clocks run alike. If not,
        they are in two time namespaces, or the wall clock was set in between.
        """
        ours, theirs = self.unix_s - self.monotonic_s, other.unix_s - other.monotonic_s
        return abs(ours - theirs) <= SAME_CLOCK_S


class Record(NamedTuple):
    """One decision about one session (`protocol.md`, "Records")."""

    seq: int
    kind: str
    uid: Uid
    gateway: str
    session: int
    conn: int | None
    reason: str
    at: int
    seen: int | None = None
    last: str | None = None
    silence: float | None = None
    restored: bool = False
    from_gateway: str | None = None
    from_session: int | None = None
    from_conn: int | None = None

    def as_map(self) -> dict[str, object]:
        """The record as the wire and every outlet show it: absent keys left out."""
        shown: dict[str, object] = {
            "seq": self.seq,
            "kind": self.kind,
            "uid": self.uid,
            "gateway": self.gateway,
            "session": self.session,
            "reason": self.reason,
            "at": self.at,
        }
        if self.conn is not None:
            shown["conn"] = self.conn
        if self.kind == OFFLINE:
            shown["silence"] = self.silence
            if self.restored:
                shown["restored"] = True
            else:
                shown["seen"] = self.seen
                shown["last"] = self.last
        elif self.kind == MOVED:
            shown["from"] = self.from_gateway
            if self.from_session is not None:
                shown["from_session"] = self.from_session
            if self.from_conn is not None:
                shown["from_conn"] = self.from_conn
        return shown


class TimerRecord(NamedTuple):
    """A timer came due: one run of it begins."""

    seq: int
    kind: str
    gateway: str
    key: str
    payload: str | None
    ext: str | None
    due: int
    attempt: int
    at: int

    @property
    def from_gateway(self) -> None:
        """A timer stays with its gateway."""
        return None

    @property
    def uid(self) -> None:
        """A timer is no user's."""
        return None

    def as_map(self) -> dict[str, object]:
        """The record as the wire and every outlet show it: absent keys left out."""
        shown: dict[str, object] = {
            "seq": self.seq,
            "kind": self.kind,
            "gateway": self.gateway,
            "key": self.key,
            "due": self.due,
            "attempt": self.attempt,
            "at": self.at,
        }
        if self.payload is not None:
            shown["payload"] = self.payload
        if self.ext is not None:
            shown["ext"] = self.ext
        return shown


class Gap(NamedTuple):
    """Records `first` to `until - 1` are not kept, or damaged; made for one reader."""

    first: int
    until: int
    at: int

    @property
    def seq(self) -> int:
        """What a reader acknowledges it by."""
        return self.until - 1

    @property
    def kind(self) -> str:
        """A gap is of a kind of its own."""
        return GAP

    def as_map(self) -> dict[str, object]:
        """The gap as the wire shows it."""
        return {
            "seq": self.seq,
            "kind": self.kind,
            "first": self.first,
            "until": self.until,
            "at": self.at,
        }


class LogPosition(NamedTuple):
    """A place in the log: a seq, and about when that was, in Unix milliseconds."""

    seq: int
    at: int


# What the log holds.
Logged: TypeAlias = Record | TimerRecord


def logged(fields: Sequence[Any]) -> Logged:
    """Make a record of its fields, as the log has them.

    Raises:
        TypeError: They are not those of a record.
    """
    if len(fields) > 1 and fields[1] == TIMER:
        return TimerRecord._make(fields)
    return Record._make(fields)


class Subscription(NamedTuple):
    """Which records concern a reader: of which gateway and user (None: all), and kinds.

    The timers of the gateway that reads are its to run, whatever else it wants. They are
    no user's.
    """

    gateway: str | None
    kinds: frozenset[str]
    runs: str | None = None
    uid: Uid | None = None

    def wants(self, record: Logged) -> bool:
        """Whether this record concerns the reader."""
        if record.kind == TIMER and record.gateway == self.runs:
            return True
        return (
            record.kind in self.kinds
            and (
                self.gateway is None
                or self.gateway in (record.gateway, record.from_gateway)
            )
            and (self.uid is None or self.uid == record.uid)
        )


class OnlineRow(NamedTuple):
    """What is kept on disk of one session, so that a restart forgets nobody."""

    session: int
    uid: Uid
    start_ms: int
    conn: int | None
    gateway: str
    timeout: float | None  # None: whatever the gateway's is


# The same without names, which a restart, with a million of them, has no time for.
OnlineFields: TypeAlias = tuple[int, Uid, int, int | None, str, float | None]
# A session's clock at a planned stop: the session; the whole timeout that began at its
# last event, the seconds left of it and those since that event; the event's index.
Stopped: TypeAlias = tuple[int, float, float, float, int]


@dataclass(slots=True)
class Changes:
    """What one pass decided: for the log, for those online, and for timers."""

    records: list[Logged] = field(default_factory=list)
    # Beside each record the monotonic moment it was due at, for the lateness of
    # later stages; 0.0 where silence decided nothing.
    due: list[float] = field(default_factory=list)
    # The net effect on the sessions kept: a row to keep, or None for one to forget.
    online: dict[int, OnlineRow | None] = field(default_factory=dict)
    # What is asked of timers, in order.
    orders: list[TimerCommand] = field(default_factory=list)
    ends: int = 0  # how many of the records end a session, or begin a timer's run

    @property
    def weight(self) -> int:
        """How much this adds to what waits for the disk: in records, at least one."""
        return max(len(self.records), len(self.online), 1)

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.records or self.online or self.orders)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """How a link introduced itself."""

    name: str
    role: str = GATEWAY
    timeout: float | None = None
    after: int | None = None
    log: str | None = None
    scope: str = "own"
    kinds: frozenset[str] = frozenset({OFFLINE, MOVED})
    ack: bool = True
    ping: float | None = None
    fresh: bool = False
    clock: HostTime | None = None  # when it was written


class SignsOfLife(ABC):
    """Consecutive keepalives and messages of one link, in order.

    `conns` and `events` run beside `uids`, in which anything at all may stand.
    """

    __slots__ = ()
    uids: Sequence[Uid]
    conns: Sequence[int | None]
    events: bytes | bytearray  # indexes into `EVENTS`

    @abstractmethod
    def count(self, event: int) -> int:
        """How many of them are of this event."""

    @abstractmethod
    def at(self, position: int) -> tuple[Uid, int | None, int]:
        """The uid, conn and event at *position*."""

    @abstractmethod
    def frame_at(self, position: int) -> tuple[int, int]:
        """The number of the frame that holds *position*, and the index within it."""


@dataclass(frozen=True, slots=True)
class ListedSigns(SignsOfLife):
    """Signs of life as Python keeps them.

    `first_n` is the number of the first frame in it, `batches` the (position, length,
    number) of each frame that did not carry exactly one uid: enough to name a frame
    without an object per event.
    """

    uids: list[Uid] = field(default_factory=list)
    conns: list[int | None] = field(default_factory=list)
    events: bytearray = field(default_factory=bytearray)
    first_n: int = 0
    batches: list[tuple[int, int, int]] = field(default_factory=list)

    def count(self, event: int) -> int:
        """How many of them are of this event."""
        return self.events.count(event)

    def at(self, position: int) -> tuple[Uid, int | None, int]:
        """The uid, conn and event at *position*."""
        return self.uids[position], self.conns[position], self.events[position]

    def frame_at(self, position: int) -> tuple[int, int]:
        """The number of the frame that holds *position*, and the index within it."""
        before = bisect_right(self.batches, position, key=itemgetter(0))
        if not before:
            return self.first_n + position, 0
        start, length, n = self.batches[before - 1]
        if position < start + length:
            return n, position - start
        return n + 1 + position - (start + length), 0


@dataclass(frozen=True, slots=True)
class Login:
    """Connections of these users were authenticated, `age` seconds ago.

    `began` tells when, in seconds of the sender's CLOCK_MONOTONIC, for those who say so;
    None: it says so for none.
    """

    uids: Sequence[Uid]
    conns: Sequence[int | None]
    timeout: float | None
    age: float
    began: Sequence[float | None] | None = None


@dataclass(frozen=True, slots=True)
class Logout:
    """These connections ended in an orderly way."""

    uids: Sequence[Uid]
    conns: Sequence[int | None]


@dataclass(frozen=True, slots=True)
class Ack:
    """Every record up to `seq` is processed."""

    seq: int
    n: int


@dataclass(frozen=True, slots=True)
class Ping:
    """To be answered once all before it is applied and on disk."""

    payload: object


@dataclass(frozen=True, slots=True)
class Where:
    """Who of these is online, and through whom?"""

    uids: Sequence[Uid]


@dataclass(frozen=True, slots=True)
class ListSessions:
    """Every session the asker may see."""


class After(NamedTuple):
    """A timer: fire `key` in `seconds`, instead of a live one of that key."""

    key: str
    seconds: float
    payload: str | None
    ext: str | None


class Cancel(NamedTuple):
    """End the live timer of a key, or all that share an `ext`; one of both is None."""

    key: str | None
    ext: str | None


class Answer(NamedTuple):
    """What became of a timer's run: done or failed, and if so for good (`final`).

    `seq` is the record that is answered; None: the latest run of that key.
    """

    key: str
    is_done: bool
    message: str | None
    final: bool
    seq: int | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A frame, or the link itself, is refused."""

    code: Code
    message: str
    n: int
    fatal: bool
    frame: str | None = None
    index: int | None = None
    key: str | None = None  # of a timer that was not taken
    limit: str | None = None  # the setting whose bound was met, for the metrics

    def as_frame(self) -> list[object]:
        """The `error` frame that says so."""
        shown: dict[str, object] = {
            "code": self.code.value,
            "message": self.message,
            "fatal": self.fatal,
            "n": self.n,
        }
        if self.frame is not None:
            shown["frame"] = self.frame
        if self.index is not None:
            shown["index"] = self.index
        if self.key is not None:
            shown["key"] = self.key
        return ["error", shown]


Request: TypeAlias = (
    Hello
    | SignsOfLife
    | Login
    | Logout
    | Ack
    | Ping
    | Where
    | ListSessions
    | After
    | Cancel
    | Answer
    | Refusal
)
