"""Makes the clients of one outlet: librdkafka, through confluent-kafka."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog

from liveness.config.outlet_settings import FILE_SUFFIX, KafkaSettings
from liveness.errors import StartError
from liveness.service.common.logs import LogThrottle, shortened
from liveness.service.outlets.kafka.kafka_files import value_in

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ImportError:
    raise StartError(
        "the package confluent-kafka is not installed: pip install 'liveness-sidecar[sidecar,kafka]', "
        "or remove [kafka.…] from the settings"
    ) from None

__all__ = ["KafkaClients", "KafkaError", "KafkaException", "Producer", "check_client"]

OnError: TypeAlias = Callable[[KafkaError], None]
Values: TypeAlias = dict[str, Any]

DEFAULTS: Final[Values] = {
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

# Prefix of errors about settings that conflict; other errors are about one setting.
_TOGETHER: Final = "Failed to create producer: "
_UNKNOWN: Final = "No such configuration property"
# Raised by confluent-kafka for a setting that takes a Python object.
_NOT_TEXT: Final = (AttributeError, TypeError, ValueError)
# librdkafka warns at each start that this setting of ours is experimental.
_EXPECTED_WARNING: Final = "enable.gapless.guarantee"

_log = structlog.get_logger("kafka")


def check_client(name: str, settings: KafkaSettings) -> None:
    """Check the client's settings and files of one outlet, without connecting.

    Raises:
        StartError: A file cannot be read, or librdkafka refuses a setting.
    """
    KafkaClients(name, settings, LogThrottle(1.0, clock=lambda: 0.0)).check()


class KafkaClients:
    """Makes the clients of one outlet, one after the other."""

    def __init__(
        self, name: str, settings: KafkaSettings, log_throttled: LogThrottle
    ) -> None:
        self._place = f"kafka.{name}.client"
        self._settings = settings
        self._secrets: list[str] = []
        self._log = LibraryLog(f"kafka.{name}", self.without_secrets, log_throttled)

    def check(self) -> None:
        """See `check_client`."""
        self._made(self._read(), on_error=lambda _: None)

    def make(self, on_error: OnError) -> Producer:
        """A new client, with the current content of the secrets' files; takes some time.

        `poll` calls *on_error* with each error that concerns no record.

        Raises:
            StartError: A file cannot be read, or librdkafka refuses a setting.
        """
        values = {**self._read(), "bootstrap.servers": self._settings.brokers}
        return self._made(values, on_error)

    def without_secrets(self, text: str) -> str:
        """A text of librdkafka, shortened, with the contents of secret files removed."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return shortened(text.strip())

    def _read(self) -> Values:
        """The settings of the section, with the contents of files in place of paths."""
        values: Values = {}
        self._secrets = []
        for key, value in self._settings.client.items():
            name = key.removesuffix(FILE_SUFFIX)
            if name != key:
                value = value_in(f"{self._place}.{key}", Path(str(value)))
                self._secrets.append(value)
            elif isinstance(value, bool):
                value = str(value).lower()
            values[name] = value
        return values

    def _made(self, values: Values, on_error: OnError) -> Producer:
        most = self._settings.max_in_flight
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
                    "acks": "all",
                    "enable.idempotence": "true",
                    # The next records of a user must not overtake one that the brokers
                    # refuse: the client stops, and the outlet begins again.
                    "enable.gapless.guarantee": "true",
                    # No timeout: a waiting record is safe in the log.
                    "message.timeout.ms": 0,
                    "error_cb": on_error,
                    "logger": self._log,
                }
            )
        except (KafkaException, *_NOT_TEXT) as error:
            raise self._refused(values, _text_of(error)) from None

    def _refused(self, values: Values, text: str) -> StartError:
        """The error about settings that librdkafka refuses; it shows no values."""
        _, is_together, why = text.partition(_TOGETHER)
        if is_together:
            found = [key for key in values if key in why]
            place = f"{self._place}.{found[0]}" if found else self._place
            return StartError(f"{place}: {self.without_secrets(why)}; correct it")
        for key, value in values.items():
            if (
                refusal := _why_refused(
                    key, value, is_secret=key not in self._settings.client
                )
            ) is not None:
                return StartError(f"{self._place}.{key}: {refusal}")
        return StartError(f"{self._place}: {self.without_secrets(text)}; correct it")


@dataclass(frozen=True, slots=True)
class LibraryLog:
    """Takes the log lines of librdkafka, as a `logging.Logger` would."""

    outlet: str
    cleaned: Callable[[str], str]  # takes secrets out of a text
    throttled: LogThrottle

    def log(self, level: int, _form: str, kind: str, _client: str, text: str) -> None:
        """Log a line of a kind, such as `FAIL`."""
        if _EXPECTED_WARNING in text and kind == "CONFWARN":
            return
        write = _log.info if level <= logging.INFO else _log.warning
        if level >= logging.ERROR:
            write = _log.error
        elif level <= logging.DEBUG:
            write = _log.debug
        self.throttled(
            write, "librdkafka", key=("librdkafka", kind, level),
            outlet=self.outlet, kind=kind, text=self.cleaned(text),
        )  # fmt: skip


def _text_of(error: Exception) -> str:
    return error.args[0].str() if isinstance(error, KafkaException) else str(error)


def _why_refused(key: str, value: object, *, is_secret: bool) -> str | None:
    """Why librdkafka refuses a setting by itself; None if it does not.

    Its error says what it allows, but may repeat the value: it is left out for secrets.
    """
    try:
        Producer({key: value, "logger": logging.getLogger("librdkafka")})
    except (KafkaException, *_NOT_TEXT) as error:
        text = _text_of(error).strip()
        is_secret |= not isinstance(error, KafkaException)  # from Python
    else:
        return None
    if text.startswith(_TOGETHER):
        return None
    if text.startswith(_UNKNOWN):
        return "librdkafka has no such setting; correct its name, or remove it"
    why = "" if is_secret else f": {shortened(text)}"
    return f"librdkafka does not take this value{why}; correct it"
