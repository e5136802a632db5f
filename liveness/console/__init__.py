"""Shared by commands, demo and bench: terminal, records, `admin.sock`."""

# Imports: cluster, config, core, errors, text.
# Never: anyio, sqlite3, structlog.
