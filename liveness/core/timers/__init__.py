"""Timers: the moments when they are due, and the effect of commands on their rows."""

# Imports: core, core.sessions, core.wheel, core.wire.
# Never: trio, anyio, asyncio, socket, sqlite3, os, time, threading.
