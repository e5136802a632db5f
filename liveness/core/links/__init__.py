"""Links of gateways and watchers: names, requests, and outgoing frames."""

# Imports: core, core.sessions, core.timers, core.wire, errors.
# Never: trio, anyio, asyncio, socket, sqlite3, os, time, threading.
