"""The timing wheel with its table of users, and the batches of records that it fills.

All of it but `devices` exists twice, in Python and compiled.
"""

# Imports: core, core.wire.
# Never: trio, anyio, asyncio, socket, sqlite3, os, time, threading.
