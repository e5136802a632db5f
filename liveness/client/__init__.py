"""The library that gateways and other programs import, for trio, asyncio and threads."""

# Imports: cluster, config, core, errors, host_clock, text.
# Never: trio, starlette, hypercorn, structlog, sqlite3.
