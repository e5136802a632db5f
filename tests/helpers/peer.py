"""Both ends of a link, played by a test frame by frame, under asyncio and trio."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc

from tests.helpers.wire import Frame, Frames, Record, contents, hello, packed

SOON_S: Final = 120.0
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
    record = {"seq": seq, "kind": "timer", "gateway": gateway, "key": key}
    return record | {"due": 1_000 * seq, "attempt": 1, "at": 1_000 * seq} | options


class Endpoint:
    """One end of a link. It reads only when asked to."""

    within_s = SOON_S  # how long it waits for a frame

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._frames = Frames()

    async def send(self, *frames: Frame) -> None:
        await self.send_bytes(packed(*frames))

    async def send_bytes(self, data: bytes) -> None:
        await self._stream.send(data)

    async def receive(self) -> Frame | None:
        """The next frame; None at the end of the stream."""
        with anyio.fail_after(self.within_s):
            while (frame := self._frames.next()) is None:
                try:
                    self._frames.feed(await self._stream.receive())
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return None
        return frame


class Caller(Endpoint):
    welcome: dict[str, Any]

    async def hello(self, name: str, **options: Any) -> dict[str, Any]:
        """Introduces itself; what `welcome` says."""
        await self.send(hello(name, **options))
        (self.welcome,) = await self.expect("welcome")
        return self.welcome

    async def expect(self, name: str) -> list[Any]:
        return contents(await self.receive(), name)

    async def records(self, count: int | None = None) -> list[Record]:
        """Exactly *count* records, in any number of frames; or those of one frame."""
        records: list[Record] = []
        while len(records) < (1 if count is None else count):
            records += (await self.expect("notices"))[0]
        assert count in (None, len(records)), records
        return records

    async def last(self) -> Frame:
        last = None
        while (frame := await self.receive()) is not None:
            last = frame
        assert last is not None
        return last

    async def sync(self) -> None:
        """Waits until everything sent is applied and on disk."""
        await self.send(["ping", 0])
        assert await self.expect("pong") == [0]

    async def apply(self, *frames: Frame) -> None:
        await self.send(*frames)
        await self.sync()


class Link(Endpoint):
    """One gateway's link, from its hello on."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        super().__init__(stream)
        self.hello: dict[str, Any] = {}
        self.is_answering = True  # pings by pongs
        self.acked = 0
        self.newest = 0  # record that was sent

    async def fire(self, *records: dict[str, Any]) -> None:
        self.newest = max(self.newest, *(record["seq"] for record in records))
        await self.send(["notices", records])

    async def next(self, *names: str) -> Frame:
        """The next frame of one of these names; pings and acks are seen to."""
        with anyio.fail_after(SOON_S):
            while (frame := await self.receive()) is not None:
                if frame[0] == "ack":
                    self.acked = frame[1]
                if frame[0] == "ping" and self.is_answering:
                    await self.send(["pong", frame[1]])
                if frame[0] in names:
                    return frame
        raise anyio.EndOfStream

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
    def __init__(self, path: Path, listener: anyio.abc.SocketListener) -> None:
        self.path = path
        self._listener = listener
        self._links: list[Link] = []

    async def link(self, **welcome: Any) -> Link:
        with anyio.fail_after(SOON_S):
            link = Link(await self._listener.accept())
        self._links.append(link)
        (_name, link.hello) = await link.next("hello")
        log = {"next": 1 + max(one.newest for one in self._links)}
        await link.send(["welcome", WELCOME | log | welcome])
        return link

    async def aclose(self) -> None:
        for link in self._links:
            await link.close()


@asynccontextmanager
async def listening(path: Path) -> AsyncIterator[Peer]:
    """Listen at *path*; all links are closed at the end."""
    async with await anyio.create_unix_listener(path) as listener:
        assert isinstance(listener, anyio.abc.SocketListener)
        peer = Peer(path, listener)
        try:
            yield peer
        finally:
            with anyio.CancelScope(shield=True):
                await peer.aclose()
