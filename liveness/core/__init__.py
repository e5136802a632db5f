"""The rules of links, users and timers, without I/O: time and values in, values out."""

# Imports: errors.
# Never: trio, anyio, asyncio, socket, sqlite3, os, time, threading.
