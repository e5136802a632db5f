"""Asks an ASGI application as a server would, without one, and reads what goes on."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

import trio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message

LONG_S = 600.0  # virtual


class Answer(NamedTuple):
    status: int
    headers: Headers
    body: bytes

    @property
    def error(self) -> str:
        """The single line of an error."""
        (told,) = json.loads(self.body).items()
        assert told[0] == "error"
        assert "\n" not in told[1]
        error: str = told[1]
        return error


def scope_of(
    method: str, target: str, headers: Mapping[str, str] | Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """The ASGI scope of a request; its headers as in `ask`."""
    if isinstance(headers, Mapping):
        headers = list({"host": "localhost", **headers}.items())
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), it.encode("latin-1")) for name, it in headers],
        "client": ("192.0.2.1", 80),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


async def ask(
    app: ASGIApp,
    method: str,
    target: str,
    *,
    pieces: Sequence[bytes] = (),
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = MappingProxyType({}),
) -> Answer:
    """One request; its body comes in *pieces*.

    As a mapping, *headers* get a `Host` that will do unless one is given.
    """
    scope = scope_of(method, target, headers)
    rest: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": True} for piece in pieces
    ]
    rest.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[Message] = []

    async def receive() -> Message:
        if not rest:
            await trio.sleep_forever()  # the client stays
        return rest.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *bodies = sent
    body = b"".join(message.get("body", b"") for message in bodies)
    return Answer(start["status"], Headers(raw=start["headers"]), body)


class Event(NamedTuple):
    """A server-sent event, as a browser would be given it."""

    name: str
    data: Any
    id: str | None


class Reader:
    """What comes of an answer; it is taken only when it is asked for."""

    def __init__(self) -> None:
        self.status = 0
        self.headers = Headers()
        self.comments = 0
        self._text = ""
        self._more, self._pieces = trio.open_memory_channel[str](0)
        self._gone = trio.Event()

    async def receive(self) -> Message:
        """ASGI's receive: the request, and later the client's disconnect."""
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """ASGI's send: waits until its data is read."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = Headers(raw=message["headers"])
        else:
            if message["body"]:
                await self._more.send(message["body"].decode())
            if not message.get("more_body"):
                self._more.close()

    async def drain(self) -> None:
        """Take whatever comes until the end."""
        async for _ in self._pieces:
            pass

    def leave(self) -> None:
        """Go, without reading on."""
        self._gone.set()

    async def _line(self) -> str | None:
        while "\n" not in self._text:
            try:
                with trio.fail_after(LONG_S):
                    self._text += await self._pieces.receive()
            except trio.EndOfChannel:
                assert not self._text
                return None
        found, _, self._text = self._text.partition("\n")
        return found

    async def event(self) -> Event | None:
        """The next event; None when there are no more."""
        fields: dict[str, str] = {}
        while (line := await self._line()) is not None:
            if line.startswith(":"):
                self.comments += 1
            elif line:
                name, _, value = line.partition(": ")
                assert name not in fields
                fields[name] = value
            elif "data" in fields:
                return Event(
                    fields["event"], json.loads(fields["data"]), fields.get("id")
                )
            else:
                fields = {}
        assert not fields
        return None

    async def events(self, count: int) -> list[Event]:
        """Exactly *count* events."""
        found: list[Event] = []
        for _ in range(count):
            event = await self.event()
            assert event is not None, f"it ended after {len(found)} events"
            found.append(event)
        return found

    async def rest(self) -> list[Event]:
        """All that comes until the end."""
        found: list[Event] = []
        while (event := await self.event()) is not None:
            found.append(event)
        return found


@asynccontextmanager
async def reading(
    app: ASGIApp, target: str, *, headers: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Reader]:
    """Ask for an answer that goes on; the client goes at the end of the block."""
    reader = Reader()
    told = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        return told.pop() if told else await reader.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(app, scope_of("GET", target, headers), receive, reader.send)
        yield reader
        reader.leave()
        with trio.fail_after(LONG_S):
            await reader.drain()
