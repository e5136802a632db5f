"""An outlet to Kafka over a log of its own, and the records that it sends."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import trio

from liveness.config.outlet_settings import KafkaSettings
from liveness.config.settings import Config, SocketSettings, StateSettings
from liveness.core.records import OFFLINE, ONLINE, Record, TimerRecord
from liveness.metrics.now import OutletNow
from liveness.service.app import load
from liveness.service.common.clock import Clock
from liveness.service.components import SidecarService
from liveness.service.links.credentials import access_to
from liveness.service.outlets.kafka.kafka_outlet import KafkaOutlet
from liveness.service.storage.log_store import Batch, LogStore
from liveness.service.timers.timer_store import TimerStore
from tests.helpers import kafka_cluster
from tests.helpers.kafka_cluster import TOPIC, KafkaCluster, TopicReader
from tests.helpers.record_batches import batch_of

USERS: Final = 50
AT: Final = 1_700_000_000_000


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
    """A sidecar's outlets over a log of its own."""

    def __init__(self, sidecar: SidecarService, store: LogStore) -> None:
        assert sidecar.outlets is not None
        (outlet,) = sidecar.outlets.with_cursors
        assert isinstance(outlet, KafkaOutlet)
        self.outlet = outlet
        self._sidecar, self._store = sidecar, store

    @property
    def now(self) -> OutletNow:
        return self.outlet.now()

    def log(self, count: int) -> None:
        """Add records to the log, as a commit does."""
        writer = self._sidecar.log_writer
        first = writer.durable_seq + 1
        self.add(*map(record, range(first, first + count)))

    def add(self, *records: Record | TimerRecord) -> None:
        writer = self._sidecar.log_writer
        batch = Batch(batch_of(records))
        self._store.write(batch)
        writer.durable_seq = records[-1].seq
        self._sidecar.feed.publish(batch)

    async def until(self, is_so: Callable[[], object]) -> None:
        with trio.fail_after(kafka_cluster.SOON_S):
            while not is_so():  # noqa: ASYNC110 - of another thread, or process
                await trio.sleep(0.01)

    async def until_delivered(self) -> None:
        newest = self._sidecar.log_writer.durable_seq
        await self.until(lambda: self.outlet.log.cursor == newest)


@asynccontextmanager
async def run_outlet(
    folder: Path,
    cluster: KafkaCluster,
    *,
    client: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Service]:
    """Run the outlet; leaving it cancels it, as a stop does."""
    kafka = KafkaSettings(
        brokers=cluster.brokers,
        topic=TOPIC,
        begin="oldest",
        client=client or {},
        **settings,
    )
    state = folder / "state"
    config = Config(
        socket=SocketSettings(path=folder / "g.sock"),
        state=StateSettings(dir=state),
        kafka={"out": kafka},
    )
    with (
        closing(LogStore(state)) as store,
        closing(
            TimerStore(state, log=store.log, retry_policy=config.timers.retry_policy)
        ) as table,
    ):
        access = access_to(config.access, group=os.getegid())
        sidecar = load(config, store, table, Clock(), access)
        assert sidecar.outlets is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sidecar.outlets.run)
            yield Service(sidecar, store)
            nursery.cancel_scope.cancel()


def check(reader: TopicReader, newest: int, oldest: int = 1) -> None:
    """All records arrived, and those of each user in order but for repeats."""
    reader.until_seqs({*range(oldest, newest + 1)})
    for key, seqs in reader.first_seqs().items():
        assert seqs == sorted(seqs), key
