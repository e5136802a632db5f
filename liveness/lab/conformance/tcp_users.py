"""Users of the gateway: TCP connections that speak the demo's protocol, a JSON object a
line."""

import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import trio

PIECE_BYTES: Final = 4_096
KEPT_LINES: Final = 50  # of what the gateway sent last
MOST_LINE: Final = 65_536


class TcpUser:
    """A user on one connection.

    Args:
        uid: Its name.
        stream: Its connection.
        changed: Is woken by each line, and by the end.
    """

    def __init__(
        self, uid: str, stream: trio.SocketStream, changed: trio.lowlevel.ParkingLot
    ) -> None:
        self.uid = uid
        self.conn: int | None = None  # by its login event
        self.lines: deque[dict[str, object]] = deque(maxlen=KEPT_LINES)
        self.closed_at: float | None = None  # by the gateway, on trio's clock
        self.pongs = 0
        self._stream = stream
        self._changed = changed

    @property
    def is_open(self) -> bool:
        """Whether the gateway has neither said bye nor closed the connection."""
        return self.closed_at is None

    @property
    def has_joined(self) -> bool:
        """Whether the gateway has let it in."""
        return any(line.get("joined") == self.uid for line in self.lines)

    async def send(self, *lines: Mapping[str, object]) -> None:
        """Write these lines at once; nothing happens if the connection has ended."""
        data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._stream.send_all(data.encode())

    async def ping(self, times: int = 1) -> None:
        """Be alive."""
        await self.send(*[{"ping": 1}] * times)

    async def close(self) -> None:
        """Close the connection without a logout."""
        await trio.aclose_forcefully(self._stream)

    async def listen(self) -> None:
        """Read until the connection ends."""
        unread = b""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self._stream.receive_some(PIECE_BYTES):
                *lines, unread = (unread + data).split(b"\n")
                unread = unread[-MOST_LINE:]
                for line in lines:
                    self._take(line)
                self._changed.unpark_all()
        self._ended()

    def _take(self, line: bytes) -> None:
        try:
            value = json.loads(line)
        except ValueError:
            return
        if isinstance(value, dict):
            self.lines.append(value)
            self.pongs += "pong" in value
            if "bye" in value:
                self._ended()

    def _ended(self) -> None:
        if self.closed_at is None:
            self.closed_at = trio.current_time()
        self._changed.unpark_all()
