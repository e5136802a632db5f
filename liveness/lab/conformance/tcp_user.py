"""A user of the gateway under test, on a TCP connection."""

from dataclasses import dataclass
from typing import Any, Final

import trio

from liveness.lab.common.line_connection import LineConnection

MOST_HEARD: Final = 1_000  # characters


@dataclass(eq=False)
class TcpUser:
    uid: str
    connection: LineConnection
    conn: int | None = None  # from its login event
    has_joined: bool = False  # the gateway has let it in
    heard: str = ""  # the end of what the gateway sent
    closed_at: float | None = None  # by the gateway, on trio's clock
    pongs: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the gateway has not closed the connection, or announced that."""
        return self.closed_at is None

    async def ping(self) -> None:
        await self.connection.send({"ping": 1})

    async def listen(self, changed: trio.lowlevel.ParkingLot) -> None:
        lines: list[dict[str, Any]] | None = []
        while lines is not None:
            lines = await self.connection.receive()
            for line in lines or ():
                self.heard = f"{self.heard} {line}".strip()[-MOST_HEARD:]
                self.has_joined |= line.get("joined") == self.uid
                self.pongs += "pong" in line
            if lines is None or any("bye" in line for line in lines):
                self.closed_at = self.closed_at or trio.current_time()
            changed.unpark_all()
