"""Links of gateways and watchers: who they are, what they ask, what they are sent."""

# Imports: core, core.sessions, core.timers, core.wheel, core.wire, errors.
# Never: trio, anyio, asyncio, socket, sqlite3, os, time, threading.
