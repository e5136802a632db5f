"""Streamed answers: server-sent events, and answers that are too large for memory.

Streams have fewer slots than a listener has connections, so that they leave room for
ordinary requests. A stream ends when the sidecar stops, and when its reader's token is no
longer valid; a last event says why.

An event has a name, a line of JSON, and an id, which a browser sends when it reconnects. In
a quiet stream a comment is sent now and then: proxies close connections that look dead.

Source:
    WHATWG HTML, "Server-sent events".
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from liveness.metrics.counts import Counts
from liveness.service.common.notifier import Notifier
from liveness.service.common.turnstile import Turnstile
from liveness.service.http.api import ApiError
from liveness.service.http.middleware import STILL_ALLOWED
from liveness.text import json_line

# Proxies give up on a silent upstream after 30 to 60 s.
QUIET_S: Final = 15.0
# How long a browser waits before it reconnects. Gateways reconnect within a second too.
RETRY_MS: Final = 1_000
STOPPING: Final = "the sidecar stops; connect again to continue"
NOT_ALLOWED: Final = (
    "the token was replaced; connect again with the new one to continue"
)


# What streams send: records, summaries, or the list of everyone online.
FEED: Final = "feed"
LIVE: Final = "live"
USERS: Final = "users"
# Slots for one kind. A list of everyone online takes disk space until it is read.
MAX_OF_KIND: Final = {USERS: 4}


class StreamEnded(Exception):
    """A stream ends; the message is the reason for its reader."""


class Stream(Response):
    """An answer whose data is sent by a function, in a slot of `Streams`.

    The turnstile is passed before each new batch of data.
    """

    def __init__(
        self, streams: "Streams", kind: str, produce: "Produce", media: str
    ) -> None:
        super().__init__()
        self.wake = Notifier()  # notified when there may be new data
        self.streams = streams
        self._kind = kind
        self._produce = produce
        self._media = media
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; once data was sent the request cannot be refused any more."""
        self._send = send
        self.is_allowed: Callable[[], bool] = scope.get(STILL_ALLOWED, lambda: True)
        if scope["method"] != "HEAD":  # HEAD gets the head only
            with self.streams.slot(self._kind, self):
                await self._produce_until_disconnect(receive)
        await self.write(b"", is_last=True)

    async def send(self, data: bytes) -> None:
        """Send data; returns when the client has room for more.

        Raises:
            StreamEnded: The reader's token is no longer valid.
        """
        self._check()
        await self.write(data)

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send data without that check: every reader may see why its stream ends."""
        if not self._has_begun:
            self._has_begun = True
            headers = [
                (b"content-type", self._media.encode()),
                (b"x-accel-buffering", b"no"),  # or nginx buffers small pieces
            ]
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": headers}
            )
        await self._send(
            {"type": "http.response.body", "body": data, "more_body": not is_last}
        )

    async def wait(self, within_s: float = inf) -> bool:
        """Wait until there may be new data, but only *within_s*; return whether there may.

        Raises:
            StreamEnded: The sidecar stops and everything was sent, or as for `send`.
        """
        if self.streams.is_stopping and not self.wake.is_notified:
            raise StreamEnded(STOPPING)
        until = trio.current_time() + within_s
        while True:
            with trio.move_on_at(min(trio.current_time() + QUIET_S, until)) as waiting:
                await self.wake.wait()
            if not waiting.cancelled_caught or trio.current_time() >= until:
                break
            await self.send(b": quiet\n\n")
        self._check()
        # One reader at a time: a commit, or a new summary, wakes all of them.
        await self.streams.turnstile.wait()
        return not waiting.cancelled_caught

    def _check(self) -> None:
        if not self.is_allowed():
            raise StreamEnded(NOT_ALLOWED)

    async def _produce_until_disconnect(self, receive: Receive) -> None:
        refusal: ApiError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_disconnect, receive, nursery.cancel_scope)
            try:
                await self._produce(self)
            except ApiError as error:
                refusal = error
            except StreamEnded:
                pass  # `Streams.events` has sent the reason
            nursery.cancel_scope.cancel()
        if refusal is not None:
            raise refusal


# Sends the data of a stream until it ends. Until it has sent something, it may still refuse
# the request by `ApiError`.
Produce = Callable[[Stream], Awaitable[object]]


class Streams:
    """The open streams of all listeners: at most *most* at a time."""

    def __init__(self, *, most: int, counts: Counts, turnstile: Turnstile) -> None:
        self.turnstile = turnstile
        self.open: Counter[str] = Counter({FEED: 0, LIVE: 0, USERS: 0})
        self.is_stopping = False
        self._most = most
        self._counts = counts
        self._streams: set[Stream] = set()

    def stop(self) -> None:
        """End all streams, each after it has sent all its data."""
        self.is_stopping = True
        for stream in self._streams:
            stream.wake.notify()

    def end_disallowed(self) -> None:
        """End the streams whose reader's token is no longer valid.

        To be called when the token changes. Without it a stream notices at its next send.
        """
        for stream in self._streams:
            if not stream.is_allowed():
                stream.wake.notify()

    def events(self, kind: str, produce: Produce) -> Stream:
        """A stream of events; the last one says why it ends."""

        async def produce_events(stream: Stream) -> None:
            try:
                await stream.send(f"retry: {RETRY_MS}\n\n".encode())
                await produce(stream)
            except StreamEnded as reason:
                data = json_line({"why": str(reason)})
                # Without an id, so that a browser keeps the last one.
                await stream.write(f"event: end\ndata: {data}\n\n".encode())

        media = "text/event-stream; charset=utf-8"
        return Stream(self, kind, produce_events, media)

    @contextmanager
    def slot(self, kind: str, stream: Stream) -> Iterator[None]:
        """A slot for a stream.

        Raises:
            ApiError: There is none.
        """
        message = ""
        if self.open.total() >= self._most:
            message = f"all {self._most} streams are in use; ask again later "
            message += "(http.max_streams)"
        elif self.open[kind] >= MAX_OF_KIND.get(kind, self._most):
            message = f"all {self.open[kind]} streams of this kind are in use; "
            message += "ask again later"
        if message:
            self._counts.limits_met["http.max_streams"] += 1
            raise ApiError(503, message)
        self.open[kind] += 1
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)
            self.open[kind] -= 1


def event(name: str, data: str, *, id: str) -> bytes:
    """One event; *data* is one line."""
    return f"id: {id}\nevent: {name}\ndata: {data}\n\n".encode()


async def _until_disconnect(receive: Receive, reading: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reading.cancel()
