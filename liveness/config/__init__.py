"""The settings: their declarations, sources, checks and default paths."""

# Imports: core, errors.
# Never: trio, anyio, sqlite3, structlog.
