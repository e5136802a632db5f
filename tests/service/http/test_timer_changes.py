"""Pages of timers: how many are in memory at a time."""

import json
from collections.abc import Callable
from typing import Any

import trio
from starlette.types import ASGIApp, Message

from liveness.service.http.http_server import AT_ONCE
from tests.service.http.asgi import ask
from tests.service.rig import Rig


class Unread:
    """Pages whose answers are not read until the test allows it."""

    def __init__(self, pages: ASGIApp) -> None:
        self.pages = pages
        self.begun = 0
        self.read = trio.Event()

    async def __call__(
        self, scope: Any, receive: Any, send: Callable[..., Any]
    ) -> None:
        async def send_unread(message: Message) -> None:
            self.begun += message["type"] == "http.response.start"
            await self.read.wait()
            await send(message)

        await self.pages(scope, receive, send_unread)


async def test_a_few_pages_are_read_at_a_time_and_others_wait(rig: Rig) -> None:
    most = AT_ONCE["/v1/timers"]
    unread = Unread(rig.door("admin"))
    answers: list[int] = []

    async def one() -> None:
        answers.append((await ask(unread, "GET", "/v1/timers")).status)

    async with trio.open_nursery() as nursery:
        for _ in range(2 * most):
            nursery.start_soon(one)
        await rig.until(lambda: unread.begun == most)
        await trio.sleep(60)
        assert unread.begun == most
        # The other door has as many of its own.
        answer = await ask(rig.door("http"), "GET", "/v1/timers")
        assert json.loads(answer.body) == {"timers": [], "next": None}
        unread.read.set()
    assert answers == [200] * 2 * most
