"""What demo, bench, conformance and comparison share: processes, users, load, and a judge."""

# Imports: config, core, errors.
# Never: sqlite3, starlette, structlog.
