"""Makes the clients of one outlet, librdkafka through confluent-kafka, and explains errors."""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog

from liveness.config.outlet_settings import FILE_SUFFIX, KafkaSettings
from liveness.config.secret_file import read_secret
from liveness.errors import StartError
from liveness.service.common.logs import LogThrottle, shortened
from liveness.service.outlets.common.outlet import OutletState

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ImportError:
    raise StartError(
        "the package confluent-kafka is not installed: pip install 'liveness-sidecar[sidecar,kafka]', "
        "or remove [kafka.…] from the settings"
    ) from None

__all__ = ["KafkaError", "KafkaException", "Producer"]

OnError: TypeAlias = Callable[[KafkaError], None]

DEFAULTS: Final[dict[str, Any]] = {
    "client.id": "liveness",
    # Like the Java producers: if they write to the topic too, each user is still in one
    # partition.
    "partitioner": "murmur2_random",
    # How long a record waits for others of its partition: fewer and larger requests take
    # less CPU here and at the brokers.
    "linger.ms": 20,
    # Records resemble each other: they shrink to a tenth, for little CPU.
    "compression.type": "lz4",
}
# librdkafka warns at each start that this setting of ours is experimental.
_EXPECTED_WARNING: Final = "enable.gapless.guarantee"

# Errors that an operator has to correct. `{topic}` is the outlet's.
_TO_CORRECT: Final = {
    ("MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "RECORD_LIST_TOO_LARGE"): (
        "a record is larger than topic {topic} takes; raise max.message.bytes of the "
        "topic to 100000 or more, and message.max.bytes of the section, if it is set"
    ),
    ("TOPIC_AUTHORIZATION_FAILED",): (
        "the brokers do not let this user write to topic {topic}; allow it WRITE and "
        "DESCRIBE there"
    ),
    ("CLUSTER_AUTHORIZATION_FAILED",): (
        "the brokers do not let this user write idempotently; allow it IDEMPOTENT_WRITE "
        "on the cluster"
    ),
    ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"): (
        "there is no topic {topic}; create it, or correct the setting topic"
    ),
    ("TOPIC_EXCEPTION",): "the brokers refuse topic {topic}; correct the setting topic",
    ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"): (
        "the brokers refuse user or password; correct the sasl settings of the section "
        "client, or their files"
    ),
    ("_SSL",): "TLS fails; correct the ssl settings of the section client",
    ("INVALID_RECORD", "INVALID_MSG", "POLICY_VIOLATION", "INVALID_CONFIG"): (
        "the brokers refuse a record; correct the settings of topic {topic}"
    ),
    ("UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE", "UNSUPPORTED_FOR_MESSAGE_FORMAT"): (
        "the brokers are too old; Kafka 0.11 or newer is needed"
    ),
}
# Errors that may go away by themselves.
_TO_WAIT_FOR: Final = {
    ("_RESOLVE",): "a broker's name is unknown to DNS; correct the setting brokers",
    ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN"): (
        "the brokers cannot be reached; start them, or correct the setting brokers"
    ),
}
# Errors that only report that an earlier error ended the client.
CONSEQUENCES: Final = frozenset(
    {"_FATAL", "_GAPLESS_GUARANTEE", "_PURGE_QUEUE", "_PURGE_INFLIGHT"}
)

_log = structlog.get_logger("kafka")


def check_kafka(name: str, settings: KafkaSettings) -> Iterator[StartError]:
    """Try the files and client settings of `[kafka.NAME]`, without connecting."""
    try:
        clients = KafkaClients(name, settings, LogThrottle(1.0, clock=lambda: 0.0))
        clients.make(lambda _: None, brokers="")
    except StartError as error:
        yield error


class KafkaClients:
    """Makes the clients of one outlet, one after the other, and takes their log lines."""

    def __init__(
        self, name: str, settings: KafkaSettings, log_throttled: LogThrottle
    ) -> None:
        self._outlet = f"kafka.{name}"
        self._settings = settings
        self._log_throttled = log_throttled
        self._secrets: list[str] = []

    def make(self, on_error: OnError, *, brokers: str | None = None) -> Producer:
        """A new client, with the current content of the secrets' files; takes some time.

        `poll` calls *on_error* with each error that concerns no record.

        Raises:
            StartError: A file cannot be read, or librdkafka refuses a setting.
        """
        most, values = self._settings.max_in_flight, self._read()
        brokers = self._settings.brokers if brokers is None else brokers
        try:
            # A setting may have two names, and the later one wins: so defaults that the
            # section may change come first, and those that the promises need come last.
            return Producer(
                DEFAULTS
                | {
                    "queue.buffering.max.messages": most,
                    # A kilobyte a record. Few are larger; if they do not fit, `produce`
                    # refuses, and the outlet waits.
                    "queue.buffering.max.kbytes": most,
                }
                | values
                | {
                    "bootstrap.servers": brokers,
                    "acks": "all",
                    "enable.idempotence": "true",
                    # The next records of a user must not overtake one that the brokers
                    # refuse: the client stops, and the outlet begins again.
                    "enable.gapless.guarantee": "true",
                    # No timeout: a waiting record is safe in the log.
                    "message.timeout.ms": 0,
                    "error_cb": on_error,
                    "logger": self,
                }
            )
        except (KafkaException, AttributeError, TypeError, ValueError) as error:
            is_theirs = isinstance(error, KafkaException)
            text = error.args[0].str() if is_theirs else str(error)
            raise StartError(
                f"{self._outlet}.client: librdkafka refuses it: "
                f"{self.without_secrets(text)}; correct it"
            ) from None

    def without_secrets(self, text: str) -> str:
        """A text of librdkafka, shortened, with the contents of secret files removed."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return shortened(text.strip())

    def log(self, level: int, _form: str, kind: str, _client: str, text: str) -> None:
        """Log a line of librdkafka, of a kind such as `FAIL`, as a `logging.Logger` would."""
        if _EXPECTED_WARNING in text and kind == "CONFWARN":
            return
        self._log_throttled(
            partial(_log.log, min(level, logging.ERROR)), "librdkafka", key=("librdkafka", kind, level),
            outlet=self._outlet, kind=kind, text=self.without_secrets(text),
        )  # fmt: skip

    def _read(self) -> dict[str, Any]:
        """The settings of the section, with the contents of files in place of paths."""
        values: dict[str, Any] = {}
        self._secrets = []
        for key, value in self._settings.client.items():
            name = key.removesuffix(FILE_SUFFIX)
            if name != key:
                value = value_in(f"{self._outlet}.client.{key}", Path(str(value)))
                self._secrets.append(value)
            elif isinstance(value, bool):
                value = str(value).lower()
            values[name] = value
        return values


def value_in(place: str, path: Path) -> str:
    """The value in a file; *place* is the setting that names it, for errors.

    Raises:
        StartError: It cannot be read, or has no value.
    """
    data = read_secret(place, path, "value")
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        why = "is not UTF-8; put only the value there"
        raise StartError(f"{place}: {path} {why}") from None
    if not text or "\0" in text:
        raise StartError(f"{place}: {path} has no value; put it there")
    return text


def advice_about(error: KafkaError, topic: str) -> tuple[OutletState, str]:
    """What to do about an error, and whether an operator has to act."""
    name = error.name()
    for names, text in _TO_CORRECT.items():
        if name in names:
            return "stopped", text.format(topic=topic)
    for names, text in _TO_WAIT_FOR.items():
        if name in names:
            return "retrying", text
    return "retrying", f"{name}; all is sent again that was not taken"
