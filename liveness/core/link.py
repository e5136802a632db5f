"""One link's conversation: from frames to requests, or to refusals.

A link begins with `hello`; then each frame is checked, numbered from 1, and becomes
a request with its defaults filled in. Consecutive signs of life become one request,
however many frames they came in: that is the path nearly every frame takes, and it
makes no object per event.

A link that is refused fatally is closed: it gives nothing more, whatever is fed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from liveness.core.records import (
    EVENT_NUMBER,
    GAP,
    GATEWAY,
    KEEPALIVE,
    KINDS,
    LOGIN,
    LOGOUT,
    MESSAGE,
    MOVED,
    OFFLINE,
    WATCHER,
    Ack,
    Hello,
    ListSessions,
    Login,
    Logout,
    Ping,
    Refusal,
    Request,
    SignsOfLife,
    Uid,
    Where,
)
from liveness.core.uids import is_natural, is_text, is_uid
from liveness.core.wire import Frame, Reader
from liveness.errors import NOT_FATAL, Code, WireError

PROTOCOL: Final = 1
MAX_NAME_BYTES: Final = 64
MIN_TIMEOUT_S: Final = 1
MAX_TIMEOUT_S: Final = 86_400
MIN_PING_S: Final = 0.1
MAX_PING_S: Final = 60

# What `welcome.features` tells: the options and frames this version honours.
FEATURES: Final = (
    "ack", "after", "age", "conn", "fresh", "kinds", "list", "ping", "scope",
    "timeout", "where",
)  # fmt: skip

# Refusals are counted over this long; how many are too many is a setting.
REFUSED_WINDOW_S: Final = 10.0

_SIGNS: Final = {KEEPALIVE: EVENT_NUMBER[KEEPALIVE], MESSAGE: EVENT_NUMBER[MESSAGE]}
_EVENTS: Final = frozenset({LOGIN, LOGOUT, KEEPALIVE, MESSAGE})


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """What one link may do."""

    max_frame_bytes: int = 1_048_576
    max_batch: int = 4_000
    max_refused: int = 1_000


class _Bad(Exception):
    """A frame cannot be used; turned into a `Refusal` where its number is known."""

    def __init__(self, code: Code, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.code, self.index = code, index


class Link:
    """One connection from a gateway or watcher, as a state machine without I/O.

    Args:
        limits: What it may do.
    """

    def __init__(self, limits: LinkLimits) -> None:
        self.hello: Hello | None = None
        self.n = 0
        self.is_closed = False
        self._limits = limits
        self._reader = Reader(
            max_frame_bytes=limits.max_frame_bytes, max_batch=limits.max_batch
        )
        self._refused = 0
        self._window_began = 0.0
        self._run: SignsOfLife | None = None
        self._parsers: dict[str, Callable[[Frame], Request]] = {
            LOGIN: self._login,
            LOGOUT: self._logout,
            "ack": self._ack,
            "ping": self._ping,
            "where": self._where,
            "list": lambda _: ListSessions(),
        }

    def receive(self, data: bytes, now: float) -> Iterator[Request]:
        """Give what *data* asks for, in order, as far as it is complete.

        Args:
            data: Bytes as they came, in pieces of any size.
            now: Attended seconds, for the limit on refused frames.
        """
        if self.is_closed:
            return
        try:
            for frame in self._reader.feed(data):
                self.n += 1
                try:
                    request = self._request(frame)
                except _Bad as bad:
                    yield from self._flush()
                    yield self._refuse(bad, frame, now)
                    if self.is_closed:
                        return
                    continue
                if request is not None:
                    yield from self._flush()
                    yield request
        except WireError as error:
            self.n += 1
            yield from self._flush()
            yield self.close(error.code, str(error))
        yield from self._flush()

    def close(self, code: Code, message: str) -> Refusal:
        """End the link for *code*; return the refusal to send before closing."""
        self.is_closed = True
        return Refusal(code, message, self.n, fatal=True)

    def refuse(
        self,
        code: Code,
        message: str,
        now: float,
        *,
        n: int,
        frame: str,
        index: int | None = None,
    ) -> Refusal:
        """Refuse something of a frame that was taken already."""
        if self._counted(now) > self._limits.max_refused:
            return self._too_many()
        return Refusal(code, message, n, False, frame, index)

    # --- refusals -------------------------------------------------------------

    def _refuse(self, bad: _Bad, frame: Frame, now: float) -> Refusal:
        name = frame[0] if frame and type(frame[0]) is str else None
        if name is not None and len(name) > MAX_NAME_BYTES:
            name = name[:MAX_NAME_BYTES]
        fatal = bad.code not in NOT_FATAL
        if fatal:
            self.is_closed = True
        elif self._counted(now) > self._limits.max_refused:
            return self._too_many()
        return Refusal(bad.code, str(bad), self.n, fatal, name, bad.index)

    def _counted(self, now: float) -> int:
        if now - self._window_began > REFUSED_WINDOW_S:
            self._window_began, self._refused = now, 0
        self._refused += 1
        return self._refused

    def _too_many(self) -> Refusal:
        return self.close(
            Code.OVERLOADED,
            f"more than {self._limits.max_refused} frames were refused within "
            f"{REFUSED_WINDOW_S:.0f} s; mend the sender, then connect anew",
        )

    # --- frames ---------------------------------------------------------------

    def _request(self, frame: Frame) -> Request | None:
        """One frame as a request; None if it was added to the run of signs."""
        name = frame[0] if frame else None
        if self.hello is None:
            if name != "hello":
                raise _Bad(
                    Code.NOT_HELLO,
                    f'the first frame must be ["hello", {{...}}], not {name!r:.80}',
                )
            self.hello = _hello(frame)
            return self.hello
        if type(name) is not str:
            raise _Bad(Code.BAD_FRAME, "a frame begins with its name, a string")
        if name in _EVENTS and self.hello.role == WATCHER:
            raise _Bad(
                Code.BAD_FRAME,
                "a watcher sends no events; say hello with role gateway to send them",
            )
        event = _SIGNS.get(name)
        if event is not None:
            self._sign(event, frame)
            return None
        parser = self._parsers.get(name)
        if parser is None:
            if name == "hello":
                raise _Bad(Code.BAD_FRAME, "a second hello; connect anew for another")
            raise _Bad(
                Code.UNKNOWN_FRAME,
                f"no frame is called {name!r:.80}; welcome.features tells what is",
            )
        return parser(frame)

    def _sign(self, event: int, frame: Frame) -> None:
        uids: Any = frame[1] if len(frame) > 1 else None
        conn = None
        if len(frame) > 2 and frame[2] is not None:
            conn = _options(frame).get("conn")
        run = self._run
        if type(uids) is tuple:
            self._check_batch(uids)
            conns = _conns(conn, uids)
            if run is None:
                run = self._begin_run()
            if len(uids) != 1:
                run.batches.append((len(run.uids), len(uids)))
            run.uids.extend(uids)
            run.conns.extend(conns)
            run.events.extend(bytes([event]) * len(uids))
            return
        if len(frame) < 2 or type(uids) is dict:
            raise _no_uids()
        if conn is not None and not is_natural(conn):
            raise _bad_conn()
        if run is None:
            run = self._begin_run()
        run.uids.append(uids)
        run.conns.append(conn)
        run.events.append(event)

    def _begin_run(self) -> SignsOfLife:
        self._run = SignsOfLife([], [], bytearray(), self.n, [])
        return self._run

    def _flush(self) -> Iterator[Request]:
        if self._run is not None:
            run, self._run = self._run, None
            yield run

    def _login(self, frame: Frame) -> Login:
        uids, options = self._uids(frame), _options(frame)
        timeout = options.get("timeout")
        if timeout is not None and not _is_within(
            timeout, MIN_TIMEOUT_S, MAX_TIMEOUT_S
        ):
            raise _Bad(
                Code.BAD_OPTION,
                f"timeout is {timeout!r:.40}; it must be {MIN_TIMEOUT_S} to "
                f"{MAX_TIMEOUT_S} seconds",
            )
        age = options.get("age")
        if age is not None and not _is_within(age, 0, float("inf")):
            raise _Bad(
                Code.BAD_OPTION, f"age is {age!r:.40}; it must be 0 seconds or more"
            )
        return Login(uids, self._conns_of(frame, uids), timeout, float(age or 0))

    def _logout(self, frame: Frame) -> Logout:
        uids = self._uids(frame)
        return Logout(uids, self._conns_of(frame, uids))

    def _where(self, frame: Frame) -> Where:
        return Where(self._uids(frame))

    def _ping(self, frame: Frame) -> Ping:
        if len(frame) < 2:
            raise _Bad(Code.BAD_FRAME, 'a ping carries a value: ["ping", x]')
        return Ping(frame[1])

    def _ack(self, frame: Frame) -> Ack:
        assert self.hello is not None
        if not self.hello.ack:
            raise _Bad(Code.BAD_FRAME, "this link said ack: false, so there is none")
        seq = frame[1] if len(frame) > 1 else None
        if not is_natural(seq):
            raise _Bad(
                Code.BAD_OPTION, f"ack of {seq!r:.40}; it takes a record's seq, from 0"
            )
        return Ack(seq, self.n)

    # --- arguments ------------------------------------------------------------

    def _check_batch(self, uids: Sequence[object]) -> None:
        if len(uids) > self._limits.max_batch:
            raise _Bad(
                Code.BAD_FRAME,
                f"{len(uids)} uids in one frame; welcome.max_batch is "
                f"{self._limits.max_batch}",
            )

    def _uids(self, frame: Frame) -> tuple[Uid, ...]:
        """The uids of a frame that is refused whole if one of them is bad."""
        if len(frame) < 2 or type(frame[1]) is dict:
            raise _no_uids()
        uids = frame[1] if type(frame[1]) is tuple else (frame[1],)
        self._check_batch(uids)
        for index, uid in enumerate(uids):
            if not is_uid(uid):
                raise _Bad(Code.BAD_UID, bad_uid_text(uid), index)
        return uids

    def _conns_of(self, frame: Frame, uids: Sequence[Uid]) -> Sequence[int | None]:
        conn = _options(frame).get("conn")
        if type(frame[1]) is tuple:
            return _conns(conn, uids)
        if conn is not None and not is_natural(conn):
            raise _bad_conn()
        return (conn,)


def bad_uid_text(uid: object) -> str:
    """Say what is wrong with *uid*, and what would be right."""
    return (
        f"{uid!r:.80} is no uid: a string of 1 to 255 bytes without control "
        "characters, or an integer from 0 to 2^63-1"
    )


def _no_uids() -> _Bad:
    return _Bad(Code.BAD_FRAME, "the second element is a uid or an array of uids")


def _bad_conn() -> _Bad:
    return _Bad(
        Code.BAD_OPTION,
        "conn is an integer from 0 to 2^63-1 beside one uid, and an array of such, "
        "as long as the uids, beside an array",
    )


def _options(frame: Frame) -> dict[str, Any]:
    options = frame[2] if len(frame) > 2 else None
    if options is None:
        return {}
    if type(options) is not dict:
        raise _Bad(Code.BAD_FRAME, "the third element is a map of options")
    return options


def _conns(conn: object, uids: Sequence[object]) -> Sequence[int | None]:
    """The conn of each uid of an array."""
    if conn is None:
        return (None,) * len(uids)
    if type(conn) is not tuple or len(conn) != len(uids):
        raise _bad_conn()
    if not all(one is None or is_natural(one) for one in conn):
        raise _bad_conn()
    return conn


def _is_within(value: object, low: float, high: float) -> bool:
    """Whether *value* is a finite number (no boolean) from *low* to *high*."""
    if type(value) is not int and type(value) is not float:
        return False
    # NaN compares false with everything; `high` may be infinite, a value may not.
    return low <= value <= high and value != float("inf")


def _hello(frame: Frame) -> Hello:
    """Check a hello and fill in what it leaves out.

    Raises:
        _Bad: It cannot be honoured; the code says why. Always fatal.
    """
    options = frame[1] if len(frame) > 1 else None
    if type(options) is not dict:
        raise _bad_hello("hello takes a map of options")
    protocol = options.get("protocol")
    if type(protocol) is not int:
        raise _bad_hello("protocol is missing; this is protocol 1")
    if protocol != PROTOCOL:
        raise _Bad(
            Code.UNSUPPORTED_PROTOCOL,
            f"protocol {protocol} is not spoken here; {PROTOCOL} is",
        )
    name = options.get("name")
    if not is_text(name, MAX_NAME_BYTES):
        raise _bad_hello(
            f"name is {name!r:.80}; it must be a string of 1 to {MAX_NAME_BYTES} bytes "
            "without control characters"
        )
    role = _choice(options, "role", (GATEWAY, WATCHER), GATEWAY)
    after = options.get("after")
    log = options.get("log")
    if after is not None and not is_natural(after):
        raise _bad_hello(f"after is {after!r:.40}; it must be a seq, from 0")
    if log is not None and type(log) is not str:
        raise _bad_hello("log is the string that welcome.log was")
    if after and log is None:
        raise _bad_hello("after needs log, the id of the log that it belongs to")
    fresh = _flag(options, "fresh", False)
    if fresh and role == WATCHER:
        raise _bad_hello("fresh is a gateway's; a watcher holds no connections")
    return Hello(
        name=name,
        role=role,
        timeout=_seconds(options, "timeout", MIN_TIMEOUT_S, MAX_TIMEOUT_S),
        after=after,
        log=log,
        scope=_choice(options, "scope", ("own", "all"), "own"),
        kinds=_kinds(options, role),
        ack=_flag(options, "ack", True),
        ping=_seconds(options, "ping", MIN_PING_S, MAX_PING_S),
        fresh=fresh,
    )


def _bad_hello(message: str) -> _Bad:
    return _Bad(Code.BAD_HELLO, message)


def _choice(
    options: dict[str, Any], key: str, known: tuple[str, ...], default: str
) -> str:
    value = options.get(key)
    if value is None:
        return default
    if value not in known:
        raise _bad_hello(f"{key} is {value!r:.40}; it must be {' or '.join(known)}")
    return str(value)


def _flag(options: dict[str, Any], key: str, default: bool) -> bool:
    value = options.get(key)
    if value is None:
        return default
    if type(value) is not bool:
        raise _bad_hello(f"{key} is {value!r:.40}; it must be true or false")
    return value


def _seconds(
    options: dict[str, Any], key: str, low: float, high: float
) -> float | None:
    value = options.get(key)
    if value is None:
        return None
    if not _is_within(value, low, high):
        raise _bad_hello(f"{key} is {value!r:.40}; it must be {low} to {high} seconds")
    return float(value)


def _kinds(options: dict[str, Any], role: str) -> frozenset[str]:
    kinds = options.get("kinds")
    if kinds is None:
        return frozenset(KINDS if role == WATCHER else (OFFLINE, MOVED))
    known = (*KINDS, GAP)
    if type(kinds) is not tuple or not all(kind in known for kind in kinds):
        raise _bad_hello(
            f"kinds is {kinds!r:.80}; it must be an array of {', '.join(known)}"
        )
    return frozenset(kinds)
