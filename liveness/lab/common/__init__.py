"""What demo, bench, conformance and comparison share: processes, users, load, and a judge."""

# Imports: nothing.
# Never: sqlite3, starlette, structlog, hypercorn.
