"""Types shared by all parts: moments, records of decisions, and subscriptions.

A *record* is a decision about a session or a timer, and has the same shape everywhere: on
the socket, in the log, on a terminal.

Records are named tuples, not dataclasses: a mass offline makes a hundred thousand at
once, and a frozen dataclass of this width takes five times as long to build.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

Uid: TypeAlias = str | int


def identity(uid: Uid) -> str:
    """The key of a user: `7` and `"7"` name the same one."""
    return str(uid)


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
# The wheel keeps each user's last event as an index into this tuple; 0: none since a
# crash.
EVENTS: Final = ("", LOGIN, KEEPALIVE, MESSAGE, LOGOUT)
EVENT_NUMBER: Final = {name: number for number, name in enumerate(EVENTS)}

GATEWAY: Final = "gateway"
WATCHER: Final = "watcher"
ROLES: Final = (GATEWAY, WATCHER)

# A gateway may be preempted for this long between readings of its two clocks. If a time
# namespace shifts its clock by less, logins are wrong by no more than that.
SAME_CLOCK_S: Final = 0.050


class Instant(NamedTuple):
    """One moment on the four clocks, which only the service reads."""

    now: float  # attended seconds, for the wheel
    mono: float  # raw monotonic seconds, for silence and lateness
    wall_ms: int  # Unix milliseconds, only for stamps that are shown
    # Of the state's clock (`service.common.clock`), for stored moments and timers.
    state_s: float

    @property
    def state_ms(self) -> int:
        """Milliseconds of the state's clock, as moments are stored."""
        return int(self.state_s * 1000)

    def unix_ms(self, mono: float) -> int:
        """Unix milliseconds of an earlier moment, given in monotonic seconds."""
        return self.wall_ms - round((self.mono - mono) * 1000)

    def state_ms_of(self, mono: float) -> int:
        """The same in milliseconds of the state's clock."""
        return self.state_ms - round((self.mono - mono) * 1000)

    def silence(self, seen: float) -> float:
        """Seconds since an earlier moment, given in monotonic seconds; to a millisecond."""
        return round((self.mono - seen) * 1000) / 1000


class HostTime(NamedTuple):
    """One moment on two clocks that all processes of a host may share."""

    monotonic_s: float  # CLOCK_MONOTONIC, which a time namespace may shift
    unix_s: float

    def is_same_clock(self, other: "HostTime") -> bool:
        """Whether two processes with these readings have the same CLOCK_MONOTONIC.

        The readings may be of different moments, since both clocks run alike. If this is
        false, the processes are in two time namespaces, or the wall clock was set.
        """
        ours, theirs = self.unix_s - self.monotonic_s, other.unix_s - other.monotonic_s
        return abs(ours - theirs) <= SAME_CLOCK_S


class HostReading(NamedTuple):
    """One moment on the host's clocks, and their distance from the event loop's clock."""

    host: HostTime
    offset: float  # CLOCK_MONOTONIC less the event loop's clock

    def offset_of(self, theirs: HostTime) -> float | None:
        """The seconds to add to another process's CLOCK_MONOTONIC to get our clock.

        None if that process has another clock.
        """
        return -self.offset if self.host.is_same_clock(theirs) else None


class Record(NamedTuple):
    """A decision about a session (`proto/README.md`, "Records")."""

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
    # The length of the user in the uid (0: all), and how many devices of that user are
    # online after this; None: devices are not counted.
    user_size: int | None = None
    devices: int | None = None

    @property
    def user(self) -> Uid:
        """The user of this uid; where devices are not counted, each uid is one."""
        return self.uid[: self.user_size] if self.user_size else self.uid  # type: ignore[index]  # an integer is all of its user

    @property
    def is_users(self) -> bool:
        """Whether a user came or left by this: it is about its first device, or its last.

        Where devices are not counted, each uid is a user.
        """
        if self.kind == MOVED:
            return False
        if self.devices is None:
            return True
        return self.devices == (1 if self.kind == ONLINE else 0)

    def is_of(self, uid: Uid) -> bool:
        """Whether this is about a uid, or about a device of a user of that name."""
        return identity(uid) in (identity(self.uid), identity(self.user))

    def as_map(self) -> dict[str, object]:
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
        if self.devices is not None:
            shown["user"], shown["devices"] = self.user, self.devices
        return shown


class TimerRecord(NamedTuple):
    """A timer came due: an attempt begins."""

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
        return None

    @property
    def uid(self) -> None:
        return None

    def as_map(self) -> dict[str, object]:
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
    """Records `first` to `until - 1` were deleted or are damaged. Not in the log."""

    first: int
    until: int
    at: int

    @property
    def seq(self) -> int:
        """The number by which a reader acknowledges it."""
        return self.until - 1

    @property
    def kind(self) -> str:
        return GAP

    def as_map(self) -> dict[str, object]:
        return {"seq": self.seq, "kind": self.kind, **self._asdict()}


class LogPosition(NamedTuple):
    """A place in the log: a seq, and its approximate time in Unix milliseconds."""

    seq: int
    at: int


# What the log holds.
Logged: TypeAlias = Record | TimerRecord


def record_of(fields: Sequence[Any]) -> Logged:
    """Make a record from its fields in the log.

    Raises:
        TypeError: They are not the fields of a record.
    """
    if len(fields) > 1 and fields[1] == TIMER:
        return TimerRecord._make(fields)
    return Record(*fields)  # logs before schema 4 have no `devices`


class Subscription(NamedTuple):
    """The records that a reader gets: of these kinds, a gateway, a user (None: all).

    A gateway also gets the timers that it `runs`, whatever the rest says. With `users`,
    records of sessions are only those with which a user comes or leaves.
    """

    gateway: str | None
    kinds: frozenset[str]
    runs: str | None = None
    uid: Uid | None = None
    users: bool = False

    def wants(self, record: Logged) -> bool:
        if isinstance(record, TimerRecord) and record.gateway == self.runs:
            return True
        has_gateway = self.gateway in (None, record.gateway, record.from_gateway)
        if record.kind not in self.kinds or not has_gateway:
            return False
        if isinstance(record, TimerRecord):
            return self.uid is None
        is_of = self.uid is None or record.is_of(self.uid)
        return is_of and (not self.users or record.is_users)


class OnlineRow(NamedTuple):
    """A session's row of the online set on disk, from which a restart opens it again."""

    session: int
    uid: Uid
    start_ms: int  # of the state's clock
    conn: int | None
    gateway: str
    timeout: float | None  # its own; None: the gateway's


# The same as a plain tuple: a restart reads a million of them.
OnlineFields: TypeAlias = tuple[int, Uid, int, int | None, str, float | None]
