"""The rules of links, sessions and timers, without I/O: bytes and time in, values out."""

# Imports: errors.
# Never: trio, anyio, asyncio, socket, sqlite3, os, time, threading.
