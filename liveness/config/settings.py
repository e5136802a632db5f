"""All settings, each declared once, as a field of `Config` or of one of its sections.

Outlets have names, and any number of them the same fields (`outlet_settings`).

A field has the meaning, unit and bounds of its setting. The checks, the help of the flags
and the names of the environment variables derive from it, and tests compare
`deploy/liveness.toml` and `docs/configuration.md` with it. A field without them is a limit
that fits every host: operators cannot set it, tests can.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal

from liveness.config.checks import (
    ADMIN_SOCKET,
    MAX_SOCKET_PATH_BYTES,
    TIES,
    check_address,
    check_allowed,
    check_group,
    check_host_names,
    check_separator,
    check_socket_path,
    check_ties,
    check_waits,
    host_names,
    is_loopback,
    split_address,
    waits_ms,
)
from liveness.config.cluster import ClusterSettings
from liveness.config.outlet_settings import OUTLETS, KafkaSettings, WebhookSettings
from liveness.config.schema import (
    GIB,
    KIB,
    MIB,
    TIB,
    Setting,
    setting,
    settings_in,
)
from liveness.core.limits import Limits
from liveness.core.timer_states import RETRY_POLICY, RetryPolicy
from liveness.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketSettings:
    """Where gateways and watchers connect."""

    path: Path = setting(
        MISSING,
        "Unix socket of gateways and watchers; admin.sock is created beside it",
        unit=f"a path of at most {MAX_SOCKET_PATH_BYTES} bytes",
        flag="--socket",
        check=check_socket_path,
    )

    group: str = setting(
        "",
        "group of both sockets; empty: the group that new files get",
        unit="a group's name or number",
        check=check_group,
    )
    mode: Literal["0600", "0660", "0666"] = setting(
        "0660",
        "permissions of both sockets; the rights in access are checked after them",
    )

    @property
    def admin_path(self) -> Path:
        return self.path.with_name(ADMIN_SOCKET)


def _right(meaning: str) -> Any:
    return setting(
        "own,root,@own",
        meaning,
        unit="Unix users and @groups, separated by commas",
        check=check_allowed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """What each Unix user of this host may do, if the sockets' mode lets it connect."""

    gateways: str = _right("who may be a gateway")
    watchers: str = _right("who may be a watcher")
    everyone: str = _right("who may see everyone: scope all, and list of all gateways")
    admin: str = _right("who may use admin.sock, and so the command line")
    names: str = setting(
        "",
        "names of gateways and watchers that only one Unix user may use",
        unit=TIES,
        check=check_ties,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The address of HTTP, its token, and its limits."""

    address: str = setting(
        "127.0.0.1:9874",
        "address of metrics, health and timers",
        unit="HOST:PORT, other than loopback only with http.token_file; "
        "port 0: any free one",
        flag="--http",
        check=check_address,
    )
    token_file: Path | None = setting(
        None,
        "file with the token that HTTP over TCP requires, except for metrics and "
        "health",
        unit="a path; empty: no token",
    )
    hosts: str = setting(
        "",
        "host names that requests over TCP may use, besides addresses",
        unit="names separated by commas; empty: localhost and that of http.address",
        check=check_host_names,
    )
    # Each for TCP and for admin.sock: far more than browsers, Prometheus and commands use.
    max_connections: int = 100
    # For a request to arrive, for its answer to be read, and for a connection to be idle.
    request_s: float = 10.0
    max_header_bytes: int = 16 * KIB
    max_body_bytes: int = 64 * KIB
    # Streaming answers of both listeners; the other connections stay for requests.
    max_streams: int = 32
    # Records by which the backlog of a reader of /v1/feed may grow.
    max_backlog: int = 100_000

    @property
    def host(self) -> str:
        return split_address(self.address)[0]

    @property
    def port(self) -> int:
        return split_address(self.address)[1]

    @property
    def names(self) -> frozenset[str]:
        """The host names that requests over TCP may use, in lower case."""
        return frozenset({"localhost", self.host.lower(), *host_names(self.hosts)})

    @property
    def why_not_open(self) -> str | None:
        """Why HTTP may not be served at the address; None if it may."""
        if self.is_on_loopback or self.token_file:
            return None
        return (
            "an address other than loopback needs a token; write one to a file and name "
            "that by http.token_file, or use 127.0.0.1, [::1] or localhost"
        )

    @property
    def is_on_loopback(self) -> bool:
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """What is kept on disk, and for how long."""

    dir: Path = setting(
        MISSING,
        "folder of the log, the cursors and the users online",
        unit="a path",
        flag="--state",
    )
    retention_s: float = setting(
        604_800.0, "how long a record is kept", (60, 31_622_400), "seconds"
    )
    retention_bytes: int = setting(
        4 * GIB,
        "size of the log above which its oldest records are deleted",
        (16 * MIB, TIB),
        "bytes",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """The log lines on stderr: text on a terminal, JSON otherwise."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "the lowest level that is logged"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PresenceSettings:
    """What a uid stands for."""

    device_separator: str = setting(
        "",
        "separates a device from its user in a uid, so that records count the devices "
        "of each user; empty: each uid is a user",
        unit="1 to 3 characters, no digits",
        check=check_separator,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerSettings:
    """The attempts of timers, and how many timers there may be."""

    run_timeout_s: float = setting(
        RETRY_POLICY.attempt_ms / 1000,
        "time a gateway has to answer a timer",
        (1, 86_400),
        "seconds",
    )
    retries: str = setting(
        ",".join(f"{wait_ms // 1000}" for wait_ms in RETRY_POLICY.waits_ms),
        "waits before each further attempt of a timer that failed",
        unit="1 to 100 numbers from 1 to 86400, seconds, separated by commas",
        check=check_waits,
    )
    max_live: int = setting(
        20_000_000,
        "most timers that are pending or fired",
        (1, 1_000_000_000),
        "timers",
    )
    # Timers of the coming hour in memory: 130 MB. The others wait on disk for longer.
    max_loaded: int = 1_000_000

    @property
    def max_ended(self) -> int:
        """Ended timers above which the oldest are deleted before their retention ends."""
        return self.max_live // 2

    @property
    def retry_policy(self) -> RetryPolicy:
        return RetryPolicy(round(self.run_timeout_s * 1000), waits_ms(self.retries))


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """The storm guard: when it holds users that come due together."""

    enabled: bool = setting(
        False,
        "whether users are held when too many of one gateway come due",
        unit="true or false",
    )
    share: float = setting(
        0.5,
        "share of a gateway's users that may come due within one revolution",
        (0.01, 0.99),
        "of the users",
    )
    # Users that a gateway must have: of fewer, a share says nothing.
    least_users: int = 1_000
    # Longest that the guard holds a user; 0: one timeout, as after a fresh login.
    hold_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The values of all settings; units are in the names.

    Raises:
        ConfigError: A setting does not allow its value.
    """

    timeout_s: float = setting(
        30.0,
        "silence after which a user is offline, unless its gateway sets another",
        (1, 86_400),
        "seconds",
        flag="--timeout",
    )
    slots: int = setting(
        30, "slots of the wheel's first layer", (2, 3600), "slots", flag="--slots"
    )
    flush_s: float = setting(
        0.0,
        "how long a gateway may collect activity before it sends it; 0: one slot, "
        "at most 1 s",
        (0, 10),
        "seconds",
    )
    socket: SocketSettings
    access: AccessSettings = AccessSettings()
    http: HttpSettings = HttpSettings()
    state: StateSettings
    logging: LoggingSettings = LoggingSettings()
    presence: PresenceSettings = PresenceSettings()
    timers: TimerSettings = TimerSettings()
    guard: GuardSettings = GuardSettings()
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    # By name.
    webhooks: Mapping[str, WebhookSettings] = field(default_factory=dict)
    kafka: Mapping[str, KafkaSettings] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    # By name: where the value is from, unless it is the default.
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        by_name = {known.name: known for known in self.settings()}
        faults = []
        for name, known in by_name.items():
            given = known.value_in(self)
            try:
                known.read(given)
            except ValueError as error:
                faults.append(known.fault(given, error, self.sources.get(name, "")))
        for name, why in () if faults else self._conflicts():
            if name in by_name:
                known, source = by_name[name], self.sources.get(name, "")
                faults.append(known.fault(known.value_in(self), why, source))
            else:  # of [kafka.NAME.client]; its values may be secrets
                section = ".".join(name.split(".")[:3])
                faults.append(f"{name} ({self.sources.get(section, 'client')}): {why}")
        if faults:
            raise ConfigError(*faults)

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        """The settings that do not go with others: the name of each, and why."""
        if why := self.http.why_not_open:
            yield "http.address", why
        for key, why in self.cluster.faults():
            yield f"cluster.{key}", why
        for section in OUTLETS:
            for name, outlet in getattr(self, section).items():
                for key, why in outlet.faults():
                    yield f"{section}.{name}.{key}", why

    def settings(self) -> Iterator[Setting]:
        """All settings, including those of the configured outlets."""
        yield from SETTINGS
        for section in OUTLETS:
            for name in getattr(self, section):
                yield from outlet_settings(section, name)

    @property
    def flush(self) -> float:
        """The effective `flush_s`: seconds, never above a quarter of the timeout."""
        asked = self.flush_s or min(self.timeout_s / self.slots, 1.0)
        return min(asked, self.timeout_s / 4)


# By name: the sections, each a class of its settings.
SECTIONS: Final[dict[str, Any]] = {"": Config} | {
    outer.name: outer.type for outer in fields(Config) if is_dataclass(outer.type)
}
SETTINGS: Final = tuple(
    setting for name, table in SECTIONS.items() for setting in settings_in(table, name)
)


def outlet_settings(section: str, name: str) -> tuple[Setting, ...]:
    return tuple(settings_in(OUTLETS[section], f"{section}.{name}"))
