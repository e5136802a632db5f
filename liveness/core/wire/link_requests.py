"""What links ask for: each frame, checked, with its defaults filled in."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from liveness.core.records import GATEWAY, MOVED, OFFLINE, HostTime, Uid
from liveness.errors import Code


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame of a link: who it is, and what it wants to receive."""

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
    users: bool = False


class ActivityBatch(ABC):
    """Consecutive keepalives and messages of one link, in order.

    `conns` and `events` are as long as `uids`, whose items are not checked: any value.
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
class ListedActivity(ActivityBatch):
    """Activity in Python's lists.

    `first_n` is the number of the first frame; `batches` has the (position, length,
    number) of each frame that did not carry exactly one uid. With these `frame_at` finds
    any frame, without an object per event.
    """

    uids: list[Uid] = field(default_factory=list)
    conns: list[int | None] = field(default_factory=list)
    events: bytearray = field(default_factory=bytearray)
    first_n: int = 0
    batches: list[tuple[int, int, int]] = field(default_factory=list)

    def count(self, event: int) -> int:
        return self.events.count(event)

    def at(self, position: int) -> tuple[Uid, int | None, int]:
        return self.uids[position], self.conns[position], self.events[position]

    def frame_at(self, position: int) -> tuple[int, int]:
        before = bisect_right(self.batches, position, key=itemgetter(0))
        if not before:
            return self.first_n + position, 0
        start, length, n = self.batches[before - 1]
        if position < start + length:
            return n, position - start
        return n + 1 + position - (start + length), 0


class Login(NamedTuple):
    """Users logged in on these connections, `age` seconds ago.

    `began` is when each connection began, in seconds of the sender's CLOCK_MONOTONIC;
    None, for a connection or for all: the sender did not say.
    """

    uids: Sequence[Uid]
    conns: Sequence[int | None]
    timeout: float | None
    age: float
    began: Sequence[float | None] | None = None


class Logout(NamedTuple):
    """These connections ended in an orderly way."""

    uids: Sequence[Uid]
    conns: Sequence[int | None]


class Ack(NamedTuple):
    """The link has received every record up to `seq`.

    It has processed those up to `cursor`; None: all of them.
    """

    seq: int
    cursor: int | None = None


class Ping(NamedTuple):
    """Answer this once all earlier frames are applied and on disk."""

    payload: object


class Where(NamedTuple):
    """Which of these users are online, and through which gateway? `cluster`: on any host."""

    uids: Sequence[Uid]
    cluster: bool = False


@dataclass(frozen=True, slots=True)
class ListSessions:
    """List every session that the link may see."""


class After(NamedTuple):
    """Fire a timer in `seconds`; it replaces a live one of its key."""

    key: str
    seconds: float
    payload: str | None
    ext: str | None


class Cancel(NamedTuple):
    """Cancel the live timer of a key, or all of an `ext`; one of the two is None."""

    key: str | None
    ext: str | None


class Answer(NamedTuple):
    """The result of an attempt: done, or failed, perhaps for good (`final`).

    `seq` is the attempt's record; None: the latest attempt of that key.
    """

    key: str
    is_done: bool
    message: str | None
    final: bool
    seq: int | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A frame is refused, or the link itself."""

    code: Code
    message: str
    n: int
    fatal: bool
    frame: str | None = None
    index: int | None = None
    key: str | None = None  # of a timer that was not created
    limit: str | None = None  # the setting that was exceeded, for the metrics
    pid: int | None = None  # of the process that has the name now; None if unknown

    def as_frame(self) -> list[object]:
        shown: dict[str, object] = {
            "code": self.code.value,
            "message": self.message,
            "fatal": self.fatal,
            "n": self.n,
        }
        for name in ("frame", "index", "key", "pid"):
            if (value := getattr(self, name)) is not None:
                shown[name] = value
        return ["error", shown]


Request: TypeAlias = (
    Hello
    | ActivityBatch
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
