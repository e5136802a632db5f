"""How many pages of timers are in memory at a time, while nobody reads them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from starlette.applications import Starlette
from starlette.types import Message
from trio.testing import MockClock

from liveness.service.timerpages import PAGES_AT_ONCE, TimerPages
from tests.service.asgi import ask
from tests.service.rig import running


class Unread:
    """Pages, and those who asked for one of them and do not read what comes."""

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


async def test_pages_are_made_and_read_so_many_at_a_time_and_the_others_wait(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        pages = TimerPages(rig.engine, rig.journal)
        unread = Unread(Starlette(routes=pages.routes(may_change=False)))
        others = Starlette(routes=pages.routes(may_change=True))
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
