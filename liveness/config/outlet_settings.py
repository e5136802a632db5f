"""The settings of outlets that have names: `[webhooks.NAME]` and `[kafka.NAME]`.

They are set in the settings file only, as flags and variables have no place for a name.
"""

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

from liveness.config.checks import (
    ADDRESSES,
    as_list,
    check_addresses,
    is_loopback,
)
from liveness.config.schema import setting, shown
from liveness.core.records import KINDS, SESSION_KINDS
from liveness.core.sessions.damping import MOST_SETTLE_S

OUTLET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)
NAME_RULE: Final = "1 to 32 of a-z, 0-9, - and _, beginning with a letter or a digit"
# The most outlets of one kind, as each adds series to the metrics.
MOST_OUTLETS: Final = 16

# The waits of a webhook before each further attempt: sixteen attempts in a day.
WAITS_S: Final = (
    *(15, 15, 30, 180, 600, 1_200, 1_800, 1_800, 1_800),
    *(3_600, 10_800, 10_800, 10_800, 21_600, 21_600),
)
SECRET: Final = "whsec_"
SECRET_BYTES: Final = range(24, 65)
_SECRET_FORM: Final = f"{SECRET} and 24 to 64 bytes in base64"
SECRET_RULE: Final = (
    f'{_SECRET_FORM}; make one by `echo "{SECRET}$(openssl rand -base64 32)"`'
)
_KINDS: Final = f"some of {', '.join(KINDS)}, separated by commas"
MOST_URL: Final = 2_000
_URL: Final = "https://HOST/PATH, or http:// to loopback"
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
# A key of [kafka.NAME.client] with this ending names a file that has the value.
FILE_SUFFIX: Final = "_file"
# Settings of librdkafka that the outlet makes itself, that would break its promises, or
# that replace the brokers by simulated ones; and functions, which no file can have.
_NO_CLIENT_KEY: Final = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|(request\.required\.)?acks"
    r"|enable\.idempotence|enable\.gapless\.guarantee|transactional\.id"
    r"|(message|delivery)\.timeout\.ms|delivery\.report\.only\.error|on_delivery|logger"
    r"|test\..*|.*_cb"
)
_CLIENT_KEY: Final = re.compile(r"[a-z][a-z0-9._]{0,99}", re.ASCII)
# Secret settings of librdkafka, such as sasl.password and ssl.key.pem.
_SECRET_KEY: Final = re.compile(
    r"password|passphrase|secret|key\.pem|oauthbearer\.config"
)
_MOST_NUMBER: Final = 2**63


def _check_kinds(text: str) -> None:
    kinds = as_list(text)
    if not kinds or not {*kinds} <= {*KINDS}:
        raise ValueError(f"it must be {_KINDS}")


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    is_good = (
        parts.scheme in ("http", "https")
        and parts.hostname
        and (parts.port is None or parts.port > 0)
        and not parts.fragment
        and url.isascii()
        and url.isprintable()
        and " " not in url
        and len(url) <= MOST_URL
    )
    if not is_good:
        raise ValueError
    return parts


def _check_url(url: str) -> None:
    try:
        parts = _split(url)
    except ValueError:
        raise ValueError(f"it must be {_URL}") from None
    if "@" in parts.netloc:
        raise ValueError(
            "it must not have a user or a password: the receiver checks the signature"
        )


def secret_key(text: str) -> bytes:
    """The key in a secret that signs requests; its base64 needs no padding.

    Raises:
        ValueError: It is not a key; the message says what it must be.
    """
    coded = text.removeprefix(SECRET)
    try:
        key = b64decode(coded + "=" * (-len(coded) % 4), validate=True)
    except ValueError:
        key = b""
    if not (text.startswith(SECRET) and len(key) in SECRET_BYTES):
        raise ValueError(f"it must be {SECRET_RULE}")
    return key


def _check_topic(text: str) -> None:
    if not _TOPIC.fullmatch(text) or text in (".", ".."):
        raise ValueError("it must be 1 to 249 of A-Z, a-z, 0-9, ., _ and -")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutletSettings:
    """Which records an outlet sends."""

    kinds: str = setting(
        ",".join(SESSION_KINDS), "the kinds of records", unit=_KINDS, check=_check_kinds
    )
    users_only: bool = setting(
        False,
        "of users with devices, only the first device's online and the last one's offline",
        unit="true or false",
    )
    settle_s: float = setting(
        0.0,
        "time that a user must be away before its offline is sent; back before that, "
        "neither offline nor online is sent",
        (0, MOST_SETTLE_S),
        "seconds",
    )
    begin: Literal["newest", "oldest"] = setting(
        "newest", "where a new outlet begins: with the next record, or the oldest kept"
    )

    @property
    def kind_set(self) -> frozenset[str]:
        return frozenset(as_list(self.kinds))


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings(OutletSettings):
    """A receiver of records over HTTP."""

    url: str = setting(
        MISSING,
        "where records are posted",
        unit=_URL,
        check=_check_url,
        hidden="[@?]",
    )
    secret_file: Path = setting(
        MISSING,
        "file with the secret that signs requests, in each line one; all sign, so "
        "that a receiver may change from one to the next",
        unit=f"a path; each line {_SECRET_FORM}",
    )
    batch: int = 500  # most records in one request
    linger_s: float = 1.0  # age at which a batch is sent that is not full
    # Waits before each further attempt of a request that failed.
    waits_s: tuple[float, ...] = WAITS_S
    max_dead: int = 100_000  # dead letters; above it, the oldest are deleted
    timeout_s: float = setting(
        10.0,
        "time for one attempt: resolving, connecting, sending, and the answer",
        (0.1, 300),
        "seconds",
    )
    allow_private: bool = setting(
        False,
        "whether the host may have a private address, such as 10.0.0.5, also by http://",
        unit="true or false",
    )
    ca_file: Path | None = setting(
        None,
        "certificates that vouch for the receiver",
        unit="a path to PEM; empty: those of the system",
    )

    @property
    def parts(self) -> SplitResult:
        return _split(self.url)

    @property
    def is_to_loopback(self) -> bool:
        """Whether the url names this host by an address of loopback, or `localhost`."""
        return is_loopback(self.parts.hostname or "")

    def faults(self) -> Iterator[tuple[str, str]]:
        """The settings that do not go with others: the key of each, and why."""
        is_plain = self.parts.scheme == "http" and not self.is_to_loopback
        if is_plain and not self.allow_private:
            yield (
                "url",
                "it is not encrypted; use https://, or, within a private network, set "
                "allow_private to true",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings(OutletSettings):
    """A topic of Kafka."""

    brokers: str = setting(
        MISSING,
        "some brokers of the cluster",
        unit=ADDRESSES,
        check=check_addresses,
        hidden="@",
    )
    topic: str = setting(
        MISSING,
        "the topic, which must exist",
        unit="1 to 249 of A-Z, a-z, 0-9, ., _ and -",
        check=_check_topic,
    )
    # Enough for 100,000 a second with answers within 200 ms. Each takes 1.7 kB.
    max_in_flight: int = 20_000  # records that the brokers have not acknowledged
    client: Mapping[str, str | int | float | bool] = setting(
        dict,
        f"settings of librdkafka; a key that ends with {FILE_SUFFIX} names a file "
        "that has the value",
        unit="a section",
    )

    def faults(self) -> Iterator[tuple[str, str]]:
        """The settings that do not go with others: the key of each, and why."""
        for key, value in self.client.items():
            if why := _why_no_client_setting(key, value):
                is_name = _CLIENT_KEY.fullmatch(key)
                yield f"client.{key if is_name else shown(key)}", why


def _why_no_client_setting(key: str, value: object) -> str:
    if not _CLIENT_KEY.fullmatch(key):
        return "it must be the name of a setting of librdkafka"
    name = key.removesuffix(FILE_SUFFIX)
    is_random = key == "partitioner" and value == "random"  # it keeps no order
    if is_random or _NO_CLIENT_KEY.fullmatch(name):
        return (
            "the outlet sets it itself, or cannot keep its promises with it; remove it"
        )
    if name == key and _SECRET_KEY.search(key):
        return f"it is a secret; name a file with it by {key}{FILE_SUFFIX}"
    is_number = isinstance(value, int | float) and abs(value) < _MOST_NUMBER
    if not (is_number or isinstance(value, str)):
        return "it must be a text, a number of 64 bits, true or false"
    if key != name and not isinstance(value, str):
        return "it must be the path of a file"
    return ""


# By section: the settings of each of its outlets.
OUTLETS: Final[Mapping[str, Any]] = {
    "webhooks": WebhookSettings,
    "kafka": KafkaSettings,
}
