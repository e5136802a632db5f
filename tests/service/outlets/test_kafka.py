"""The outlet of Kafka, with brokers that fail: every record arrives, in order of its user."""

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import trio
import trio.testing

from liveness.config.outlet_settings import KafkaSettings
from liveness.core.records import OFFLINE, ONLINE, TIMER, Record, TimerRecord
from liveness.metrics.now import OutletNow
from liveness.service.common.turnstile import Turnstile
from liveness.service.outlets.common.outlet_log import LogBatch
from liveness.service.outlets.kafka import kafka_outlet, kafka_producer
from liveness.service.outlets.kafka.kafka_client import Producer
from liveness.service.outlets.kafka.kafka_outlet import KafkaOutlet
from liveness.service.outlets.kafka.kafka_producer import KafkaProducer
from liveness.service.outlets.supervisor import Outlets
from liveness.service.storage.log_store import Batch, LogStore
from liveness.service.storage.log_tail import TailEntry
from tests.helpers import disk, kafka_cluster
from tests.helpers.kafka_cluster import TOPIC, KafkaCluster, TopicReader
from tests.helpers.record_batches import batch_of
from tests.helpers.tree import ROOT
from tests.service.outlets.outlet_rig import OutletRig, outlet_rig

USERS: Final = 50
AT: Final = 1_700_000_000_000
# Settings of the outlet's pace, in seconds.
SOON: Final = {"RETRY_S": 0.05, "LATE_S": 0.1, "IDLE_POLL_S": 0.02}
# Of librdkafka's.
SOON_BACK: Final = {"reconnect.backoff.max.ms": 200}
SCHEMA: Final = json.loads((ROOT / "proto/record.schema.json").read_text())


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture
def reader(cluster: KafkaCluster) -> Iterator[TopicReader]:
    with TopicReader(cluster.brokers) as reader:
        yield reader


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between tries."""
    for name, soon_s in SOON.items():
        monkeypatch.setattr(kafka_outlet, name, soon_s)


def record(seq: int) -> Record:
    """Users come and go, one after the other."""
    kind = ONLINE if (seq - 1) // USERS % 2 == 0 else OFFLINE
    user = f"user-{seq % USERS}"
    session = seq if kind == ONLINE else seq - USERS
    opened = Record(seq, kind, user, "g", session, seq, "login", AT + seq)
    if kind == ONLINE:
        return opened
    return opened._replace(reason="silence", seen=AT, last="keepalive", silence=1.5)


class Service:
    """An outlet that runs."""

    def __init__(self, rig: OutletRig, outlet: KafkaOutlet) -> None:
        self.rig, self.outlet = rig, outlet

    @property
    def now(self) -> OutletNow:
        return self.outlet.now()

    def log(self, count: int) -> None:
        """Add records to the log, as a commit does."""
        first = self.rig.log.log_writer.durable_seq + 1
        self.rig.publish(*map(record, range(first, first + count)))

    async def until(self, is_so: Callable[[], object]) -> None:
        with trio.fail_after(kafka_cluster.SOON_S):
            while not is_so():  # noqa: ASYNC110 - of another thread, or process
                await trio.sleep(0.01)

    async def until_delivered(self) -> None:
        newest = self.rig.log.log_writer.durable_seq
        await self.until(lambda: self.outlet.log.cursor == newest)


Running = Callable[..., AbstractAsyncContextManager[Service]]


@pytest.fixture
def running(tmp_path: Path, cluster: KafkaCluster) -> Running:
    """Run the outlet; leaving it cancels it, as a stop does."""

    @asynccontextmanager
    async def run_outlet(
        client: dict[str, Any] | None = None, **settings: Any
    ) -> AsyncIterator[Service]:
        chosen = KafkaSettings(
            brokers=cluster.brokers,
            topic=TOPIC,
            begin="oldest",
            client=client or {},
            **settings,
        )
        with outlet_rig(tmp_path / "state") as rig:
            outlet = KafkaOutlet("out", chosen, rig.access)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Outlets([outlet], rig.store, retention_s=3_600).run)
                yield Service(rig, outlet)
                nursery.cancel_scope.cancel()

    return run_outlet


def check(reader: TopicReader, newest: int, oldest: int = 1) -> None:
    """All records arrived, and those of each user in order but for repeats."""
    reader.until_seqs({*range(oldest, newest + 1)})
    for key, seqs in reader.first_seqs().items():
        assert seqs == sorted(seqs), key


async def test_a_record_is_a_message(running: Running, reader: TopicReader) -> None:
    timer = TimerRecord(101, TIMER, "g", "k", None, None, AT, 1, AT)
    async with running(kinds="online,offline,timer") as service:
        service.log(100)
        service.rig.publish(timer)
        await service.until_delivered()
        assert service.now.state == "following"
        assert service.now.sent == 101
        log = service.outlet.log.log.encode()
    check(reader, 101)
    assert len(reader.messages) == 101
    schema = jsonschema.Draft202012Validator(SCHEMA)
    for message in reader.messages:
        shown = json.loads(message.value)
        schema.validate(shown)
        seq, kind = shown["seq"], shown["kind"]
        logged = timer if seq == 101 else record(seq)
        assert shown == logged.as_map()
        headers = {"seq": f"{seq}".encode(), "log": log, "kind": kind.encode()}
        assert message.headers == headers
        assert message.key == f"{shown.get('uid', 'timer:g/k')}".encode()


async def test_a_gap_is_a_message_without_a_key(
    running: Running, reader: TopicReader, tmp_path: Path
) -> None:
    async with running() as service:
        service.log(10)
        await service.until_delivered()
    with closing(LogStore(tmp_path / "state")) as store:
        for first in (11, 1_011):
            page = [record(seq) for seq in range(first, first + 1_000)]
            store.write(Batch(batch_of(page)))
        store.trimmer.delete_oldest(oldest_ms=0, most_bytes=0, until=1_010)
    async with running() as service:
        await service.until_delivered()
    check(reader, 2_010, oldest=1_010)  # the gap has the seq of the last that it covers
    (gap,) = [message for message in reader.messages if message.key is None]
    assert json.loads(gap.value) | {"at": 0} == {
        "seq": 1_010, "kind": "gap", "first": 11, "until": 1_011, "at": 0
    }  # fmt: skip
    assert gap.headers["kind"] == b"gap"


async def test_the_next_process_goes_on_where_the_last_one_was(
    running: Running,
    reader: TopicReader,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Acknowledgements are not taken before the stop, which waits for them.
    monkeypatch.setattr(kafka_outlet, "POLL_S", 2 * kafka_cluster.SOON_S)
    monkeypatch.setattr(kafka_outlet, "FLUSH_S", kafka_cluster.SOON_S)
    before = threading.active_count()  # idle ones, which other tests have used
    for newest in (300, 600):
        async with running() as service:
            service.log(300)
            await trio.to_thread.run_sync(check, reader, newest)
            assert service.outlet.log.cursor == newest - 300
        stored = disk.rows(tmp_path / "state/outlets.db", "select seq from cursors")
        assert stored == [(newest,)]
    assert len(reader.messages) == 600  # a stop repeats nothing
    assert threading.active_count() < before + 20


async def test_brokers_that_refuse_the_password_are_named_and_it_is_not_shown(
    running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    secret.chmod(0o600)
    client = {  # the mock cluster knows no SASL
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ada",
        "sasl.password_file": str(secret),
        "debug": "all",
    }
    async with running(client=client) as service:
        service.log(1)
        await service.until(lambda: service.now.state == "stopped")
        assert "refuse user or password" in service.now.detail
        assert "sesame" not in service.now.detail
    logged = capsys.readouterr().out
    assert "librdkafka" in logged
    assert "sesame" not in logged


@pytest.mark.parametrize(
    ("request_kind", "error", "why"),
    [
        (kafka_cluster.PRODUCE, kafka_cluster.TOO_LARGE, "max.message"),
        (
            kafka_cluster.INIT_PRODUCER_ID,
            kafka_cluster.CLUSTER_REFUSED,
            "IDEMPOTENT_WRITE",
        ),
    ],
    ids=["large", "cluster"],
)
async def test_a_client_that_failed_is_followed_by_another_one(
    running: Running,
    cluster: KafkaCluster,
    reader: TopicReader,
    monkeypatch: pytest.MonkeyPatch,
    request_kind: int,
    error: int,
    why: str,
) -> None:
    monkeypatch.setattr(kafka_outlet, "RETRY_S", 0.2)
    cluster.fail(request_kind, error)
    async with running() as service:
        service.log(5_000)
        await service.until(lambda: service.now.state == "stopped")
        assert why in service.now.detail
        await service.until_delivered()
        assert (service.now.state, service.now.retries) == ("following", 1)
    check(reader, 5_000)


async def test_what_is_in_flight_is_bounded(
    running: Running,
    cluster: KafkaCluster,
    reader: TopicReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_outlet, "SLOW_AFTER_S", 0.1)
    client = {"queue.buffering.max.messages": 700, **SOON_BACK}
    async with running(client=client, max_in_flight=1_000) as service:
        service.log(10)
        await service.until_delivered()
        cluster.go_away()
        service.log(9_990)
        await service.until(lambda: service.now.state == "retrying")
        assert "cannot be reached" in service.now.detail
        await service.until(lambda: len(service.outlet.log._taken) == 2)
        await trio.testing.wait_all_tasks_blocked(0.03)
        assert sum(len(it.entries) for it in service.outlet.log._taken) == 1_000
        cluster.come_back()
        await service.until_delivered()
    check(reader, 10_000)


class CountingProducer(Producer):
    """Counts the records that it is given."""

    given = 0

    def produce(self, *args: Any, **options: Any) -> None:
        super().produce(*args, **options)
        self.given += 1


class Given(trio.abc.Instrument):
    """How many records a client is given in each pass of the event loop."""

    def __init__(self, client: CountingProducer) -> None:
        self.passes = list[int]()
        self._client, self._before = client, 0

    def before_io_wait(self, timeout: float) -> None:
        if more := self._client.given - self._before:
            self.passes.append(more)
        self._before = self._client.given


async def test_a_pass_of_the_event_loop_hands_over_few_records() -> None:
    client = CountingProducer({"log_level": 0})  # it needs no brokers
    producer = KafkaProducer(
        lambda _: client,
        KafkaSettings(brokers="", topic=TOPIC),
        log="log",
        turnstile=Turnstile(),
        delivered=lambda _: None,
    )
    given = Given(client)
    trio.lowlevel.add_instrument(given)
    entries = [TailEntry(record(seq)) for seq in range(1, 1_202)]
    await producer.send(LogBatch(entries, 1_201, 0))
    await trio.lowlevel.checkpoint()
    piece = kafka_producer.PIECE
    assert given.passes == [piece, piece, 1_201 - 2 * piece]
    await producer.close(kafka_cluster.SOON_S)


async def test_a_client_that_cannot_be_made_is_shown_and_tried_again(
    running: Running, reader: TopicReader, tmp_path: Path
) -> None:
    key, secret = "sasl.password_file", tmp_path / "secret"
    client = {key: str(secret)}
    async with running(client=client) as service:
        service.log(100)
        await service.until(lambda: service.now.state == "stopped")
        assert "kafka.out.client" in service.now.detail
        assert key in service.now.detail
        made = tmp_path / "made"
        made.write_text("sesame")
        made.chmod(0o600)
        made.rename(secret)
        await service.until_delivered()
        assert service.now.state == "following"
    check(reader, 100)
