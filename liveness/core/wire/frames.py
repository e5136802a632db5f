"""What frames mean: each is checked, and its defaults are filled in.

A frame here is a well-formed value from `framing`. Any other fault raises a `WireError`,
whose text says what would be right; `conversation` turns it into a refusal. Unknown option
keys and extra elements are ignored, so that the protocol can grow.
"""

from collections.abc import Sequence
from typing import Any, Final

from liveness.core.records import (
    GAP,
    GATEWAY,
    KINDS,
    MOVED,
    OFFLINE,
    WATCHER,
    HostTime,
    Uid,
)
from liveness.core.wire.framing import Frame
from liveness.core.wire.link_requests import (
    Ack,
    After,
    Answer,
    Cancel,
    Hello,
    Login,
    Logout,
    Ping,
    Where,
)
from liveness.core.wire.uids import (
    MAX_NAME_BYTES,
    MAX_TIMEOUT_S,
    MIN_TIMEOUT_S,
    bad_uid_text,
    is_natural,
    is_text,
    is_uid,
    is_within,
)
from liveness.errors import Code, WireError

PROTOCOL: Final = 1
MIN_PING_S: Final = 0.1
MAX_PING_S: Final = 60
MAX_KEY_BYTES: Final = 255
MIN_AFTER_S: Final = 0.1
MAX_AFTER_S: Final = 366 * 86_400
# For a timer's payload, and an answer's message.
MAX_TEXT_BYTES: Final = 4_096

# A connection counts as at most this old (31 years), so that each stamp derived from its
# age fits the column.
MAX_AGE_S: Final = 1e9

# A watcher has no users of its own, so `own` would be nothing.
DEFAULT_SCOPE: Final = {GATEWAY: "own", WATCHER: "all"}

# What `welcome.features` lists: the options and frames of this version. `scope-all` stands
# for the default scope of a watcher, which was `own`, and `cursor` for that of an `ack`.
FEATURES: Final = (
    "ack", "after", "age", "began", "conn", "cursor", "fresh", "kinds", "list", "ping",
    "scope", "scope-all", "timeout", "timers", "users", "where",
)  # fmt: skip
# Listed too where presence across hosts is configured: `where` has an option of this name.
CLUSTER: Final = "cluster"


def parse_hello(frame: Frame) -> Hello:
    """Check a hello, and fill in its defaults.

    Raises:
        WireError: It cannot be accepted; the code says why. Always fatal.
    """
    options = frame[1] if len(frame) > 1 else None
    if type(options) is not dict:
        raise _bad_hello("hello takes a map of options")
    protocol = options.get("protocol")
    if type(protocol) is not int:
        raise _bad_hello("protocol is missing; this is protocol 1")
    if protocol != PROTOCOL:
        raise WireError(
            Code.UNSUPPORTED_PROTOCOL,
            f"protocol {protocol} is not supported; this is protocol {PROTOCOL}",
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
        raise _bad_hello("log must be a string, the one from welcome.log")
    if after and log is None:
        raise _bad_hello("after needs log, the id of the log that it belongs to")
    fresh = _flag(options, "fresh", Code.BAD_HELLO)
    if fresh and role == WATCHER:
        raise _bad_hello("fresh is for gateways; a watcher holds no connections")
    users = _flag(options, "users", Code.BAD_HELLO)
    if users and role == GATEWAY:
        raise _bad_hello(
            "users is for watchers; a gateway has to close each of its connections"
        )
    return Hello(
        name=name,
        role=role,
        timeout=_timeout(options, Code.BAD_HELLO),
        after=after,
        log=log,
        scope=_choice(options, "scope", ("own", "all"), DEFAULT_SCOPE[role]),
        kinds=_kinds(options, role),
        ack=_flag(options, "ack", Code.BAD_HELLO, default=True),
        ping=_seconds(options, "ping", MIN_PING_S, MAX_PING_S, Code.BAD_HELLO),
        fresh=fresh,
        clock=_clock(options),
        users=users,
    )


def claimed_name(frame: Frame) -> tuple[str, str] | None:
    """The role and name in a hello, which may be bad otherwise; None without a name."""
    options = frame[1] if len(frame) > 1 else None
    if type(options) is not dict or not is_text(options.get("name"), MAX_NAME_BYTES):
        return None
    role = WATCHER if options.get("role") == WATCHER else GATEWAY
    return role, options["name"]


def parse_login(frame: Frame, max_batch: int) -> Login:
    uids, options = _valid_uids(frame, max_batch), options_of(frame)
    timeout = _timeout(options, Code.BAD_OPTION)
    age = options.get("age")
    if age is not None and not is_within(age, 0, float("inf")):
        raise _bad_option(f"age is {age!r:.40}; it must be 0 seconds or more")
    age = float(min(age or 0, MAX_AGE_S))
    return Login(uids, conns_of(frame, uids), timeout, age, _began_of(frame, uids))


def parse_logout(frame: Frame, max_batch: int) -> Logout:
    uids = _valid_uids(frame, max_batch)
    return Logout(uids, conns_of(frame, uids))


def parse_where(frame: Frame, max_batch: int) -> Where:
    uids = _valid_uids(frame, max_batch)
    # Earlier versions ignored everything behind the uids, so only a map is looked at.
    options = frame[2] if len(frame) > 2 and type(frame[2]) is dict else {}
    return Where(uids, _flag(options, CLUSTER, Code.BAD_OPTION))


def parse_ping(frame: Frame) -> Ping:
    if len(frame) < 2:
        raise WireError(Code.BAD_FRAME, 'a ping carries a value: ["ping", x]')
    return Ping(frame[1])


def parse_ack(frame: Frame) -> Ack:
    seq = frame[1] if len(frame) > 1 else None
    if not is_natural(seq):
        raise _bad_option(f"ack of {seq!r:.40}; it takes a record's seq, from 0")
    cursor = frame[2] if len(frame) > 2 else None
    if cursor is not None and not (is_natural(cursor) and cursor <= seq):
        raise _bad_option(
            f"ack of {seq} with the cursor {cursor!r:.40}; a cursor is 0 to {seq}, or nil"
        )
    return Ack(seq, cursor)


def parse_after(frame: Frame) -> After:
    if len(frame) < 3:
        raise WireError(
            Code.BAD_FRAME,
            'a timer takes a key and the seconds until then: ["after", key, seconds]',
        )
    key, seconds, options = _key(frame[1]), frame[2], options_of(frame, 3)
    if not is_within(seconds, MIN_AFTER_S, MAX_AFTER_S):
        raise _bad_option(
            f"seconds is {seconds!r:.40}; it must be {MIN_AFTER_S} to {MAX_AFTER_S}"
        )
    payload, ext = options.get("payload"), options.get("ext")
    return After(
        key,
        float(seconds),
        None if payload is None else _text("payload", payload),
        None if ext is None else _key(ext, "ext"),
    )


def parse_cancel(frame: Frame) -> Cancel:
    which = frame[1] if len(frame) > 1 else None
    if type(which) is not dict:
        raise WireError(
            Code.BAD_FRAME, 'cancel takes a map: ["cancel", {key}] or ["cancel", {ext}]'
        )
    key, ext = which.get("key"), which.get("ext")
    if (key is None) == (ext is None):
        raise _bad_option("cancel takes a key or an ext: one, not both")
    if key is None:
        return Cancel(None, _key(ext, "ext"))
    return Cancel(_key(key), None)


def parse_answer(frame: Frame) -> Answer:
    """Check a done, or a fail, which must have a message."""
    is_done = frame[0] == "done"
    if len(frame) < (2 if is_done else 3):
        raise WireError(
            Code.BAD_FRAME,
            'done takes the key of a timer: ["done", key]'
            if is_done
            else 'fail takes the key of a timer and why: ["fail", key, message]',
        )
    key, options = _key(frame[1]), options_of(frame, 3)
    message = frame[2] if len(frame) > 2 else None
    if not is_done or message is not None:
        message = _text("message", message)
    final = not is_done and _flag(options, "final", Code.BAD_OPTION)
    return Answer(key, is_done, message, final, _answered_seq(options))


def _key(value: object, what: str = "key") -> str:
    if is_text(value, MAX_KEY_BYTES):
        return value
    raise _bad_option(
        f"{value!r:.80} is no {what}: a string of 1 to {MAX_KEY_BYTES} bytes without "
        "control characters",
    )


def _text(what: str, value: object) -> str:
    if type(value) is not str:
        raise _bad_option(f"{what} is {value!r:.40}; it must be a string")
    size = len(value.encode())
    if size > MAX_TEXT_BYTES:
        raise _bad_option(
            f"{what} has {size} bytes; at most {MAX_TEXT_BYTES} are taken"
        )
    # SQLite's JSON functions, which read the log, would end the text there.
    if "\0" in value:
        raise _bad_option(f"{what} holds U+0000; leave it out")
    return value


def _answered_seq(options: dict[str, Any]) -> int | None:
    seq = options.get("seq")
    if seq is None or (is_natural(seq) and seq > 0):
        return seq
    raise _bad_option(f"seq is {seq!r:.40}; it must be a record's seq, from 1")


def uids_of(frame: Frame, max_batch: int) -> tuple[Any, ...]:
    if len(frame) < 2 or type(frame[1]) is dict:
        raise WireError(
            Code.BAD_FRAME, "the second element is a uid or an array of uids"
        )
    uids = frame[1] if type(frame[1]) is tuple else (frame[1],)
    if len(uids) > max_batch:
        raise WireError(
            Code.BAD_FRAME,
            f"{len(uids)} uids in one frame; welcome.max_batch is {max_batch}",
            limit="limits.max_batch",
        )
    return uids


def _valid_uids(frame: Frame, max_batch: int) -> tuple[Uid, ...]:
    """Return a frame's uids; a bad one refuses the whole frame."""
    uids = uids_of(frame, max_batch)
    for index, uid in enumerate(uids):
        if not is_uid(uid):
            raise WireError(Code.BAD_UID, bad_uid_text(uid), index=index)
    return uids


def conns_of(frame: Frame, uids: Sequence[object]) -> Sequence[int | None]:
    """Return the conn of each uid of a frame; None for a uid without one."""
    conn = options_of(frame).get("conn")
    if conn is None:
        return (None,) * len(uids)
    if type(frame[1]) is not tuple:
        if is_natural(conn):
            return (conn,)
        raise _bad_conn(conn)
    if type(conn) is not tuple or len(conn) != len(uids):
        raise _bad_conn()
    for index, number in enumerate(conn):
        if number is not None and not is_natural(number):
            raise _bad_conn(number, f" {index} of the array (from 0)")
    return conn


def _began_of(frame: Frame, uids: Sequence[Uid]) -> Sequence[float | None] | None:
    """When each connection of a login began; one number is for all of them."""
    began = options_of(frame).get("began")
    if began is None:
        return None
    is_array = type(began) is tuple
    given = began if is_array else (began,)
    is_fit = not is_array or (type(frame[1]) is tuple and len(given) == len(uids))
    infinity = float("inf")
    if is_fit and all(time is None or is_within(time, 0, infinity) for time in given):
        began_times = tuple(None if time is None else float(time) for time in given)
        return began_times if is_array else began_times * len(uids)
    raise _bad_option(
        f"began is {began!r:.40}; it must be seconds of CLOCK_MONOTONIC, from 0, or, for "
        "an array of uids, an array of them of the same length",
    )


def _bad_conn(conn: object = None, place: str = "") -> WireError:
    if type(conn) is float:
        # Encoders of some languages write every large number so.
        return _bad_option(
            f"conn{place} is {conn:g}, a float; it must be an integer. Many encoders write "
            "large numbers as doubles, which round them: choose conns below 2^53, and "
            "encode them as 64-bit integers (in JavaScript, BigInt)",
        )
    return _bad_option(
        "conn must be an integer from 0 to 2^63-1 or, for an array of uids, an array of "
        "them of the same length",
    )


def options_of(frame: Frame, place: int = 2) -> dict[str, Any]:
    """Return a frame's options; an empty map if they are left out or nil.

    In some languages an empty map is written as an empty array.
    """
    options = frame[place] if len(frame) > place else None
    if options is None or options == ():
        return {}
    if type(options) is not dict:
        nth = "third" if place == 2 else "fourth"
        raise WireError(Code.BAD_FRAME, f"the {nth} element is a map of options")
    return options


def _bad_hello(message: str) -> WireError:
    return WireError(Code.BAD_HELLO, message)


def _bad_option(message: str) -> WireError:
    return WireError(Code.BAD_OPTION, message)


def _choice(
    options: dict[str, Any], key: str, known: tuple[str, ...], default: str
) -> str:
    value = options.get(key)
    if value is None:
        return default
    if value not in known:
        raise _bad_hello(f"{key} is {value!r:.40}; it must be {' or '.join(known)}")
    return str(value)


def _flag(
    options: dict[str, Any], key: str, code: Code, *, default: bool = False
) -> bool:
    value = options.get(key)
    if value is None:
        return default
    if type(value) is not bool:
        raise WireError(code, f"{key} is {value!r:.40}; it must be true or false")
    return value


def _timeout(options: dict[str, Any], code: Code) -> float | None:
    return _seconds(options, "timeout", MIN_TIMEOUT_S, MAX_TIMEOUT_S, code)


def _seconds(
    options: dict[str, Any], key: str, low: float, high: float, code: Code
) -> float | None:
    value = options.get(key)
    if value is None:
        return None
    if not is_within(value, low, high):
        message = f"{key} is {value!r:.40}; it must be {low} to {high} seconds"
        raise WireError(code, message)
    return float(value)


def _clock(options: dict[str, Any]) -> HostTime | None:
    clock = options.get("clock")
    if clock is None:
        return None
    if type(clock) is tuple and len(clock) == 2:
        monotonic_s, unix_s = clock
        if all(is_within(seconds, 0, float("inf")) for seconds in clock):
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
