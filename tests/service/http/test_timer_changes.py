"""Pages of timers: how many are in memory at a time, and what of damaged ones."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import trio
from starlette.applications import Starlette
from starlette.types import Message

from liveness.service.common.clock import Clock
from liveness.service.http.timers_api import PAGES_AT_ONCE, TimersApi
from tests.helpers import disk
from tests.service.http.asgi import Answer, ask
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
    pages = TimersApi(rig.engine, rig.sidecar.scheduler, rig.log_writer, clock=Clock())
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


async def test_a_damaged_timer_is_shown_and_ended_by_its_number(rig: Rig) -> None:
    gateway = await rig.gateway("g")
    await gateway.send(["after", "k", 5], ["after", "other", 500], ["ping", 1])
    await gateway.expect("pong")
    path = rig.log_writer.timers.table.path
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("update timers set ext = cast(x'ff' as text) where id = 1")
    pages = Starlette(
        routes=TimersApi(
            rig.engine, rig.sidecar.scheduler, rig.log_writer, clock=Clock()
        ).routes()
    )

    async def asked(path: str, **body: str) -> Answer:
        if not body:
            return await ask(pages, "GET", path)
        return await ask(pages, "POST", path, pieces=[json.dumps(body).encode()])

    shown = json.loads((await asked("/v1/timers?id=1")).body)["timers"]
    assert [(timer["damaged"], timer["ext"]) for timer in shown] == [(1, "\ufffd")]
    for change in ("cancel", "retry"):
        refused = await asked(f"/v1/timers/{change}", gateway="g", key="k")
        assert refused.status == 409
        assert "`liveness timers cancel --damaged 1` ends it" in refused.error
    ended = await asked("/v1/timers/cancel-damaged", id="1")
    assert ended.status == 200
    now = json.loads(ended.body)
    assert (now["state"], now["ext"]) == ("cancelled", "\ufffd")
    assert "damaged" not in now
    counts = {"pending": 1, "cancelled": 1}
    assert +rig.sidecar.scheduler.states == counts
    assert disk.rows(path, "select * from states where timers") == [
        ("cancelled", 1), ("pending", 1),
    ]  # fmt: skip
    assert now["changed"] >= now["created"]
    for number, status in (("1", 404), ("2", 404), ("99", 404), ("x", 400)):
        refused = await asked("/v1/timers/cancel-damaged", id=number)
        assert refused.status == status
