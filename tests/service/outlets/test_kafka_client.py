"""What librdkafka is given, and what is said about it."""

import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from liveness.config.outlet_settings import KafkaSettings
from liveness.core.records import MOVED, ONLINE, Gap, Record, TimerRecord
from liveness.errors import StartError
from liveness.service.common.logs import LogThrottle
from liveness.service.outlets.common.outlet import OutletState
from liveness.service.outlets.kafka.kafka_client import (
    KafkaClients,
    KafkaError,
    advice_about,
    check_kafka,
)
from liveness.service.outlets.kafka.kafka_outlet import KafkaOutlet
from liveness.service.outlets.kafka.kafka_producer import key_of
from tests.service.outlets.outlet_rig import OutletRig
from tests.service.storage.journals import on

VALUE = "sesame"
SSL = {"security.protocol": "ssl"}
SASL = {"security.protocol": "sasl_plaintext"}


def settings_with(client: dict[str, Any]) -> KafkaSettings:
    return KafkaSettings(brokers="127.0.0.1:1", topic="t", client=client)


def clients(client: dict[str, Any], log_every_s: float = 60.0) -> KafkaClients:
    throttle = LogThrottle(log_every_s, clock=lambda: 0.0)
    return KafkaClients("out", settings_with(client), throttle)


def refusal_of(client: dict[str, Any]) -> str:
    """What is wrong, for `check-config`; empty: nothing."""
    return "".join(map(str, check_kafka("out", settings_with(client))))


@pytest.mark.parametrize(
    ("client", "why"),
    [
        ({"lingr.ms": VALUE}, 'No such configuration property: "lingr.ms"'),
        ({"max.in.flight": 7}, "must be set <= 5"),
        (SSL | {"ssl.ca.location": "/nowhere"}, "ssl.ca.location failed"),
    ],
)
def test_a_setting_that_librdkafka_refuses_is_named(
    client: dict[str, Any], why: str
) -> None:
    text = refusal_of(client)
    assert text.startswith("kafka.out.client: librdkafka refuses it: ")
    assert why in text
    assert text.endswith("; correct it")
    assert VALUE not in text


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("request.required.acks", 1, "cannot keep its promises"),
        ("test.mock.num.brokers", 3, "cannot keep its promises"),
        ("sasl.oauthbearer.assertion.private.key.passphrase", "x", "passphrase_file"),
    ],
)
def test_a_setting_that_breaks_a_promise_is_refused(
    key: str, value: object, why: str
) -> None:
    settings = KafkaSettings(brokers="h:1", topic="t", client={key: value})  # type: ignore[dict-item]
    ((place, text),) = settings.faults()
    assert place == f"client.{key}"
    assert why in text


def secret(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [(b"\n", 0o600, "has no value"), (b"\xff", 0o600, "UTF-8"), (b"x", 0o644, "chmod")],
    ids=["empty", "bytes", "open"],
)
def test_a_file_without_a_usable_value_is_named(
    tmp_path: Path, content: bytes, mode: int, why: str
) -> None:
    path = secret(tmp_path, content, mode)
    text = refusal_of({"sasl.password_file": str(path)})
    assert text.startswith(f"kafka.out.client.sasl.password_file: {path}")
    assert why in text


def test_a_secret_from_a_file_is_used_and_is_not_in_an_error(tmp_path: Path) -> None:
    login = SASL | {"sasl.mechanism": "PLAIN", "sasl.username": "ada"}
    path = secret(tmp_path, f"{VALUE}\n".encode())
    made = clients(login | {"sasl.password_file": str(path)})
    made.make(lambda _: None, brokers="")
    assert made.without_secrets(f"login as {VALUE} failed\n") == "login as … failed"
    for client in (SSL | {"ssl.key.pem_file": str(path)}, {"debug_file": str(path)}):
        text = refusal_of(client)
        assert text.startswith("kafka.out.client: librdkafka refuses it: ")
        assert VALUE not in text


async def test_a_client_that_cannot_be_made_is_tried_less_and_less_often(
    rig: OutletRig,
) -> None:
    missing = settings_with({"sasl.password_file": "/nowhere/secret"})
    outlet = KafkaOutlet("out", missing, rig.access)
    rig.publish(on(1))
    await rig.store.open(keep=[outlet.name], unused_s=3_600)
    retries = list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outlet.run)
        for at in (0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5, 123.5, 183.5):
            await trio.sleep_until(at)
            retries.append(outlet.now().retries)
        nursery.cancel_scope.cancel()
    assert retries == [*range(9)]
    shown = outlet.now()
    assert (shown.outlet, shown.state) == ("kafka.out", "stopped")
    await rig.store.close()


def test_settings_of_the_section_win_by_either_of_their_names() -> None:
    with capture_logs() as lines:
        made = clients(
            {
                "debug": "conf",
                "queue.buffering.max.ms": 7,  # linger.ms
                "compression.type": "zstd",
                "socket.nagle.disable": False,
            },
            log_every_s=0.0,
        )
        made.make(lambda _: None).poll(0.1)
    shown = {line["text"] for line in lines}
    assert shown >= {
        f"[thrd:app]:   {setting}"
        for setting in (
            "queue.buffering.max.ms = 7",
            "compression.codec = zstd",
            "socket.nagle.disable = false",
            "enable.idempotence = true",
            "queue.buffering.max.messages = 20000",
            "message.timeout.ms = 0",
        )
    }, shown


def test_log_lines_of_librdkafka_are_logged_except_expected_ones() -> None:
    made = clients({"group.id": "of a consumer"})
    with capture_logs() as lines:
        producer = made.make(lambda _: None)
        producer.poll(0.1)
    (line,) = [line for line in lines if line["kind"] == "CONFWARN"]
    assert line["outlet"] == "kafka.out"
    assert line["log_level"] == "warning"
    assert "group.id" in line["text"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith("liveness.service.outlets.kafka."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(
        StartError, match=r"pip install 'liveness-sidecar\[sidecar,kafka\]'"
    ):
        __import__("liveness.service.outlets.kafka.kafka_outlet")


@pytest.mark.parametrize(
    ("code", "state", "why"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, "stopped", "max.message.bytes"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "stopped", "WRITE"),
        (KafkaError._UNKNOWN_TOPIC, "stopped", "no topic t; create it"),
        (KafkaError._AUTHENTICATION, "stopped", "sasl"),
        (KafkaError._ALL_BROKERS_DOWN, "retrying", "cannot be reached"),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "retrying", "sent again"),
    ],
)
def test_an_error_says_what_to_do(code: int, state: OutletState, why: str) -> None:
    found, text = advice_about(KafkaError(code), "t")
    assert found == state
    assert why in text


def online(uid: str | int, kind: str = ONLINE) -> Record:
    return Record(1, kind, uid, "g", 1, None, "login", 1, user_size=3, devices=1)


@pytest.mark.parametrize(
    ("record", "users", "key"),
    [
        (online("ada/phone"), False, "ada/phone"),
        (online("ada/phone", MOVED), True, "ada"),
        (online(7)._replace(user_size=None), True, "7"),
        (online("7")._replace(user_size=None), False, "7"),
        (online("int:7")._replace(user_size=None), False, "str:int:7"),
        (TimerRecord(1, "timer", "g", "k", None, None, 1, 1, 1), False, "timer:g/k"),
        (Gap(1, 5, 1), False, None),
    ],
)
def test_the_key_is_the_user(record: Record, users: bool, key: str | None) -> None:
    assert key_of(record, users) == key
