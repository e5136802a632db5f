"""The rules of links, sessions and timers, without I/O: bytes and time in, values out."""

# Imports: core.links, core.sessions, core.timers, core.wheel, core.wire, errors.
# Never: trio, anyio, asyncio, socket, sqlite3, os, time, threading.
