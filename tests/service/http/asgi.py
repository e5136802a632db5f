"""Asks an ASGI application as a server would, without one."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import trio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message


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
        "path": path,
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
