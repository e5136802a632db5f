"""What a listener decides by the connection and the bytes of a request, on real sockets."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from liveness.core.access import Allowed
from liveness.service.links.sockets import listening
from tests.service.rig import Rig

Request = Callable[[str, bytes], Awaitable[bytes]]


@pytest.fixture
async def request_at(rig: Rig, tmp_path: Path) -> AsyncIterator[Request]:
    """Sends a request's head to the listener of this name; how its answer begins."""
    stop = trio.Event()

    async def answer(door: str, head: bytes) -> bytes:
        async with await trio.open_unix_socket(str(tmp_path / door)) as stream:
            await stream.send_all(head + b"\r\nconnection: close\r\n\r\n")
            return await stream.receive_some()

    async with trio.open_nursery() as nursery:
        with (
            listening(tmp_path / "http") as http,
            listening(tmp_path / "admin") as admin,
        ):
            for door, sock in {"http": http, "admin": admin}.items():
                nursery.start_soon(
                    partial(rig.sidecar.http.serve, door, sock, stop.wait)
                )
            yield answer
            stop.set()


async def test_only_who_has_the_right_may_use_the_admin_socket(
    rig: Rig, request_at: Request, said: list[Any]
) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost"
    assert (await request_at("admin", head)).startswith(b"HTTP/1.1 200 ")
    access = rig.registry.access
    rig.registry.access = replace(access, admin=Allowed())
    assert (await request_at("admin", head)).startswith(b"HTTP/1.1 403 ")
    assert [line["event"] for line in said] == ["admin refused"]
    assert (await request_at("http", head)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/healthz", b"elsewhere", b"200"),
        (b"http://elsewhere/healthz", b"localhost", b"421"),
        (b"http://localhost?x", b"elsewhere", b"200"),  # the live page
    ],
    ids=["served", "refused", "without a path"],
)
async def test_a_request_as_to_a_proxy_is_answered_for_the_host_in_its_target(
    request_at: Request, target: bytes, host: bytes, status: bytes
) -> None:
    answer = await request_at("http", b"GET %s HTTP/1.1\r\nhost: %s" % (target, host))
    assert answer.split()[1] == status
