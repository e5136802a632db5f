"""Kafka for tests: librdkafka's own mock cluster, which listens on ports of loopback.

It lives in the process that made it, in threads of C. confluent-kafka offers only its
number of brokers; what fails in it is said to the library itself.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

TOPIC: Final = "presence"
PARTITIONS: Final = 3
BROKERS: Final = (1, 2, 3)
SOON_S: Final = 120.0

# Numbers of Kafka's protocol: requests and errors.
PRODUCE: Final = 0
INIT_PRODUCER_ID: Final = 22
TOO_LARGE: Final = 10
CLUSTER_REFUSED: Final = 31
_PRODUCER: Final = 0


class Received(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes
    headers: dict[str, bytes]

    @property
    def place(self) -> tuple[bytes, bytes]:
        """What identifies its record: log and seq."""
        return self.headers["log"], self.headers["seq"]


class KafkaCluster:
    def __enter__(self) -> Self:
        self._lib = lib = _library()
        conf = ctypes.c_void_p(lib.rd_kafka_conf_new())
        why = ctypes.create_string_buffer(512)
        lib.rd_kafka_conf_set(conf, b"log_level", b"0", why, len(why))
        self._client = ctypes.c_void_p(lib.rd_kafka_new(_PRODUCER, conf, why, len(why)))
        made = lib.rd_kafka_mock_cluster_new(self._client, len(BROKERS))
        self._cluster = ctypes.c_void_p(made)
        self.brokers: str = lib.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self._mock("topic_create", TOPIC.encode(), PARTITIONS, len(BROKERS))
        return self

    def __exit__(self, *_exc: object) -> None:
        self._lib.rd_kafka_mock_cluster_destroy(self._cluster)
        self._lib.rd_kafka_destroy(self._client)

    def fail(self, request: int, error: int) -> None:
        """Answer the next request of a kind by this error."""
        self._lib.rd_kafka_mock_push_request_errors_array(
            self._cluster,
            ctypes.c_int16(request),
            ctypes.c_size_t(1),
            ctypes.byref(ctypes.c_int(error)),
        )

    def go_away(self) -> None:
        """End the connections of all brokers, and refuse new ones."""
        for broker in BROKERS:
            self._mock("broker_set_down", broker)

    def come_back(self) -> None:
        for broker in BROKERS:
            self._mock("broker_set_up", broker)

    def _mock(self, function: str, *arguments: object) -> None:
        call = getattr(self._lib, f"rd_kafka_mock_{function}")
        assert call(self._cluster, *arguments) == 0, function


class TopicReader:
    """Reads all messages of the topic, each once and in the order of its partition."""

    def __init__(self, brokers: str) -> None:
        self.messages: list[Received] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": brokers,
                "group.id": "test",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [TopicPartition(TOPIC, n, OFFSET_BEGINNING) for n in range(PARTITIONS)]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._consumer.close()

    @property
    def places(self) -> set[tuple[bytes, bytes]]:
        return {message.place for message in self.messages}

    def until(self, is_so: Callable[[], bool]) -> None:
        ends = perf_counter() + SOON_S
        while not is_so():
            assert perf_counter() < ends, f"{len(self.messages)} messages"
            self._read()

    def until_seqs(self, seqs: set[int]) -> None:
        wanted = {f"{seq}".encode() for seq in seqs}
        self.until(lambda: wanted <= {seq for _, seq in self.places})

    def _read(self) -> None:
        for message in self._consumer.consume(1_000, 0.1):
            if message.error() is None:  # others go by, as when brokers are away
                headers: dict[str, Any] = dict(message.headers() or [])
                partition, value = message.partition(), message.value()
                assert partition is not None
                assert value is not None
                self.messages.append(Received(partition, message.key(), value, headers))

    def first_seqs(self) -> dict[bytes | None, list[int]]:
        """By key, the seqs in order, without repeats, and all in one partition."""
        seqs: dict[bytes | None, list[int]] = {}
        seen = set[tuple[bytes, bytes]]()
        partition_of: dict[bytes, int] = {}
        for message in self.messages:
            if message.key is not None:
                place = partition_of.setdefault(message.key, message.partition)
                assert place == message.partition
            if message.place not in seen:
                seen.add(message.place)
                seqs.setdefault(message.key, []).append(int(message.headers["seq"]))
        return seqs


def _library() -> ctypes.CDLL:
    lines = Path("/proc/self/maps").read_text().splitlines()
    path = next(line.split()[-1] for line in lines if "librdkafka" in line)
    lib = ctypes.CDLL(path)
    for name in ("conf_new", "new", "mock_cluster_new"):
        getattr(lib, f"rd_kafka_{name}").restype = ctypes.c_void_p
    lib.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return lib
