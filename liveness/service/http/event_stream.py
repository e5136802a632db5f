"""Answers that go on for as long as somebody reads them, and how events are written.

They have fewer places than a door has connections, so that whoever watches leaves room
for those who ask. They end when the sidecar stops, and when their reader would not be let
in any more, and say so.

A server-sent event is a name, a line of JSON and an id, by which a browser that connects
anew says how far it had come. A comment now and then keeps proxies from taking a quiet
stream for a dead one.

Source:
    WHATWG HTML, "Server-sent events".
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Final

import trio
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from liveness.metrics import Counts
from liveness.service.common.notifier import Notifier
from liveness.service.http.api import ApiError
from liveness.service.http.middleware import STILL_ALLOWED
from liveness.service.http.pacing import Turnstile
from liveness.text import json_line

# Proxies give up on a silent upstream after 30 to 60 s.
QUIET_S: Final = 15.0
# A browser waits so long before it connects anew: within the second in which gateways do.
RETRY_MS: Final = 1_000
STOPPING: Final = "the sidecar stops; connect again to go on"
NOT_ALLOWED: Final = (
    "the token was replaced, or the sign-in is too old; sign in or send the new token, and "
    "connect again to go on"
)


class StreamKind(StrEnum):
    """What a stream is of."""

    FEED = "feed"  # records
    LIVE = "live"  # summaries
    USERS = "users"  # those online


# Of one kind. What is told of everyone online lies on the disk until it is read.
MOST_OF: Final = {StreamKind.USERS: 4}


class StreamEnded(Exception):
    """A stream ends for a reason, which its reader is told."""


class StreamListener:
    """The one who reads a stream, as whoever tells it sees it.

    Args:
        send: To the client.
        media: What is told, for its head.
        is_stopping: Whether the sidecar stops.
        is_allowed: Whether the reader would be let in now.
        turnstile: Passed before there is more to tell.
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
        self.wake = Notifier()  # rung when there may be something to tell
        self._send = send
        self._media = media
        self._is_stopping = is_stopping
        self._has_begun = False

    @property
    def is_stopping(self) -> bool:
        """Whether the sidecar stops."""
        return self._is_stopping()

    async def begin(self) -> None:
        """Answer that there is a stream; from then on nothing can be refused."""
        if not self._has_begun:
            self._has_begun = True
            # nginx would keep back what comes in small pieces.
            headers = {"content-type": self._media, "x-accel-buffering": "no"}
            head = Response(headers=headers)
            del head.headers["content-length"]  # nobody knows it
            await self._send(
                {
                    "type": "http.response.start",
                    "status": head.status_code,
                    "headers": head.raw_headers,
                }
            )

    async def tell(self, data: bytes) -> None:
        """Send; returns when the client has room for more.

        Raises:
            StreamEnded: The reader would not be let in any more.
        """
        self._check()
        await self.write(data)

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """As `tell`, unchecked: that the stream ends is told to everyone."""
        await self.begin()
        await self._send(
            {"type": "http.response.body", "body": data, "more_body": not is_last}
        )

    async def wait(self) -> None:
        """Wait until there may be something to tell.

        Raises:
            StreamEnded: The sidecar stops, and all there was has been told; or as of `tell`.
        """
        if self.is_stopping and not self.wake.is_notified:
            raise StreamEnded(STOPPING)
        while True:
            with trio.move_on_after(QUIET_S) as waiting:
                await self.wake.wait()
            if not waiting.cancelled_caught:
                break
            await self.tell(b": quiet\n\n")
        self._check()
        # One reader at a time: a commit, or a new second, wakes them all.
        await self._turnstile.wait()

    def _check(self) -> None:
        if not self.is_allowed():
            raise StreamEnded(NOT_ALLOWED)


Tell = Callable[[StreamListener], Awaitable[None]]


class Streams:
    """The streams of all doors.

    Args:
        most: So many may be open at a time.
        counts: Where it is counted that there were as many.
        turnstile: Passed by each of them when there is more to tell.
    """

    def __init__(self, *, most: int, counts: Counts, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self.open: Counter[str] = Counter({kind.value: 0 for kind in StreamKind})
        self._most = most
        self._counts = counts
        self._is_stopping = False
        self._listeners: set[StreamListener] = set()

    def stop(self) -> None:
        """End all streams, once what there is was told."""
        self._is_stopping = True
        for listener in self._listeners:
            listener.wake.notify()

    def end_disallowed(self) -> None:
        """End the streams of those who would not be let in any more.

        For when that has changed: by itself a stream finds out when it tells something.
        """
        for listener in self._listeners:
            if not listener.is_allowed():
                listener.wake.notify()

    def answer(self, kind: StreamKind, tell: Tell, *, media: str) -> Response:
        """The answer that is told by *tell*, unless there is no place for it.

        Until it has told something it may still refuse, by `ApiError`.
        """

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            listener = StreamListener(
                *(send, media),
                lambda: self._is_stopping,
                scope.get(STILL_ALLOWED, lambda: True),
                self._turnstile,
            )
            try:
                if scope["method"] != "HEAD":  # who is told how an answer would begin
                    await self._run(kind, tell, listener, receive)
            except ApiError as refusal:
                await refusal.answer()(scope, receive, send)
            else:
                await listener.write(b"", is_last=True)

        return _Stream(answer)

    def events(self, kind: StreamKind, tell: Tell) -> Response:
        """As `answer`, of events; the last one says why there are no more."""
        return self.answer(
            kind, partial(_as_events, tell), media="text/event-stream; charset=utf-8"
        )

    async def _run(
        self, kind: StreamKind, tell: Tell, listener: StreamListener, receive: Receive
    ) -> None:
        # Not a moment between the look and the place that is taken.
        if self.open.total() >= self._most:
            self._counts.limits_met["http.max_streams"] += 1
            told = f"there are {self._most} streams, as many as there may be"
            raise ApiError(503, f"{told}; ask again later, or raise http.max_streams")
        if self.open[kind] >= MOST_OF.get(kind, self._most):
            self._counts.limits_met["http.max_streams"] += 1
            told = f"{self.open[kind]} others read this by now, as many as there may be"
            raise ApiError(503, f"{told}; ask again later")
        self.open[kind] += 1
        self._listeners.add(listener)
        refusal: ApiError | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
                try:
                    with suppress(StreamEnded):  # by events, the reader was told why
                        await tell(listener)
                except ApiError as error:
                    refusal = error
                nursery.cancel_scope.cancel()
        finally:
            self._listeners.discard(listener)
            self.open[kind] -= 1
        if refusal is not None:
            raise refusal


def event(name: str, data: str, *, id: str) -> bytes:
    """One event; *data* is one line."""
    return f"id: {id}\nevent: {name}\ndata: {data}\n\n".encode()


async def _as_events(tell: Tell, listener: StreamListener) -> None:
    try:
        await listener.tell(f"retry: {RETRY_MS}\n\n".encode())
        await tell(listener)
    except StreamEnded as why:
        data = json_line({"why": str(why)})
        # Without an id: a browser keeps the last one.
        await listener.write(f"event: end\ndata: {data}\n\n".encode())


class _Stream(Response):
    """An answer that is told as there is something to tell."""

    def __init__(self, answer: ASGIApp) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell it."""
        await self._answer(scope, receive, send)


async def _until_gone(receive: Receive, reading: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reading.cancel()
