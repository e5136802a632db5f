"""coredis' connection, over a stream that we opened.

A module of its own, as it imports coredis: without a cluster in the settings it need not
be installed.
"""

from typing import Any

from anyio.abc import ByteStream
from coredis.connection import BaseConnection, TCPLocation


class RedisConnection(BaseConnection):
    """Commands and answers of RESP3 over a stream; `run` says hello and then serves.

    Not coredis' own TCP connection: its buffers are never closed if it cannot connect.

    Args:
        stream: Open; it is closed at the end of `run`.
        host: Where it leads, for coredis' texts.
        port: Likewise.
        options: Those of `BaseConnection`.
    """

    def __init__(
        self, stream: ByteStream, host: str, port: int, **options: Any
    ) -> None:
        super().__init__(TCPLocation(host, port), **options)
        self._opened = stream

    async def _connect(self) -> ByteStream:
        return self._opened

    def describe(self) -> str:
        """Where it leads."""
        return str(self.location)
