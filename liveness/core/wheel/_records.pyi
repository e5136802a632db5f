"""Records that were decided together, compiled; `record_batch.RecordBatch` documents it."""

from liveness.core.wheel.record_batch import RecordBatch as RecordBatch
