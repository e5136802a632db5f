"""Batches of records for tests."""

from collections.abc import Iterable

from liveness.config.compiled import RecordBatch
from liveness.core.records import Logged, OnlineRow
from liveness.core.wheel.record_batch import Opening


def batch_of(
    records: Iterable[Logged],
    *,
    due: float = 0.0,
    opened: Iterable[OnlineRow] = (),
) -> RecordBatch:
    openings = {row.session: Opening(row.start_ms, row.timeout) for row in opened}
    batch = RecordBatch()
    for record in records:
        batch.append(record, due=due, opening=openings.get(record.seq))
    return batch
