"""A log, the database of outlets, and the reading side of an outlet."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from liveness.config.outlet_settings import OutletSettings
from liveness.core.records import Logged
from liveness.service.common.turnstile import Turnstile
from liveness.service.outlets.common.outlet_log import LogAccess, OutletLog
from liveness.service.outlets.common.outlet_store import OutletStore
from liveness.service.outlets.supervisor import CLOSE_S
from liveness.service.storage.log_tail import TailEntry
from tests.service.storage.journals import Log, VirtualClock, log_of, publish

NAME = "webhooks.test"
# By how much a wall clock is set, in seconds.
TEN_DAYS = 864_000.0
PLAIN = OutletSettings()


@dataclass
class OutletRig:
    """A log with records, and what its outlets share."""

    log: Log
    store: OutletStore
    access: LogAccess
    clock: VirtualClock

    def publish(self, *records: Logged) -> None:
        """Commit records to the log, which are decided now."""
        publish(self.log, *records)

    @asynccontextmanager
    async def outlet_log(
        self, settings: OutletSettings = PLAIN, name: str = NAME
    ) -> AsyncIterator[OutletLog]:
        """The log as one outlet reads it, as after a start of the sidecar."""
        await self.store.open(keep=[name], unused_s=3_600)
        found = OutletLog(name, settings, self.access)
        await found.open()
        try:
            yield found
        finally:
            found.close()
            with trio.move_on_after(CLOSE_S, shield=True):
                await self.store.close()


@contextmanager
def outlet_rig(folder: Path, clock: VirtualClock | None = None) -> Iterator[OutletRig]:
    clock = clock or VirtualClock()
    with log_of([], folder, keep=1_000, clock=clock) as log:
        store = OutletStore(folder, clock)
        access = LogAccess(
            log.log_writer, log.feed, store, clock, Turnstile(), 100, lambda *_: False
        )
        yield OutletRig(log, store, access, clock)


def seqs(entries: Sequence[TailEntry]) -> list[int]:
    return [entry.record.seq for entry in entries]
