"""A user's TCP connection to a gateway, which speaks a JSON object a line."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import trio

PIECE_BYTES: Final = 4_096
MOST_LINE: Final = 65_536  # of a longer line only the end is kept


class LineConnection:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._unread = b""

    async def send(self, *lines: Mapping[str, object]) -> None:
        """Write these lines at once; nothing happens if the connection has ended."""
        data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._stream.send_all(data.encode())

    async def receive(self) -> list[dict[str, Any]] | None:
        """The objects that have come, at times none; None once the connection has ended."""
        data = b""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            data = await self._stream.receive_some(PIECE_BYTES)
        if not data:
            return None
        *lines, unread = (self._unread + data).split(b"\n")
        self._unread = unread[-MOST_LINE:]
        return [value for line in lines if isinstance(value := _parsed(line), dict)]

    async def close(self) -> None:
        """Close it at once, without a last message to the gateway."""
        await trio.aclose_forcefully(self._stream)


@asynccontextmanager
async def open_connection(host: str, port: int) -> AsyncIterator[LineConnection]:
    """Connects; closes the connection at the end."""
    async with await trio.open_tcp_stream(host, port) as stream:
        yield LineConnection(stream)


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
