"""What demo, bench, conformance and comparison share: processes, users, load, and a judge."""

# Imports: compiled, core, errors.
# Never: sqlite3, starlette, structlog, hypercorn.
