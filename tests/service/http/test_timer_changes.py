"""Pages of timers: how many are in memory at a time."""

import json
from collections.abc import Callable
from typing import Any

import trio
from starlette.applications import Starlette
from starlette.types import Message

from liveness.service.common.clock import Clock
from liveness.service.http.timers_api import PAGES_AT_ONCE, TimersApi
from tests.service.http.asgi import ask
from tests.service.rig import Rig


class Unread:
    """Pages whose answers are not read until the test allows it."""

    def __init__(self, pages: Starlette) -> None:
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
    pages = TimersApi(rig.engine, rig.log_writer, clock=Clock())
    unread = Unread(Starlette(routes=pages.routes()))
    others = Starlette(routes=pages.routes())
    answers: list[int] = []

    async def one(path: str) -> None:
        answers.append((await ask(unread, "GET", path)).status)

    async with trio.open_nursery() as nursery:
        for _ in range(PAGES_AT_ONCE):
            nursery.start_soon(one, "/v1/timers")
            nursery.start_soon(one, "/v1/timers/newest?key=k")
        await rig.until(lambda: unread.begun == PAGES_AT_ONCE)
        await trio.sleep(60)
        assert unread.begun == PAGES_AT_ONCE
        # The other door has as many of its own.
        answer = await ask(others, "GET", "/v1/timers")
        assert json.loads(answer.body) == {"timers": [], "next": None}
        unread.read.set()
    assert answers == [200] * 2 * PAGES_AT_ONCE
