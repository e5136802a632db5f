"""An outlet to Kafka over a log of its own, and the records that it sends."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from liveness.config.outlet_settings import KafkaSettings
from liveness.core.records import OFFLINE, ONLINE, Record
from liveness.metrics.now import OutletNow
from liveness.service.outlets.kafka.kafka_outlet import KafkaOutlet
from liveness.service.outlets.supervisor import Outlets
from tests.helpers import kafka_cluster
from tests.helpers.kafka_cluster import TOPIC, KafkaCluster, TopicReader
from tests.service.outlets.outlet_rig import OutletRig, outlet_rig

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


@asynccontextmanager
async def run_outlet(
    folder: Path,
    cluster: KafkaCluster,
    *,
    client: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Service]:
    """Run the outlet; leaving it cancels it, as a stop does."""
    chosen = KafkaSettings(
        brokers=cluster.brokers,
        topic=TOPIC,
        begin="oldest",
        client=client or {},
        **settings,
    )
    with outlet_rig(folder / "state") as rig:
        outlet = KafkaOutlet("out", chosen, rig.access)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Outlets([outlet], rig.store, retention_s=3_600).run)
            yield Service(rig, outlet)
            nursery.cancel_scope.cancel()


def check(reader: TopicReader, newest: int, oldest: int = 1) -> None:
    """All records arrived, and those of each user in order but for repeats."""
    reader.until_seqs({*range(oldest, newest + 1)})
    for key, seqs in reader.first_seqs().items():
        assert seqs == sorted(seqs), key
