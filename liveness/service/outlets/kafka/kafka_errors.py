"""Advice to operators about errors of Kafka."""

from typing import Final, NamedTuple

from liveness.service.outlets.common.outlet import OutletState
from liveness.service.outlets.kafka.kafka_client import KafkaError

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


class Advice(NamedTuple):
    """The outlet's state after an error, and what to do about it."""

    state: OutletState
    text: str
    cause: str = ""  # in librdkafka's words


def advice_about(error: KafkaError, topic: str) -> Advice:
    """What to do about an error, and whether an operator has to act."""
    name = error.name()
    for state, texts in (
        (OutletState.STOPPED, _TO_CORRECT),
        (OutletState.RETRYING, _TO_WAIT_FOR),
    ):
        for names, text in texts.items():
            if name in names:
                return Advice(state, text.format(topic=topic))
    return Advice(OutletState.RETRYING, f"{name}; all is sent again that was not taken")
