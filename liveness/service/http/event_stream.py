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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from functools import partial
from math import inf
from typing import Final

import trio
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

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


class StreamKind(StrEnum):
    """The content of a stream."""

    FEED = "feed"  # records
    LIVE = "live"  # summaries
    USERS = "users"  # the list of everyone online


# Slots for one kind. A list of everyone online takes disk space until it is read.
MAX_OF_KIND: Final = {StreamKind.USERS: 4}


class StreamEnded(Exception):
    """A stream ends; the message is the reason for its reader."""


class StreamWriter:
    """Sends one stream to its reader.

    The turnstile is passed before each new batch of data.
    """

    def __init__(
        self,
        send: Send,
        media: str,
        is_stopping: Callable[[], bool],
        is_allowed: Callable[[], bool],
        turnstile: Turnstile,
    ) -> None:
        self._turnstile = turnstile
        self.is_allowed = is_allowed
        self.is_stopping = is_stopping
        self.wake = Notifier()  # notified when there may be new data
        self._send = send
        self._media = media
        self._has_begun = False

    async def begin(self) -> None:
        """Send the head of the answer; after that the request cannot be refused."""
        if not self._has_begun:
            self._has_begun = True
            headers = [
                (b"content-type", self._media.encode()),
                (b"x-accel-buffering", b"no"),  # or nginx buffers small pieces
            ]
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": headers}
            )

    async def send(self, data: bytes) -> None:
        """Send data; returns when the client has room for more.

        Raises:
            StreamEnded: The reader's token is no longer valid.
        """
        self._check()
        await self.write(data)

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send data without that check: every reader may see why its stream ends."""
        await self.begin()
        await self._send(
            {"type": "http.response.body", "body": data, "more_body": not is_last}
        )

    async def wait(self, within_s: float = inf) -> bool:
        """Wait until there may be new data, but only *within_s*; return whether there may.

        Raises:
            StreamEnded: The sidecar stops and everything was sent, or as for `send`.
        """
        if self.is_stopping() and not self.wake.is_notified:
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
        await self._turnstile.wait()
        return not waiting.cancelled_caught

    async def give_way(self) -> None:
        """Let others run before the next piece of work."""
        await self._turnstile.wait()

    def _check(self) -> None:
        if not self.is_allowed():
            raise StreamEnded(NOT_ALLOWED)


# Sends the data of a stream until it ends.
Produce = Callable[[StreamWriter], Awaitable[object]]


class Streams:
    """The open streams of all listeners.

    At most *most* are open at a time. Each stream passes the turnstile before each new
    batch of data.
    """

    def __init__(self, *, most: int, counts: Counts, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self.open: Counter[str] = Counter({kind.value: 0 for kind in StreamKind})
        self._most = most
        self._counts = counts
        self._is_stopping = False
        self._writers: set[StreamWriter] = set()

    def stop(self) -> None:
        """End all streams, each after it has sent all its data."""
        self._is_stopping = True
        for writer in self._writers:
            writer.wake.notify()

    def end_disallowed(self) -> None:
        """End the streams whose reader's token is no longer valid.

        To be called when the token changes. Without it a stream notices at its next send.
        """
        for writer in self._writers:
            if not writer.is_allowed():
                writer.wake.notify()

    def response(self, kind: StreamKind, produce: Produce, *, media: str) -> Response:
        """An answer whose data is sent by *produce*; 503 if there is no free slot.

        Until it has sent something, *produce* may still refuse the request by `ApiError`.
        """

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            writer = StreamWriter(
                *(send, media),
                lambda: self._is_stopping,
                scope.get(STILL_ALLOWED, lambda: True),
                self._turnstile,
            )
            try:
                if scope["method"] != "HEAD":  # HEAD gets the head only
                    await self._run(kind, produce, writer, receive)
            except ApiError as refusal:
                await refusal.answer()(scope, receive, send)
            else:
                await writer.write(b"", is_last=True)

        return _StreamResponse(answer)

    def events(self, kind: StreamKind, produce: Produce) -> Response:
        """Like `response`, for events; the last one says why the stream ends."""
        return self.response(
            kind, partial(_as_events, produce), media="text/event-stream; charset=utf-8"
        )

    async def _run(
        self, kind: StreamKind, produce: Produce, writer: StreamWriter, receive: Receive
    ) -> None:
        # There is no checkpoint between these checks and taking the slot.
        if self.open.total() >= self._most:
            self._counts.limits_met["http.max_streams"] += 1
            message = f"all {self._most} streams are in use"
            raise ApiError(503, f"{message}; ask again later (http.max_streams)")
        if self.open[kind] >= MAX_OF_KIND.get(kind, self._most):
            self._counts.limits_met["http.max_streams"] += 1
            message = f"all {self.open[kind]} streams of this kind are in use"
            raise ApiError(503, f"{message}; ask again later")
        self.open[kind] += 1
        self._writers.add(writer)
        refusal: ApiError | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_disconnect, receive, nursery.cancel_scope)
                try:
                    with suppress(StreamEnded):  # `_as_events` has sent the reason
                        await produce(writer)
                except ApiError as error:
                    refusal = error
                nursery.cancel_scope.cancel()
        finally:
            self._writers.discard(writer)
            self.open[kind] -= 1
        if refusal is not None:
            raise refusal


def event(name: str, data: str, *, id: str) -> bytes:
    """One event; *data* is one line."""
    return f"id: {id}\nevent: {name}\ndata: {data}\n\n".encode()


async def _as_events(produce: Produce, writer: StreamWriter) -> None:
    try:
        await writer.send(f"retry: {RETRY_MS}\n\n".encode())
        await produce(writer)
    except StreamEnded as reason:
        data = json_line({"why": str(reason)})
        # Without an id, so that a browser keeps the last one.
        await writer.write(f"event: end\ndata: {data}\n\n".encode())


class _StreamResponse(Response):
    """A response that an ASGI application sends."""

    def __init__(self, answer: ASGIApp) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, receive, send)


async def _until_disconnect(receive: Receive, reading: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reading.cancel()
