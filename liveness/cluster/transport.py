"""A connection of coredis over a stream that we opened.

It is a module of its own because it imports coredis, which need not be installed without a
cluster in the settings.
"""

from collections.abc import Callable
from typing import Any, Final

from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint
from coredis.connection import BaseConnection, TCPLocation

# Bytes that are parsed at a time, in some 2 ms.
PIECE_BYTES: Final = 16_384
# What we request does not bound an answer: a user may have any number of sessions. A page
# of the stream has 5 MB.
MOST_ANSWER_BYTES: Final = 64 * 1024 * 1024
# Most messages that answer nothing, over one connection. We subscribe to nothing, so Redis
# sends none; coredis would keep them all.
MOST_UNASKED: Final = 1_000


class RedisConnection(BaseConnection):
    """Commands and answers of RESP3 over a stream; `run` says hello and then serves.

    The TCP connection of coredis itself never closes its buffers if it cannot connect.

    The stream is closed at the end of `run`; host and port are for messages of coredis.
    """

    def __init__(
        self, stream: ByteStream, host: str, port: int, **options: Any
    ) -> None:
        super().__init__(TCPLocation(host, port), **options)
        self._opened = _Pieces(stream, self._check_bounds)
        self._answers = 0
        self._answered_at = 0  # bytes received up to the newest answer

    async def _connect(self) -> ByteStream:
        return self._opened

    def describe(self) -> str:
        return str(self.location)

    def _check_bounds(self) -> None:
        """Raise an error, which ends the connection, if Redis would not send this."""
        read = self.statistics
        if read.requests_resolved != self._answers:
            self._answers, self._answered_at = read.requests_resolved, read.bytes_read
        if read.bytes_read - self._answered_at > MOST_ANSWER_BYTES:
            raise ConnectionError(f"an answer has over {MOST_ANSWER_BYTES:,} bytes")
        buffers = self._push_message_buffer_in, self._streamed_message_buffer_in
        if sum(b.statistics().current_buffer_used for b in buffers) > MOST_UNASKED:
            raise ConnectionError(f"over {MOST_UNASKED:,} messages that answer nothing")


class _Pieces(ByteStream):
    """A stream that is read in pieces, between which *check* and other tasks run."""

    def __init__(self, stream: ByteStream, check: Callable[[], None]) -> None:
        self._stream = stream
        self._check = check

    async def receive(self, max_bytes: int = PIECE_BYTES) -> bytes:
        await checkpoint()  # with TLS, decrypted data comes without one
        self._check()
        return await self._stream.receive(min(max_bytes, PIECE_BYTES))

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
