"""Records, timers, and a journal over an open store with the timers' table beside it."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager

import trio

from liveness.core.records import Record, Uid
from liveness.core.timers import Order, Settlement, Timer
from liveness.metrics import Counts
from liveness.service.clock import Clock
from liveness.service.journal import Journal
from liveness.service.store import Batch, Store
from liveness.service.timerjournal import TimerJournal
from liveness.service.timertable import TimerTable


def online(
    seq: int, uid: Uid | None = None, *, gateway: str = "g", at: int = 1_000
) -> Record:
    """A login, of a user of its own unless one is named."""
    user = f"u{seq}" if uid is None else uid
    return Record(seq, "online", user, gateway, seq, None, "login", at)


def pending(
    number: int,
    key: str | None = None,
    *,
    gateway: str = "g",
    ext: str | None = None,
    due: int = 1_000,
    since: int = 1,
    at: int = 1,
) -> Timer:
    """A timer as it is when it was just asked for, with a key of its own unless named."""
    return Timer(
        number, gateway, key or f"k{number}", ext, "pending", due, due, 0, None, since,
        None, at, None, at,
    )  # fmt: skip


def _ignored(*_: object) -> None:
    """What becomes of timers is no business of a test that has none."""


@contextmanager
def journal_of(
    store: Store,
    *,
    published: Callable[[Batch], None],
    counts: Counts | None = None,
    settled: Callable[[list[Order], Settlement], None] = _ignored,
    clock: Clock | None = None,
) -> Iterator[Journal]:
    """The journal of a store, and of timers in the same folder."""
    clock = clock or Clock()
    with closing(TimerTable(store.folder, log=store.log)) as table:
        yield Journal(
            store,
            TimerJournal(table, clock=clock, settled=settled),
            clock=clock,
            counts=counts or Counts(),
            published=published,
        )


@asynccontextmanager
async def writing(journal: Journal) -> AsyncIterator[None]:
    """Has a journal write its two files meanwhile."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        nursery.start_soon(journal.timers.run)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def trimming(
    journal: Journal,
    *in_use: tuple[str, str],
    most_bytes: int = 2**40,
    forgot: Callable[[dict[str, int]], None] = _ignored,
) -> AsyncIterator[None]:
    """Has a journal trim both meanwhile, with a retention of a minute."""

    async def trim() -> None:
        await journal.trim(
            retention_s=60,
            most_bytes=most_bytes,
            most_ended=2**40,
            in_use=lambda: in_use,
            forgot=forgot,
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trim)
        yield
        nursery.cancel_scope.cancel()
