"""The settings of presence across hosts."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import SplitResult, urlsplit

from liveness.config.checks import ADDRESSES, as_list, check_addresses, split_address
from liveness.config.schema import setting
from liveness.core.wire.uids import MAX_NAME_BYTES, is_text

SCHEMES: Final = ("redis", "rediss")
REDIS_PORT: Final = 6379
_URL: Final = "redis://HOST:PORT or redis://HOST:PORT/NUMBER; rediss:// for TLS"
_PASSWORD_SIGN: Final = "@"  # follows a user and a password in an address


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    number = parts.path.removeprefix("/")
    is_good = (
        parts.scheme in SCHEMES
        and parts.hostname
        and (parts.port is None or parts.port > 0)
        and (not number or (number.isascii() and number.isdigit()))
        and not (parts.query or parts.fragment)
    )
    if not is_good:
        raise ValueError(f"it must be {_URL}")
    return parts


def _check_url(url: str) -> None:
    if not url:
        return
    if _PASSWORD_SIGN in url:
        raise ValueError(
            "it must not name a user or a password; use cluster.user and "
            "cluster.password_file"
        )
    try:
        _split(url)
    except ValueError:
        raise ValueError(f"it must be {_URL}, or empty") from None


def _check_nodes(text: str) -> None:
    if text:
        check_addresses(text)


def _check_name(name: str) -> None:
    if name and not is_text(name, MAX_NAME_BYTES):
        raise ValueError(
            f"it must be a name of 1 to {MAX_NAME_BYTES} bytes without control characters"
        )


def _check_prefix(prefix: str) -> None:
    if not is_text(prefix, 64) or {"{", "}", "*", "?", "["} & {*prefix}:
        raise ValueError("it must be 1 to 64 bytes, without {, }, *, ? and [")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Presence across hosts, on Redis or Valkey; off if neither url nor nodes is set."""

    url: str = setting(
        "",
        "the Redis or Valkey server that knows the users of all hosts",
        unit=f"{_URL}; empty: none",
        check=_check_url,
        hidden=_PASSWORD_SIGN,
    )
    nodes: str = setting(
        "",
        "some nodes of a Redis Cluster, in place of url",
        unit=f"{ADDRESSES}; empty: none",
        check=_check_nodes,
        hidden=_PASSWORD_SIGN,
    )
    host: str = setting(
        "",
        "name of this host, which no other host may have",
        unit=f"1 to {MAX_NAME_BYTES} bytes; empty: the host name",
        check=_check_name,
    )
    partitions: int = setting(
        16,
        "parts of the users, each a state of its own; one for each 100,000 users of all "
        "hosts; the same on all hosts",
        (1, 4_096),
        "partitions",
    )
    lease_s: float = setting(
        30.0,
        "time after which the users of a host that is silent go offline; the same on all "
        "hosts",
        (3, 3_600),
        "seconds",
    )
    linger_s: float = setting(
        0.02,
        "time for which changes gather into one call",
        (0.001, 10),
        "seconds",
    )
    prefix: str = setting(
        "lv",
        "what the keys begin with; another one is another cluster",
        unit="1 to 64 bytes",
        check=_check_prefix,
    )
    user: str = setting(
        "",
        "user of Redis' ACL",
        unit="a name; empty: the default user",
        check=_check_name,
    )
    password_file: Path | None = setting(
        None, "file with the password of that user", unit="a path; empty: no password"
    )
    tls: Literal["auto", "on"] = setting(
        "auto", "TLS; auto: if url begins with rediss://; on: also to nodes"
    )
    tls_ca_file: Path | None = setting(
        None,
        "certificates that vouch for the servers",
        unit="a path to PEM; empty: those of the system",
    )
    tls_cert_file: Path | None = setting(
        None,
        "certificate of this host, if the servers ask for one",
        unit="a path to PEM; empty: none",
    )
    tls_key_file: Path | None = setting(
        None,
        "its private key",
        unit="a path to PEM; empty: in tls_cert_file",
    )

    # How long readers find a change in the stream. One that was away for longer begins
    # with a new list, as it would after any hour of changes.
    keep_s: float = 3_600.0

    @property
    def is_on(self) -> bool:
        return bool(self.url or self.nodes)

    def faults(self) -> Iterator[tuple[str, str]]:
        """The settings that conflict with others: the key of each, and why."""
        if self.url and self.nodes:
            yield "nodes", "there is cluster.url, too; give only one of the two"
        if self.tls_key_file and not self.tls_cert_file:
            yield (
                "tls_key_file",
                "it is the key of a certificate; name that by cluster.tls_cert_file",
            )
        for key in ("tls_ca_file", "tls_cert_file"):
            if getattr(self, key) and not self.has_tls:
                yield (
                    key,
                    "connections are not encrypted; begin cluster.url with rediss://, "
                    'or set cluster.tls to "on"',
                )

    @property
    def has_tls(self) -> bool:
        return self.tls == "on" or self.url.startswith("rediss://")

    @property
    def servers(self) -> list[tuple[str, int]]:
        if self.nodes:
            return [split_address(node) for node in as_list(self.nodes)]
        parts = _split(self.url)
        return [(parts.hostname or "", parts.port or REDIS_PORT)]

    @property
    def database(self) -> int:
        return int(_split(self.url).path.removeprefix("/") or 0) if self.url else 0

    @property
    def host_name(self) -> str:
        return self.host or socket.gethostname()


def settings_of(cluster: str) -> ClusterSettings:
    """The settings of a reader that knows only where Redis is.

    Args:
        cluster: A URL, or some nodes.
    Raises:
        ValueError: It is neither.
    """
    if not cluster:
        raise ValueError(f"it must be {_URL}, or {ADDRESSES}")
    if "://" in cluster:
        _check_url(cluster)
        return ClusterSettings(url=cluster)
    check_addresses(cluster)
    return ClusterSettings(nodes=cluster)
