"""The redis-server of a process, which all its runs and histories use in turn."""

from contextlib import ExitStack, closing
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.helpers.redis_connection import RedisConnection
from tests.helpers.redis_servers import RedisServer

OPTIONS: Final = (
    *("--port", "0"),
    # Otherwise their order is drawn by the server, and a seed is not played again.
    *("--hash-max-listpack-value", "100000"),
    # So it trims what it may, and not only whole nodes of a hundred.
    *("--stream-node-max-entries", "1"),
)


@cache
def server_of(_process: int) -> RedisConnection:
    """The one server of this process, which ends with it; somebody may have used it.

    It is named by its id: one that is forked has another server.
    """
    stack = ExitStack()
    Finalize(None, stack.close, exitpriority=0)  # also runs as a worker of a pool ends
    folder = stack.enter_context(TemporaryDirectory(prefix="redis-"))
    server = stack.enter_context(RedisServer(Path(folder), *OPTIONS))
    server.start()
    return stack.enter_context(closing(RedisConnection(server.unix_socket)))
