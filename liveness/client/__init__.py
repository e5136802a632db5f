"""The library that gateways and other programs import, for trio, asyncio and threads."""

# Imports: cluster, config, core, core.sessions, core.wheel, core.wire, errors,
#   host_clock, text.
# Never: trio, starlette, structlog, sqlite3.
