"""One connection to a receiver: HTTP/1.1, by h11.

A receiver may send anything during an attempt. So little of an answer is read, and in small
pieces: other tasks of the event loop run before each is parsed.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import h11
import trio

from liveness.service.common.turnstile import Turnstile

# Some hundred chunks or headers, which h11 parses in 2 ms.
READ_BYTES: Final = 1_024
# The head of an answer, with the interim answers (1xx) before it. nginx, as a proxy, takes
# no larger head by default.
HEAD_BYTES: Final = 8_192
# Servers send one or two: 100, 102 or 103.
MOST_INTERIM: Final = 16


class NoAnswer(Exception):
    """The receiver sent no usable answer; the text says why."""


class ClosedUnanswered(NoAnswer):
    """The receiver closed the connection without sending anything."""


class PostConnection:
    """A connection, which may be kept for the next request.

    The turnstile is passed before each piece of an answer is parsed.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        sock: trio.socket.SocketType,
        address: str,
        turnstile: Turnstile,
    ) -> None:
        self.address = address
        self.is_new = True  # it has had no answer
        self.used_at = trio.current_time()
        self._stream = stream
        self._sock = sock
        self._turnstile = turnstile
        self._http = h11.Connection(
            h11.CLIENT,
            max_incomplete_event_size=HEAD_BYTES,  # limits trailers, too
        )
        self._room = 0  # bytes that may still be read
        self._has_read = False  # a byte of this answer

    async def post(
        self, target: str, headers: Mapping[str, str], body: bytes
    ) -> h11.Response:
        """Send a request; return the head of its answer.

        Raises:
            NoAnswer: There is none, or it is too large.
            h11.RemoteProtocolError: It is not HTTP/1.
            trio.BrokenResourceError: The connection broke amid the answer.
        """
        request = h11.Request(
            method="POST",
            target=target,
            headers=[*headers.items(), ("content-length", f"{len(body)}")],
        )
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        data = b"".join(self._http.send(event) or b"" for event in events)
        self._room, self._has_read = HEAD_BYTES, False
        # The receiver may have answered before it closed the connection.
        with suppress(trio.BrokenResourceError):
            await self._stream.send_all(data)
        for _ in range(MOST_INTERIM + 1):
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return event
            if event is h11.NEED_DATA:
                raise NoAnswer(
                    f"the head of its answer has more than {HEAD_BYTES} bytes; correct "
                    "the url, or the receiver"
                )
        raise NoAnswer(
            f"it sends more than {MOST_INTERIM} interim answers (1xx); correct the "
            "receiver"
        )

    async def read_body(self, most: int) -> bytes:
        """The body of the answer, at most its next *most* bytes.

        Raises:
            h11.RemoteProtocolError: It is not HTTP/1, or ends too early.
            trio.BrokenResourceError: The connection broke.
        """
        body = bytearray()
        self._room = most
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
        return bytes(body)

    def can_be_kept(self) -> bool:
        """Whether the answer was read to its end, and nothing follows."""
        http = self._http
        if {http.our_state, http.their_state} != {h11.DONE} or http.trailing_data[0]:
            return False
        http.start_next_cycle()
        self.is_new = False
        self.used_at = trio.current_time()
        return True

    def is_open(self) -> bool:
        """Whether a kept connection is open: its end makes the socket readable."""
        return not self._sock.is_readable()

    async def aclose(self) -> None:
        """Close it at once."""
        await trio.aclose_forcefully(self._stream)

    async def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event of the answer; NEED_DATA if no more may be read."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if not self._room:
                break
            try:
                data = await self._stream.receive_some(min(READ_BYTES, self._room))
            except trio.BrokenResourceError as error:
                if self._has_read:
                    raise
                raise ClosedUnanswered("it closed the connection") from error
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                kind = NoAnswer if self._has_read else ClosedUnanswered
                raise kind("it closed the connection without an answer")
            self._has_read = True
            self._room -= len(data)
            await self._turnstile.wait()
            self._http.receive_data(bytes(data))
        return event
