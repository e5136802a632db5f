"""Timers: when each is due, and what a command changes of its row."""

# Imports: core, core.sessions, core.wheel, core.wire.
# Never: trio, anyio, asyncio, socket, sqlite3, os, time, threading.
