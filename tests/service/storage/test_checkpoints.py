"""When a WAL is written back to its database, and what bounds it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from liveness.service.storage import log_store
from liveness.service.storage.database import companions, pragma, reading
from liveness.service.storage.log_store import LogStore
from liveness.service.storage.writer import CHECKPOINT_EVERY_S, MOST_GROWTH_BYTES
from tests.helpers import disk
from tests.service.storage.journals import fill

# More than SQLite by default leaves in a WAL.
MANY_BYTES = 8 * 2**20


class Rig:
    """A log, and what writes its WAL back."""

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self.writer = store.writer

    @property
    def wal_bytes(self) -> int:
        wal, *_ = companions(self.store.path)
        return wal.stat().st_size

    @property
    def growth(self) -> int:
        """Bytes that the database has to grow by."""
        pages = pragma(self.store._db, "page_count")
        size = pages * pragma(self.store._db, "page_size")
        return size - self.store.path.stat().st_size

    async def write(self, size: int) -> None:
        """Write roughly this many bytes, in commits of 1,000 records."""
        for _ in range(size // 50_000):
            await self.writer.write(lambda: fill(self.store, 1_000), pending=int)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.writer.run_checkpoints)
            yield
            nursery.cancel_scope.cancel()


async def test_the_next_commit_uses_a_wal_again_that_was_written_back(
    store: LogStore, jumping: MockClock
) -> None:
    rig = Rig(store)
    async with rig.running():
        await rig.write(MANY_BYTES)
        before = rig.wal_bytes
        assert before > rig.growth > MANY_BYTES / 2  # no commit has done it
        await trio.sleep(2 * CHECKPOINT_EVERY_S)
        assert rig.growth == 0
        await rig.write(MANY_BYTES // 2)
        assert rig.wal_bytes == before


async def test_commits_write_a_wal_above_its_bound_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_store, "WAL_BYTES", MANY_BYTES)
    with closing(LogStore(tmp_path)) as store:
        rig = Rig(store)
        await rig.write(4 * MANY_BYTES)
        assert MANY_BYTES / 2 < rig.wal_bytes < 2 * MANY_BYTES
        with reading(store.path) as db:  # keeps the WAL
            db.execute("begin")
            db.execute("select * from log").fetchone()
            await rig.write(2 * MANY_BYTES)
            assert rig.wal_bytes > 2 * MANY_BYTES
        before = rig.wal_bytes
        await rig.write(MANY_BYTES)
        assert rig.wal_bytes < before + MANY_BYTES / 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk.mounted(tmp_path / "disk", 64) as folder:
        yield folder


async def test_on_a_small_disk_a_database_never_has_to_grow_by_much(
    small_disk: Path, jumping: MockClock
) -> None:
    with closing(LogStore(small_disk / "state")) as store:
        rig = Rig(store)
        for _ in range(10):
            await rig.write(MOST_GROWTH_BYTES // 2)
            assert rig.growth <= MOST_GROWTH_BYTES
