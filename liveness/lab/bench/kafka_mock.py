"""Kafka for the bench: librdkafka's mock cluster, in a process of its own.

    python -m liveness.lab.bench.kafka_mock FILE

It writes the addresses of its brokers to FILE, and runs until it is killed.
"""

import signal
import sys
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from liveness.lab.bench.program import PYTHON, Program

BROKERS: Final = 3
PARTITIONS: Final = 4  # that the mock cluster gives a new topic
ANSWER_S: Final = 10.0  # far longer than it takes
QUIET: Final = 0  # librdkafka's own lines, but for those that precede its end


def main(path: str) -> None:
    """Run the cluster."""
    # The cluster belongs to a client, which is not used otherwise.
    client = Producer({"test.mock.num.brokers": BROKERS, "log_level": QUIET})
    brokers = client.list_topics(timeout=ANSWER_S).brokers.values()
    addresses = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    part = Path(f"{path}.part")
    part.write_text(addresses, encoding="utf-8")
    part.rename(path)
    signal.pause()


class KafkaMock(Program):
    """The cluster as a process; its files are in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "brokers"
        command = [*PYTHON, "liveness.lab.bench.kafka_mock", str(self._file)]
        super().__init__(folder, command)

    def is_ready(self) -> bool:
        """Whether its brokers listen."""
        return self._file.exists()

    @property
    def brokers(self) -> str:
        """The addresses of its brokers."""
        return self._file.read_text(encoding="utf-8")


class TopicCount:
    """Counts the messages of a topic."""

    def __init__(self, brokers: str, topic: str) -> None:
        self._partitions = [TopicPartition(topic, n) for n in range(PARTITIONS)]
        self._consumer = Consumer(
            {"bootstrap.servers": brokers, "group.id": "bench", "log_level": QUIET}
        )

    def read(self) -> int:
        """How many there are now."""
        try:
            ends = [
                self._consumer.get_watermark_offsets(partition, timeout=ANSWER_S)
                for partition in self._partitions
            ]
        except KafkaException:  # nobody has written to the topic yet
            return 0
        return sum(end[1] for end in ends if end is not None)

    def close(self) -> None:
        """End its threads."""
        self._consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
