"""The online users, and when a silent one may be judged."""

# Imports: core, core.wheel, core.wire.
# Never: trio, anyio, asyncio, socket, sqlite3, os, time, threading.
