"""The settings: what there is, where values come from, and the default paths."""

# Imports: core, errors.
# Never: trio, anyio, sqlite3, structlog.
