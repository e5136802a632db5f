"""Frames as bytes, and the requests in them."""

# Imports: core, errors.
# Never: trio, anyio, asyncio, socket, sqlite3, os, time, threading.
