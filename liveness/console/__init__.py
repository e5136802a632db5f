"""What commands, demo and bench share: terminal, progress bar, records, admin.sock."""

# Imports: config, core, errors, text.
# Never: anyio, sqlite3, structlog.
