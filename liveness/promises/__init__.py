"""Were the promises kept? Judged from what was sent and seen, by nothing of the product.

The promises are those of `docs/concepts.md`, by their numbers there.
"""

# Imports: nothing.
# Never: trio, anyio, asyncio, socket, sqlite3, os, time, threading, random.
