"""Everything an operator may set, defined once.

Each field carries its meaning, unit and bounds, and all else derives from that: the
checks, the flags' help, the names of the environment variables, and the tests that
hold `deploy/liveness.toml` and the table in `docs/configuration.md` to it. Where the
values come from is the business of `liveness.config.sources`.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal, get_args

from liveness.core.frames import MAX_NAME_BYTES
from liveness.core.timer_states import RETRY_POLICY, RetryPolicy
from liveness.core.uids import is_text
from liveness.errors import ConfigError

# `sockaddr_un.sun_path` is 108 bytes on Linux, the last of them a NUL.
MAX_SOCKET_PATH_BYTES: Final = 107
ADMIN_SOCKET: Final = "admin.sock"

# Of what a setting lists.
MOST_LISTED: Final = 1_000
ALLOWED: Final = (
    "users and @groups by name or number, separated by commas; own: the sidecar's user, "
    "@own: the socket's group, *: anyone"
)
TIES: Final = "NAME=USER, separated by commas"
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?")
_ALLOWED: Final = re.compile(rf"\*|@?{_USER.pattern}")

# What a name of a host may be in `http.hosts`; the names of no host are longer.
_HOST_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.ASCII | re.I)
MAX_HOST_NAME: Final = 253
MAX_HOSTS: Final = 100

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB


def _about(
    meaning: str,
    bounds: tuple[float, float] | None = None,
    unit: str = "",
    *,
    flag: str = "",
    check: Callable[[Any], None] | None = None,
) -> dict[str, Any]:
    """What a field says about itself; *check* raises ValueError for a bad value."""
    return {
        "meaning": meaning,
        "bounds": bounds,
        "unit": unit,
        "flag": flag,
        "check": check,
    }


def _fits_a_socket(path: Path) -> None:
    if path.name == ADMIN_SOCKET:
        raise ValueError(f"{ADMIN_SOCKET} is the name of the socket beside it")
    # Whichever of the two names is the longer one decides.
    length = max(len(os.fsencode(one)) for one in (path, path.with_name(ADMIN_SOCKET)))
    if length > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"with {ADMIN_SOCKET} beside it that takes {length} bytes, and the path of a "
            f"socket has room for {MAX_SOCKET_PATH_BYTES}; choose a shorter one"
        )


def _split_address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_whole = bool(colon and bare) and (":" in bare) == (bare != host)
    if not (is_whole and port.isascii() and port.isdigit() and int(port[:6]) <= 65535):
        raise ValueError("it must be HOST:PORT, the port 0 to 65535 (0: any free one)")
    return bare, int(port)


def _waits_ms(text: str) -> tuple[int, ...]:
    return tuple(round(float(wait) * 1000) for wait in text.split(","))


def _are_waits(text: str) -> None:
    try:
        waits_ms = _waits_ms(text)
        is_good = all(1_000 <= wait <= 86_400_000 for wait in waits_ms)
    except (ValueError, OverflowError):
        is_good = False
    if not is_good or len(waits_ms) > 100:
        raise ValueError(
            "it must be 1 to 100 numbers from 1 to 86400, seconds, separated by commas"
        )


def _is_a_hold(seconds: float) -> None:
    if 0 < seconds < 1:
        raise ValueError("it must be 0, for one timeout, or 1 to 86400 seconds")


def as_list(text: str) -> list[str]:
    """What a setting lists, separated by commas."""
    return [item.strip() for item in text.split(",") if item.strip()]


def _are_allowed(text: str) -> None:
    items = as_list(text)
    if len(items) > MOST_LISTED or not all(map(_ALLOWED.fullmatch, items)):
        raise ValueError(f"it must be {ALLOWED}")


def _are_ties(text: str) -> None:
    ties = [item.rpartition("=") for item in as_list(text)]
    is_good = all(
        is_text(name, MAX_NAME_BYTES) and _USER.fullmatch(user)
        for name, _, user in ties
    )
    if not is_good or len(ties) > MOST_LISTED:
        raise ValueError(f"it must be {TIES}")
    if len({name for name, _, _ in ties}) < len(ties):
        raise ValueError("it ties a name twice; one name is one user's")


def _is_group(text: str) -> None:
    if text and not _USER.fullmatch(text):
        raise ValueError("it must be a group's name or number, or empty")


def _is_an_address(address: str) -> None:
    _split_address(address)


def _names(text: str) -> list[str]:
    return [name.strip().lower() for name in text.split(",")] if text.strip() else []


def _are_names(text: str) -> None:
    names = _names(text)
    if len(names) > MAX_HOSTS or not all(
        len(name) <= MAX_HOST_NAME and _HOST_NAME.fullmatch(name) for name in names
    ):
        raise ValueError(
            f"it must be at most {MAX_HOSTS} names of hosts, without ports, separated "
            "by commas"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketSettings:
    """Where gateways and watchers connect."""

    path: Path = field(
        metadata=_about(
            "Unix socket of gateways and watchers; admin.sock is created beside it",
            unit=f"a path of at most {MAX_SOCKET_PATH_BYTES} bytes",
            flag="--socket",
            check=_fits_a_socket,
        )
    )

    group: str = field(
        default="",
        metadata=_about(
            "group of both sockets; empty: the group that new files get",
            unit="a group's name or number",
            check=_is_group,
        ),
    )
    mode: Literal["0600", "0660", "0666"] = field(
        default="0660",
        metadata=_about(
            "permissions of both sockets; the rights in access are checked after them"
        ),
    )

    @property
    def admin_path(self) -> Path:
        """The socket of the command line, beside the gateways'."""
        return self.path.with_name(ADMIN_SOCKET)


def _right(meaning: str) -> str:
    right: str = field(
        default="own,root,@own",
        metadata=_about(
            meaning, unit="users and @groups, separated by commas", check=_are_allowed
        ),
    )
    return right


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Which users of this host may do what, once they can connect."""

    gateways: str = _right("who may be a gateway")
    watchers: str = _right("who may be a watcher")
    everyone: str = _right("who may see everyone: scope all, and list of all gateways")
    admin: str = _right("who may use admin.sock, and so the command line")
    names: str = field(
        default="",
        metadata=_about(
            "names of gateways and watchers that only one user may use",
            unit=TIES,
            check=_are_ties,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Where metrics, health and timers are read, by whom, and how much they may ask for."""

    address: str = field(
        default="127.0.0.1:9874",
        metadata=_about(
            "address of metrics, health and timers",
            unit="HOST:PORT, other than loopback only with http.token_file; "
            "port 0: any free one",
            flag="--http",
            check=_is_an_address,
        ),
    )
    token_file: Path | None = field(
        default=None,
        metadata=_about(
            "file with the token that HTTP over TCP requires, except for metrics and "
            "health",
            unit="a path; empty: no token",
        ),
    )
    hosts: str = field(
        default="",
        metadata=_about(
            "host names that requests over TCP may use, besides addresses",
            unit="names separated by commas; empty: localhost and that of http.address",
            check=_are_names,
        ),
    )
    max_connections: int = field(
        default=100,
        metadata=_about(
            "most HTTP connections at a time, each for TCP and for admin.sock",
            (1, 10_000),
            "connections",
        ),
    )
    request_s: float = field(
        default=10.0,
        metadata=_about(
            "time for a request to arrive, for its answer to be read, and for a "
            "connection to be idle",
            (0.1, 600),
            "seconds",
        ),
    )
    max_header_bytes: int = field(
        default=16 * KIB,
        metadata=_about("largest head of a request", (KIB, MIB), "bytes"),
    )
    max_body_bytes: int = field(
        default=64 * KIB,
        metadata=_about("largest body of a request", (4 * KIB, 16 * MIB), "bytes"),
    )

    max_streams: int = field(
        default=32,
        metadata=_about(
            "most streaming answers at a time, over TCP and admin.sock together; never "
            "more than half of http.max_connections",
            (1, 1_000),
            "streams",
        ),
    )
    max_backlog: int = field(
        default=100_000,
        metadata=_about(
            "records by which the backlog of a reader of /v1/feed may grow",
            (100, 100_000_000),
            "records",
        ),
    )

    @property
    def streams(self) -> int:
        """The effective `max_streams`, which leave room for those who only ask."""
        return min(self.max_streams, max(1, self.max_connections // 2))

    @property
    def host(self) -> str:
        """The address's host, an IPv6 one without its brackets."""
        return _split_address(self.address)[0]

    @property
    def port(self) -> int:
        """The address's port; 0 for any free one."""
        return _split_address(self.address)[1]

    @property
    def names(self) -> frozenset[str]:
        """The host names that requests over TCP may use, in small letters."""
        return frozenset({"localhost", self.host.lower(), *_names(self.hosts)})

    @property
    def is_on_loopback(self) -> bool:
        """Whether nobody beyond this host can ask at the address."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name: where it leads is not ours to know beforehand


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """What is kept on disk, and for how long."""

    dir: Path = field(
        metadata=_about(
            "folder of the log, the cursors and the users online",
            unit="a path",
            flag="--state",
        )
    )
    retention_s: float = field(
        default=604_800.0,
        metadata=_about("how long a record is kept", (60, 31_622_400), "seconds"),
    )
    retention_bytes: int = field(
        default=4 * GIB,
        metadata=_about(
            "size of the log above which its oldest records are deleted",
            (16 * MIB, TIB),
            "bytes",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """How the sidecar speaks about itself, on stderr."""

    format: Literal["auto", "text", "json"] = field(
        default="auto",
        metadata=_about("form of the lines; auto: text on a terminal, JSON otherwise"),
    )
    level: Literal["debug", "info", "warning", "error"] = field(
        default="info", metadata=_about("the lowest level that is logged")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """How much one link, and all of them together, may ask for."""

    hello_s: float = field(
        default=5.0,
        metadata=_about("time that a new link has for its hello", (0.1, 60), "seconds"),
    )
    gateway_hold_s: float = field(
        default=60.0,
        metadata=_about(
            "longest that users of a mute or unread gateway are held",
            (1, 3600),
            "seconds",
        ),
    )
    max_frame_bytes: int = field(
        # A timer with all that it may carry takes 4.7 KB.
        default=MIB,
        metadata=_about("largest frame", (8 * KIB, 64 * MIB), "bytes"),
    )
    max_unfinished_bytes: int = field(
        default=64 * MIB,
        metadata=_about(
            "most bytes of incomplete frames, over all links; above it, the links with "
            "the oldest of them end; max_frame_bytes at least",
            (8 * KIB, 64 * GIB),
            "bytes",
        ),
    )
    max_batch: int = field(
        default=4_000, metadata=_about("most uids in one frame", (1, 100_000), "uids")
    )
    window: int = field(
        default=10_000,
        metadata=_about(
            "most unacknowledged records in flight on one link",
            (1, 1_000_000),
            "records",
        ),
    )
    max_replies: int = field(
        default=1_000,
        metadata=_about(
            "most replies that one link may leave unread", (1, 100_000), "replies"
        ),
    )
    max_reply_bytes: int = field(
        default=16 * MIB,
        metadata=_about(
            "most bytes of replies that one link may leave unread",
            (64 * KIB, GIB),
            "bytes",
        ),
    )
    max_unread_bytes: int = field(
        default=64 * MIB,
        metadata=_about(
            "most bytes of unread replies, over all links; above it, links that read "
            "nothing end; at twice as many, the link with the most ends",
            (64 * KIB, 64 * GIB),
            "bytes",
        ),
    )
    max_spool_bytes: int = field(
        default=256 * MIB,
        metadata=_about(
            "most bytes on disk of answers to list and /v1/users, all together; never "
            "more than they leave free",
            (64 * KIB, TIB),
            "bytes",
        ),
    )
    unread_s: float = field(
        default=30.0,
        metadata=_about(
            "time after which a link ends that reads nothing of its answers, or whose "
            "list finds no room; for a gateway limits.gateway_hold_s at least",
            (1, 3600),
            "seconds",
        ),
    )
    max_refused: int = field(
        default=1_000,
        metadata=_about(
            "most refused frames of one link within ten seconds",
            (1, 1_000_000),
            "frames",
        ),
    )
    max_links: int = field(
        default=1_000, metadata=_about("most links at a time", (1, 100_000), "links")
    )
    max_gateways: int = field(
        default=500,
        metadata=_about("most gateways connected at a time", (1, 100_000), "gateways"),
    )
    max_handshakes: int = field(
        default=200,
        metadata=_about(
            "most links at a time without a hello; above it, the oldest end",
            (1, 10_000),
            "links",
        ),
    )
    max_gateway_users: int = field(
        default=2_000_000,
        metadata=_about(
            "most users online through one gateway", (1, 100_000_000), "users"
        ),
    )
    max_users: int = field(
        default=5_000_000,
        metadata=_about("most users online", (1, 100_000_000), "users"),
    )
    max_names: int = field(
        default=10_000,
        metadata=_about(
            "most names of gateways and watchers with a stored cursor",
            (1, 1_000_000),
            "names",
        ),
    )
    pause_firing: int = field(
        default=10_000,
        metadata=_about(
            "offlines not yet on disk at which only 50 users a pass are judged; at "
            "twice as many none",
            (100, 1_000_000),
            "offlines",
        ),
    )
    pause_reading: int = field(
        default=30_000,
        metadata=_about(
            "records not yet on disk at which sockets are no longer read",
            (1_000, 10_000_000),
            "records",
        ),
    )
    tail: int = field(
        default=20_000,
        metadata=_about(
            "newest records kept in memory for live readers; a timer's counts once more "
            "for each 512 bytes of its payload",
            (1_000, 1_000_000),
            "records",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerSettings:
    """How timers are tried, and how many there may be."""

    run_timeout_s: float = field(
        default=RETRY_POLICY.run_ms / 1000,
        metadata=_about("time a gateway has to answer a timer", (1, 86_400), "seconds"),
    )
    retries: str = field(
        default=",".join(f"{wait_ms // 1000}" for wait_ms in RETRY_POLICY.waits_ms),
        metadata=_about(
            "waits before each further attempt of a timer that failed",
            unit="1 to 100 numbers from 1 to 86400, seconds, separated by commas",
            check=_are_waits,
        ),
    )
    max_live: int = field(
        default=20_000_000,
        metadata=_about(
            "most timers that are pending or fired", (1, 1_000_000_000), "timers"
        ),
    )
    max_loaded: int = field(
        default=1_000_000,
        metadata=_about(
            "most timers of the coming hour in memory",
            (10_000, 10_000_000),
            "timers",
        ),
    )
    max_pending: int = field(
        default=30_000,
        metadata=_about(
            "most timer orders not yet on disk, one more for each KiB that they carry; "
            "a gateway with more than its share is not read",
            (1_000, 10_000_000),
            "orders",
        ),
    )
    max_ended: int = field(
        default=10_000_000,
        metadata=_about(
            "ended timers above which the oldest are deleted before their retention "
            "ends",
            (0, 1_000_000_000),
            "timers",
        ),
    )

    @property
    def ladder(self) -> RetryPolicy:
        """How the attempts of a timer follow each other."""
        return RetryPolicy(round(self.run_timeout_s * 1000), _waits_ms(self.retries))


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """When too many users come due at once to be judged."""

    enabled: bool = field(
        default=False,
        metadata=_about(
            "whether users are held when too many of one gateway come due",
            unit="true or false",
        ),
    )
    share: float = field(
        default=0.5,
        metadata=_about(
            "share of a gateway's users that may come due within one revolution",
            (0.01, 0.99),
            "of the users",
        ),
    )
    least_users: int = field(
        default=1_000,
        metadata=_about(
            "users that a gateway must have for the guard to hold any",
            (1, 10_000_000),
            "users",
        ),
    )
    hold_s: float = field(
        default=0.0,
        metadata=_about(
            "longest that the guard holds a user; 0: one timeout",
            (0, 86_400),
            "seconds",
            check=_is_a_hold,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything an operator may set. Read once; units are in the names.

    Raises:
        ConfigError: A value is not one that its setting allows.
    """

    timeout_s: float = field(
        default=30.0,
        metadata=_about(
            "silence after which a user is offline, unless its gateway sets another",
            (1, 86_400),
            "seconds",
            flag="--timeout",
        ),
    )
    slots: int = field(
        default=30,
        metadata=_about(
            "slots of the wheel's first layer", (2, 3600), "slots", flag="--slots"
        ),
    )
    flush_s: float = field(
        default=0.0,
        metadata=_about(
            "how long a gateway may collect activity before it sends it; 0: one slot, "
            "at most 1 s",
            (0, 10),
            "seconds",
        ),
    )
    socket: SocketSettings
    access: AccessSettings = AccessSettings()
    http: HttpSettings = HttpSettings()
    state: StateSettings
    logging: LoggingSettings = LoggingSettings()
    timers: TimerSettings = TimerSettings()
    guard: GuardSettings = GuardSettings()
    limits: LimitSettings = LimitSettings()

    def __post_init__(self) -> None:
        for setting in SETTINGS:
            given = setting.value_in(self)
            try:
                setting.read(given)
            except ValueError as error:
                told = f"{setting.name} is {shown(given)}: {error}"
                raise ConfigError(told) from None
        if not (self.http.is_on_loopback or self.http.token_file):
            raise ConfigError(
                f"http.address is {shown(self.http.address)}: an address other than "
                "loopback needs a token; write one to a file and name that by "
                "http.token_file, or use 127.0.0.1, [::1] or localhost"
            )
        limits = self.limits
        if limits.max_unfinished_bytes < limits.max_frame_bytes:
            raise ConfigError(
                f"limits.max_unfinished_bytes is {limits.max_unfinished_bytes}: it must be "
                f"limits.max_frame_bytes ({limits.max_frame_bytes}) at least, as one frame "
                "may always be unfinished; raise it, or lower that"
            )

    @property
    def flush(self) -> float:
        """The effective `flush_s`: seconds, never above a quarter of the timeout."""
        asked = self.flush_s or min(self.timeout_s / self.slots, 1.0)
        return min(asked, self.timeout_s / 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: what its field says, and how a value of it is read."""

    section: str
    key: str
    kind: Any
    default: (
        Any  # dataclasses.MISSING where it depends on the user: liveness.config.paths
    )
    meaning: str
    bounds: tuple[float, float] | None
    unit: str
    flag: str
    check: Callable[[Any], None] | None

    @property
    def name(self) -> str:
        """The name in TOML, dotted."""
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def variable(self) -> str:
        """The name in the environment."""
        return "LIVENESS_" + self.name.replace(".", "_").upper()

    @property
    def allowed(self) -> str:
        """What a value must be, for a person: bounds and unit, or the choices."""
        if self.bounds is None:
            return self.unit or "one of " + ", ".join(get_args(self.kind))
        whole = "a whole number, " if self.kind is int else ""
        return f"{whole}{self.bounds[0]} to {self.bounds[1]} {self.unit}"

    def value_in(self, config: Config) -> object:
        """The value that *config* has."""
        holder = getattr(config, self.section) if self.section else config
        return getattr(holder, self.key)

    @property
    def is_path(self) -> bool:
        """Whether it is a path, or may be one."""
        return Path in (self.kind, *get_args(self.kind))

    @property
    def is_optional(self) -> bool:
        """Whether it may be None, which is written as an empty text."""
        return type(None) in get_args(self.kind)

    def parse(self, text: str) -> object:
        """Reads a value as it stands on the command line or in the environment.

        Raises:
            ValueError: It says what the value must be.
        """
        if self.kind is bool:
            return self.read({"true": True, "false": False}.get(text))
        if self.bounds is None:
            return self.read(text)
        try:
            number = self.kind(text)
        except ValueError:
            raise ValueError(f"it must be {self.allowed}") from None
        return self.read(number)

    def read(self, given: object) -> object:
        """Reads a typed value, strictly: `true` is no number, `4.0` no whole one.

        Raises:
            ValueError: It says what the value must be.
        """
        if self.is_optional and given in (None, ""):
            return None
        value: object
        if self.kind is bool:
            value = given if isinstance(given, bool) else None
        else:
            value = self._number(given) if self.bounds else self._text(given)
        if value is None:
            raise ValueError(f"it must be {self.allowed}")
        if self.check is not None:
            self.check(value)
        return value

    def _number(self, given: object) -> float | None:
        types = (int, float) if self.kind is float else (int,)
        if isinstance(given, bool) or not isinstance(given, types) or not self.bounds:
            return None
        # Before the conversion: an integer of TOML may be too large for a float.
        is_within = self.bounds[0] <= given <= self.bounds[1]
        return self.kind(given) if is_within else None

    def _text(self, given: object) -> str | Path | None:
        if self.is_path and isinstance(given, Path):
            given = str(given)
        if not isinstance(given, str):
            return None
        if self.is_path:
            return Path(given).absolute() if given and "\0" not in given else None
        choices = get_args(self.kind)
        return given if not choices or given in choices else None


def _settings() -> Iterator[Setting]:
    for outer in fields(Config):
        section = outer.name if is_dataclass(outer.type) else ""
        for one in fields(outer.type) if is_dataclass(outer.type) else (outer,):
            yield Setting(
                section=section,
                key=one.name,
                kind=one.type,
                default=one.default,
                **one.metadata,
            )


SETTINGS: Final = tuple(_settings())


def shown(given: object) -> str:
    """A value as an error shows it: on one line, however long it was."""
    try:
        text = repr(str(given) if isinstance(given, Path) else given)
    except ValueError:  # an integer of over 4,300 digits has no text
        return "a number beyond all bounds"
    return text if len(text) <= 60 else text[:57] + "…"
