"""A journal over an open store, with the timers' table beside it."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from liveness.core.timers import Order, Settlement
from liveness.metrics import Counts
from liveness.service.clock import Clock
from liveness.service.journal import Journal
from liveness.service.store import Batch, Store
from liveness.service.timerjournal import TimerJournal
from liveness.service.timertable import TimerTable


def _forget(_orders: list[Order], _settlement: Settlement) -> None:
    """What becomes of timers is no business of a test that has none."""


@contextmanager
def journal_of(
    store: Store,
    *,
    published: Callable[[Batch], None],
    counts: Counts | None = None,
    settled: Callable[[list[Order], Settlement], None] = _forget,
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
