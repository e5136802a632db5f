"""The sidecar's end of gateways' links, played by a test, frame by frame."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc

from tests.wire import Frame, Frames, packed

SOON_S: Final = 10.0
WELCOME: Final[dict[str, Any]] = {
    "protocol": 1,
    "server": "scripted/1",
    "features": ["ack", "after", "timers"],
    "log": "one",
    "timeout": 30,
    "flush": 0.02,
    "run_timeout": 60,
    "max_batch": 4_000,
    "max_frame": 1 << 20,
    "window": 10_000,
}


def timer(seq: int, key: str, gateway: str = "gw-1", **options: Any) -> dict[str, Any]:
    """The record of a timer that has fired."""
    record = {"seq": seq, "kind": "timer", "gateway": gateway, "key": key}
    return record | {"due": 1_000 * seq, "attempt": 1, "at": 1_000 * seq} | options


class Link:
    """One gateway's link, from its hello on."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.hello: dict[str, Any] = {}
        self.is_answering = True  # pings by pongs
        self.acked = 0
        self.newest = 0  # record that was sent
        self._stream = stream
        self._frames = Frames()

    async def send(self, *frame: Any) -> None:
        await self._stream.send(packed([*frame]))

    async def fire(self, *records: dict[str, Any]) -> None:
        self.newest = max(self.newest, *(record["seq"] for record in records))
        await self.send("notices", records)

    async def next(self, *names: str) -> Frame:
        """The next frame of one of these names; pings and acks are seen to."""
        with anyio.fail_after(SOON_S):
            while True:
                for frame in self._frames:
                    if frame[0] == "ack":
                        self.acked = frame[1]
                    if frame[0] == "ping" and self.is_answering:
                        await self.send("pong", frame[1])
                    if frame[0] in names:
                        return frame
                self._frames.feed(await self._stream.receive())

    async def acks(self, seq: int) -> None:
        """Read on until everything up to there is acknowledged."""
        while self.acked < seq:
            await self.next("ack")

    async def drain(self) -> None:
        """Read on until nothing comes any more."""
        with suppress(
            anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError
        ):
            await self.next("nothing of this name")

    async def close(self) -> None:
        await self._stream.aclose()


class Peer:
    """A socket that gateways connect to."""

    def __init__(self, path: Path, listener: anyio.abc.SocketListener) -> None:
        self.path = path
        self._listener = listener
        self._links: list[Link] = []

    async def link(self, **welcome: Any) -> Link:
        """The next link, welcomed with these options."""
        with anyio.fail_after(SOON_S):
            link = Link(await self._listener.accept())
        self._links.append(link)
        (_name, link.hello) = await link.next("hello")
        log = {"next": 1 + max(one.newest for one in self._links)}
        await link.send("welcome", WELCOME | log | welcome)
        return link

    async def aclose(self) -> None:
        for link in self._links:
            await link.close()


@asynccontextmanager
async def listening(path: Path) -> AsyncIterator[Peer]:
    """Listen at *path*; whoever leaves closes all links."""
    async with await anyio.create_unix_listener(path) as listener:
        assert isinstance(listener, anyio.abc.SocketListener)
        peer = Peer(path, listener)
        try:
            yield peer
        finally:
            with anyio.CancelScope(shield=True):
                await peer.aclose()
