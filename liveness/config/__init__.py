"""The settings: their declarations, sources, checks and default paths."""

# Imports: core, core.links, core.sessions, core.timers, core.wheel, core.wire, errors.
# Never: trio, anyio, sqlite3, structlog.
