"""What frames mean: checked, and with every default filled in.

A frame here is a well-formed value of `framing`'s; whatever is wrong with it beyond that
is a `BadFrame`, whose text says what would be right. Unknown option keys and extra
elements are ignored: that is how the protocol grows.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeGuard

from liveness.core.framing import Frame
from liveness.core.records import (
    GAP,
    GATEWAY,
    KINDS,
    MOVED,
    OFFLINE,
    WATCHER,
    Ack,
    After,
    Answer,
    Cancel,
    Hello,
    HostTime,
    Login,
    Logout,
    Ping,
    Uid,
    Where,
)
from liveness.core.uids import is_natural, is_text, is_uid
from liveness.errors import Code

PROTOCOL: Final = 1
MAX_NAME_BYTES: Final = 64
MIN_TIMEOUT_S: Final = 1
MAX_TIMEOUT_S: Final = 86_400
MIN_PING_S: Final = 0.1
MAX_PING_S: Final = 60
MAX_KEY_BYTES: Final = 255
MIN_AFTER_S: Final = 0.1
MAX_AFTER_S: Final = 366 * 86_400
# Of a timer's payload, and of an answer's message.
MAX_TEXT_BYTES: Final = 4_096

# A connection said to be older than this (31 years) is taken to be this old, which
# keeps every stamp derived from it within its column.
MAX_AGE_S: Final = 1e9

# What `welcome.features` tells: the options and frames this version honours.
FEATURES: Final = (
    "ack", "after", "age", "began", "conn", "fresh", "kinds", "list", "ping", "scope",
    "timeout", "timers", "where",
)  # fmt: skip


class BadFrame(Exception):
    """A frame cannot be used; `conversation` makes a refusal of it."""

    def __init__(
        self,
        code: Code,
        message: str,
        index: int | None = None,
        limit: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.index, self.limit = code, index, limit


def parse_hello(frame: Frame) -> Hello:
    """Check a hello and fill in what it leaves out.

    Raises:
        BadFrame: It cannot be honoured; the code says why. Always fatal.
    """
    options = frame[1] if len(frame) > 1 else None
    if type(options) is not dict:
        raise _bad_hello("hello takes a map of options")
    protocol = options.get("protocol")
    if type(protocol) is not int:
        raise _bad_hello("protocol is missing; this is protocol 1")
    if protocol != PROTOCOL:
        raise BadFrame(
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
        clock=_clock(options),
    )


def parse_login(frame: Frame, max_batch: int) -> Login:
    """Read a `login`."""
    uids, options = _valid_uids(frame, max_batch), options_of(frame)
    timeout = options.get("timeout")
    if timeout is not None and not is_within(timeout, MIN_TIMEOUT_S, MAX_TIMEOUT_S):
        raise BadFrame(
            Code.BAD_OPTION,
            f"timeout is {timeout!r:.40}; it must be {MIN_TIMEOUT_S} to "
            f"{MAX_TIMEOUT_S} seconds",
        )
    age = options.get("age")
    if age is not None and not is_within(age, 0, float("inf")):
        raise BadFrame(
            Code.BAD_OPTION, f"age is {age!r:.40}; it must be 0 seconds or more"
        )
    age = float(min(age or 0, MAX_AGE_S))
    return Login(uids, _conns_of(frame, uids), timeout, age, _began_of(frame, uids))


def parse_logout(frame: Frame, max_batch: int) -> Logout:
    """Read a `logout`."""
    uids = _valid_uids(frame, max_batch)
    return Logout(uids, _conns_of(frame, uids))


def parse_where(frame: Frame, max_batch: int) -> Where:
    """Read a `where`."""
    return Where(_valid_uids(frame, max_batch))


def parse_ping(frame: Frame) -> Ping:
    """Read a `ping`."""
    if len(frame) < 2:
        raise BadFrame(Code.BAD_FRAME, 'a ping carries a value: ["ping", x]')
    return Ping(frame[1])


def parse_ack(frame: Frame, n: int) -> Ack:
    """Read an `ack`, frame number *n* of its link."""
    seq = frame[1] if len(frame) > 1 else None
    if not is_natural(seq):
        raise BadFrame(
            Code.BAD_OPTION, f"ack of {seq!r:.40}; it takes a record's seq, from 0"
        )
    return Ack(seq, n)


def parse_after(frame: Frame) -> After:
    """Read an `after`."""
    if len(frame) < 3:
        raise BadFrame(
            Code.BAD_FRAME,
            'a timer takes a key and the seconds until then: ["after", key, seconds]',
        )
    key, seconds, options = _key(frame[1]), frame[2], options_of(frame, 3)
    if not is_within(seconds, MIN_AFTER_S, MAX_AFTER_S):
        raise BadFrame(
            Code.BAD_OPTION,
            f"seconds is {seconds!r:.40}; it must be {MIN_AFTER_S} to {MAX_AFTER_S}",
        )
    payload, ext = options.get("payload"), options.get("ext")
    return After(
        key,
        float(seconds),
        None if payload is None else _text("payload", payload),
        None if ext is None else _key(ext, "ext"),
    )


def parse_cancel(frame: Frame) -> Cancel:
    """Read a `cancel`."""
    which = frame[1] if len(frame) > 1 else None
    if type(which) is not dict:
        raise BadFrame(
            Code.BAD_FRAME, 'cancel takes a map: ["cancel", {key}] or ["cancel", {ext}]'
        )
    key, ext = which.get("key"), which.get("ext")
    if (key is None) == (ext is None):
        raise BadFrame(Code.BAD_OPTION, "cancel takes a key or an ext: one, not both")
    if key is None:
        return Cancel(None, _key(ext, "ext"))
    return Cancel(_key(key), None)


def parse_done(frame: Frame) -> Answer:
    """Read a `done`."""
    if len(frame) < 2:
        raise BadFrame(Code.BAD_FRAME, 'done takes the key of a timer: ["done", key]')
    key, options = _key(frame[1]), options_of(frame, 3)
    message = frame[2] if len(frame) > 2 else None
    return Answer(
        key,
        True,
        None if message is None else _text("message", message),
        False,
        _answered_seq(options),
    )


def parse_fail(frame: Frame) -> Answer:
    """Read a `fail`."""
    if len(frame) < 3:
        raise BadFrame(
            Code.BAD_FRAME,
            'fail takes the key of a timer and why: ["fail", key, message]',
        )
    key, options = _key(frame[1]), options_of(frame, 3)
    message, final = _text("message", frame[2]), options.get("final")
    if final is not None and type(final) is not bool:
        raise BadFrame(
            Code.BAD_OPTION, f"final is {final!r:.40}; it must be true or false"
        )
    return Answer(key, False, message, final is True, _answered_seq(options))


def _key(value: object, what: str = "key") -> str:
    """A timer's name, or the one it shares with others."""
    if is_text(value, MAX_KEY_BYTES):
        return value
    raise BadFrame(
        Code.BAD_OPTION,
        f"{value!r:.80} is no {what}: a string of 1 to {MAX_KEY_BYTES} bytes without "
        "control characters",
    )


def _text(what: str, value: object) -> str:
    """What a timer carries, or an answer says."""
    if type(value) is not str:
        raise BadFrame(Code.BAD_OPTION, f"{what} is {value!r:.40}; it must be a string")
    size = len(value.encode())
    if size > MAX_TEXT_BYTES:
        raise BadFrame(
            Code.BAD_OPTION,
            f"{what} has {size} bytes; at most {MAX_TEXT_BYTES} are taken",
        )
    # SQLite's JSON, by which the log is read, would end the text there.
    if "\0" in value:
        raise BadFrame(Code.BAD_OPTION, f"{what} holds U+0000; leave it out")
    return value


def _answered_seq(options: dict[str, Any]) -> int | None:
    seq = options.get("seq")
    if seq is None or (is_natural(seq) and seq > 0):
        return seq
    raise BadFrame(
        Code.BAD_OPTION, f"seq is {seq!r:.40}; it must be a record's seq, from 1"
    )


def check_batch(uids: Sequence[object], max_batch: int) -> None:
    """Refuse more uids than a frame may carry."""
    if len(uids) > max_batch:
        raise BadFrame(
            Code.BAD_FRAME,
            f"{len(uids)} uids in one frame; welcome.max_batch is {max_batch}",
            limit="limits.max_batch",
        )


def _valid_uids(frame: Frame, max_batch: int) -> tuple[Uid, ...]:
    """The uids of a frame that is refused whole if one of them is bad."""
    if len(frame) < 2 or type(frame[1]) is dict:
        raise no_uids()
    uids = frame[1] if type(frame[1]) is tuple else (frame[1],)
    check_batch(uids, max_batch)
    for index, uid in enumerate(uids):
        if not is_uid(uid):
            raise BadFrame(Code.BAD_UID, bad_uid_text(uid), index)
    return uids


def _conns_of(frame: Frame, uids: Sequence[Uid]) -> Sequence[int | None]:
    conn = options_of(frame).get("conn")
    if type(frame[1]) is tuple:
        return conns_beside(uids, conn)
    return (one_conn(conn),)


def _began_of(frame: Frame, uids: Sequence[Uid]) -> Sequence[float | None] | None:
    """When each connection began; a number stands for all of them."""
    began = options_of(frame).get("began")
    if began is None:
        return None
    is_array = type(began) is tuple
    given = began if is_array else (began,)
    is_fit = not is_array or (type(frame[1]) is tuple and len(given) == len(uids))
    if is_fit and all(it is None or is_within(it, 0, float("inf")) for it in given):
        began_times = tuple(None if it is None else float(it) for it in given)
        return began_times if is_array else began_times * len(uids)
    raise BadFrame(
        Code.BAD_OPTION,
        f"began is {began!r:.40}; it must be seconds of CLOCK_MONOTONIC, from 0, or "
        "beside an array of uids an array of such, as long as the uids",
    )


def bad_uid_text(uid: object) -> str:
    """Say what is wrong with *uid*, and what would be right."""
    return (
        f"{uid!r:.80} is no uid: a string of 1 to 255 bytes without control "
        "characters, or an integer from 0 to 2^63-1"
    )


def no_uids() -> BadFrame:
    """The complaint about a frame without uids."""
    return BadFrame(Code.BAD_FRAME, "the second element is a uid or an array of uids")


def _bad_conn() -> BadFrame:
    return BadFrame(
        Code.BAD_OPTION,
        "conn is an integer from 0 to 2^63-1 beside one uid, and an array of such, "
        "as long as the uids, beside an array",
    )


def options_of(frame: Frame, place: int = 2) -> dict[str, Any]:
    """The options of a frame; none if there are none, or nil in their place."""
    options = frame[place] if len(frame) > place else None
    if options is None:
        return {}
    if type(options) is not dict:
        nth = "third" if place == 2 else "fourth"
        raise BadFrame(Code.BAD_FRAME, f"the {nth} element is a map of options")
    return options


def one_conn(conn: object) -> int | None:
    """The conn of a single uid."""
    if conn is None or is_natural(conn):
        return conn
    raise _bad_conn()


def conns_beside(uids: Sequence[object], conn: object) -> Sequence[int | None]:
    """The conn of each uid of an array; None for one that has none."""
    if conn is None:
        return (None,) * len(uids)
    if type(conn) is not tuple or len(conn) != len(uids):
        raise _bad_conn()
    if not all(one is None or is_natural(one) for one in conn):
        raise _bad_conn()
    return conn


def is_within(value: object, low: float, high: float) -> TypeGuard[float]:
    """Whether *value* is a finite number (no boolean) from *low* to *high*."""
    if type(value) is not int and type(value) is not float:
        return False
    # NaN compares false with everything; `high` may be infinite, a value may not.
    return low <= value <= high and value != float("inf")


def _bad_hello(message: str) -> BadFrame:
    return BadFrame(Code.BAD_HELLO, message)


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
    if not is_within(value, low, high):
        raise _bad_hello(f"{key} is {value!r:.40}; it must be {low} to {high} seconds")
    return float(value)


def _clock(options: dict[str, Any]) -> HostTime | None:
    clock = options.get("clock")
    if clock is None:
        return None
    if type(clock) is tuple and len(clock) == 2:
        monotonic_s, unix_s = clock
        if all(is_within(one, 0, float("inf")) for one in clock):
            return HostTime(float(monotonic_s), float(unix_s))
    raise _bad_hello(
        f"clock is {clock!r:.80}; it must be [seconds of CLOCK_MONOTONIC, Unix seconds]"
    )


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
