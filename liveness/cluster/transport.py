"""A connection of coredis over a stream that we opened.

It is a module of its own because it imports coredis, which need not be installed without a
cluster in the settings.
"""

from typing import Any, Final

from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint
from coredis.connection import BaseConnection, TCPLocation

# Bytes that are parsed at a time, in some 2 ms.
PIECE_BYTES: Final = 16_384


class RedisConnection(BaseConnection):
    """Commands and answers of RESP3 over a stream; `run` says hello and then serves.

    The TCP connection of coredis itself never closes its buffers if it cannot connect.

    The stream is closed at the end of `run`; host and port are for messages of coredis.
    """

    def __init__(
        self, stream: ByteStream, host: str, port: int, **options: Any
    ) -> None:
        super().__init__(TCPLocation(host, port), **options)
        self._opened = _Pieces(stream)

    async def _connect(self) -> ByteStream:
        return self._opened

    def describe(self) -> str:
        return str(self.location)


class _Pieces(ByteStream):
    """A stream that is read in pieces, between which other tasks run."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    async def receive(self, max_bytes: int = PIECE_BYTES) -> bytes:
        await checkpoint()  # with TLS, decrypted data comes without one
        return await self._stream.receive(min(max_bytes, PIECE_BYTES))

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
