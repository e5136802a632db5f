"""Who is online, and when a silent user may be judged."""

# Imports: core, core.wheel, core.wire.
# Never: trio, anyio, asyncio, socket, sqlite3, os, time, threading.
