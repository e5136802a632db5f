"""The gateway's side of the wire: msgpack frames on a Unix socket, and nothing more.

This is all that a gateway needs to speak to its sidecar (`proto/README.md`). Events are
collected and written by one task, records are read by another: whoever writes without
reading will one day wait for a sidecar that waits for it. What is left out is to connect
anew, and to send again what no `pong` covered: here the demo ends with its sidecar.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgpack
import trio
import trio.abc

from liveness.errors import LivenessError

Frame: TypeAlias = list[Any]
Record: TypeAlias = dict[str, Any]

# Promised in hello: a gateway that was not heard for this long is taken for frozen, and
# none of its users for silent. A ping four times as often keeps the promise.
PING_S: Final = 2.0
# The unpacker counts all that it has not handed out: the largest frame, a thousand
# records of hard-to-spell users, and one receive more.
MAX_UNREAD_BYTES: Final = 4 * 1024 * 1024
# A busy sidecar reads later rather than drop anything, but not that much later.
MOST_BUSY_S: Final = 30.0


class SidecarLost(LivenessError):
    """The sidecar did not start, has ended, or refused what it was sent."""


@asynccontextmanager
async def connected(
    path: Path, *, name: str, timeout_s: float
) -> "AsyncIterator[Sidecar]":
    """A link to the sidecar at *path*, for a gateway that holds no connections yet."""
    hello = {"protocol": 1, "name": name, "timeout": timeout_s}
    hello |= {"ping": PING_S, "fresh": True}
    async with (
        await trio.open_unix_socket(str(path)) as stream,
        aclosing(_frames(stream)) as frames,
    ):
        await stream.send_all(msgpack.packb(["hello", hello]))
        match await anext(frames, None):
            case ["welcome", {"flush": flush_s, "max_batch": max_batch}, *_]:
                yield Sidecar(stream, frames, flush_s=flush_s, max_batch=max_batch)
            case answer:
                raise SidecarLost(f"the sidecar did not welcome us: {answer!r:.200}")


async def _frames(stream: trio.abc.ReceiveStream) -> AsyncGenerator[Frame]:
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_UNREAD_BYTES)
    async for data in stream:
        unpacker.feed(data)
        for frame in unpacker:
            yield frame


class Sidecar:
    """A link that was welcomed. Events may be reported before and while it `run`s.

    Args:
        stream: Where frames are written.
        frames: What is read there, `welcome` excepted.
        flush_s: From `welcome`: how long signs of life may be collected.
        max_batch: From `welcome`: the most users in one frame.
    """

    def __init__(
        self,
        stream: trio.abc.SendStream,
        frames: AsyncIterator[Frame],
        *,
        flush_s: float,
        max_batch: int,
    ) -> None:
        self.flush_s = flush_s
        self._stream = stream
        self._frames = frames
        self._max_batch = max_batch
        # By conn, so that each connection is in here once, however long the sidecar is
        # busy: what a queue of frames would not be, this is bounded.
        self._logouts: dict[int, str] = {}
        self._logins: dict[int, str] = {}
        self._messages: dict[int, str] = {}
        self._keepalives: dict[int, str] = {}
        self._ack: int | None = None
        self._pinged_at = 0.0
        self._is_urgent = trio.Event()

    # --- what the gateway reports ---------------------------------------------

    def login(self, conn: int, uid: str) -> None:
        """Reports that this connection was authenticated as *uid*'s."""
        self._logins[conn] = uid
        self._is_urgent.set()

    def message(self, conn: int, uid: str) -> None:
        """Reports a message, which is a sign of life too."""
        self._messages[conn] = uid

    def keepalive(self, conn: int, uid: str) -> None:
        """Reports a sign of life; only the latest of each flush is sent."""
        self._keepalives[conn] = uid

    def logout(self, conn: int, uid: str) -> None:
        """Reports that this connection has ended, and forgets its signs of life.

        One of them behind its logout would open a session again.
        """
        self._messages.pop(conn, None)
        self._keepalives.pop(conn, None)
        if self._logins.pop(conn, None) is None:
            self._logouts[conn] = uid
            self._is_urgent.set()

    def collected(self) -> Iterator[Frame]:
        """Gives what was reported since the last call, in frames, and forgets it."""
        yield from self._batches("logout", self._logouts)
        yield from self._batches("login", self._logins)
        for conn in self._messages:
            self._keepalives.pop(conn, None)  # one sign of life is enough
        yield from self._batches("message", self._messages)
        yield from self._batches("keepalive", self._keepalives)
        if self._ack is not None:
            yield ["ack", self._ack]
            self._ack = None

    def _batches(self, event: str, users: dict[int, str]) -> Iterator[Frame]:
        while batch := dict(islice(users.items(), self._max_batch)):
            yield [event, list(batch.values()), {"conn": list(batch)}]
            for conn in batch:
                del users[conn]

    # --- the link ---------------------------------------------------------------

    async def run(self, told: Callable[[Record], None]) -> None:
        """Writes what is reported, and gives each record to *told*, until cancelled.

        Args:
            told: Has acted on a record when it returns: then it is acknowledged.
        Raises:
            SidecarLost: The link has ended, or the sidecar refused a frame.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                async for frame in self._frames:
                    self._take(frame, told)
                raise SidecarLost("the sidecar closed the link")
        except* trio.BrokenResourceError:
            raise SidecarLost("the link to the sidecar broke") from None
        except* trio.TooSlowError:
            raise SidecarLost(f"it did not read for {MOST_BUSY_S:g} s") from None

    async def _write(self) -> None:
        """Sends what was collected: each flush, and at once what cannot wait."""
        while True:
            with trio.move_on_after(min(self.flush_s, PING_S / 4)):
                await self._is_urgent.wait()
            self._is_urgent = trio.Event()
            frames = list(self.collected())
            if trio.current_time() - self._pinged_at > PING_S / 4:
                self._pinged_at = trio.current_time()
                frames.append(["ping", self._pinged_at])
            with trio.fail_after(MOST_BUSY_S):
                await self._stream.send_all(b"".join(map(msgpack.packb, frames)))

    def _take(self, frame: Frame, told: Callable[[Record], None]) -> None:
        match frame:
            case ["notices", [*records], *_]:
                for record in records:
                    told(record)
                self._ack = records[-1]["seq"]  # it covers all before
                self._is_urgent.set()
            case ["error", {"message": message, "code": code}, *_]:
                raise SidecarLost(f"the sidecar refused a frame: {message} ({code})")
            case ["bye", {"reason": reason}, *_]:
                raise SidecarLost(f"the sidecar said bye: {reason}")
            case _:
                pass  # a pong, or something that a later version says
