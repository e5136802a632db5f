"""`liveness.watch(settle_s=…)` on a running service, in virtual time."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import liveness
from liveness.client import damped_records
from liveness.client.watcher import Watch
from liveness.core.records import MOVED, OFFLINE, ONLINE
from tests.service.rig import Caller, Rig, VirtualWallClock, running

SETTLE_S = 5.0
NAME = "friends"


def watch_of(path: Path, **options: Any) -> Watch:
    """A watch by virtual time that connects again at once."""
    return Watch(
        str(path),
        settle_s=SETTLE_S,
        pause_between=lambda *_: 0,
        wall_s=lambda: VirtualWallClock().wall_ms() / 1000,
        **options,
    )


@asynccontextmanager
async def reading(rig: Rig, **options: Any) -> AsyncIterator[Watch]:
    async with watch_of(rig.sidecar.config.socket.path, **options) as watch:
        await watch.connected()
        yield watch


async def next_of(watch: Watch, count: int) -> list[tuple[str, str]]:
    """Kind and user of the next *count* records."""
    with trio.fail_after(60):
        found = [await anext(watch) for _ in range(count)]
    return [(record["kind"], record["uid"]) for record in found]


async def nothing_of(watch: Watch, seconds: float) -> None:
    with trio.move_on_after(seconds) as waiting:
        raise AssertionError(await anext(watch))
    assert waiting.cancelled_caught


async def lose_link(watch: Watch) -> None:
    await watch._link.drop()


async def does(gateway: Caller, name: str, *uids: str) -> None:
    await gateway.apply([name, [*uids]])


def cursor(rig: Rig) -> int:
    """The stored position of the watch."""
    with rig.engine.shell as server:
        server.note_cursors(rig.engine.instant())
    return rig.log_writer.cursors["watcher", NAME].seq


async def test_an_offline_comes_when_its_user_was_away_for_long_enough(
    rig: Rig,
) -> None:
    gateway = await rig.gateway_of(["ada", "bob"], kinds=[])
    async with reading(rig) as watch:
        began = trio.current_time()
        await does(gateway, "logout", "ada", "bob")
        await trio.sleep(SETTLE_S - 1)
        await does(gateway, "login", "ada")
        assert await next_of(watch, 1) == [(OFFLINE, "bob")]
        took = trio.current_time() - began
        assert SETTLE_S <= took < SETTLE_S + 2 * damped_records.QUIET_S
        await nothing_of(watch, 20)
        assert (watch.damping.left_out, watch.damping.hurried) == (2, 0)


@pytest.mark.parametrize("settle_s", [-1, 600.5, "5", True, float("nan"), None])
def test_a_settle_s_that_is_none_is_refused(settle_s: Any) -> None:
    with pytest.raises(liveness.ReportError, match=r"settle_s is .* 0 to 600 seconds"):
        liveness.watch("/nowhere", settle_s=settle_s)


async def test_a_crash_loses_no_offline_that_waited(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada", "bob"], kinds=[])
    async with reading(rig, name=NAME) as watch:
        await does(gateway, "logout", "ada")
        await does(gateway, "login", "eve", "dan")
        assert await next_of(watch, 2) == [(ONLINE, "eve"), (ONLINE, "dan")]
        await nothing_of(watch, 1)
        assert cursor(rig) == 2  # before ada's offline
        assert watch.position == 2
        (link,) = [it for it in rig.registry.named.values() if it.gateway is None]
        assert link.outbox.unacked == 0  # so the window does not fill
        await lose_link(watch)
        await watch.connected()
        await trio.sleep(1)
        assert cursor(rig) == 2
        await nothing_of(watch, 1)  # a new link repeats nothing, and loses nothing
        assert cursor(rig) == 2
    async with reading(rig, name=NAME) as watch:
        assert await next_of(watch, 3) == [
            (ONLINE, "eve"),
            (ONLINE, "dan"),
            (OFFLINE, "ada"),
        ]
        await nothing_of(watch, 1)
        assert cursor(rig) == watch.position == 5


async def test_a_record_that_is_not_finished_comes_again(rig: Rig) -> None:
    gateway = await rig.gateway(kinds=[], name="g")
    for found in (1, 2):
        async with reading(rig, name=NAME) as watch:
            await does(gateway, "login", *["ada", "bob"][:found])
            assert await next_of(watch, found) == [(ONLINE, "ada"), (ONLINE, "bob")][:found]  # fmt: skip
            assert watch.position == found  # if the program has done its work on it


async def test_a_move_that_is_not_finished_comes_again(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada", "bob"], kinds=[])
    other = await rig.gateway("h", kinds=[])
    for number in range(2):
        async with reading(rig, name=NAME, kinds=["moved"]) as watch:
            if not number:
                await does(gateway, "logout", "ada")
                await does(gateway, "logout", "bob")
                await does(other, "login", "bob", "ada")
            assert await next_of(watch, 2) == [(MOVED, "bob"), (MOVED, "ada")]
            assert watch.position == 6  # if the program has done its work on ada's
        # It has not. The offline that her move stands for came before bob's.
        assert cursor(rig) == 2


async def test_a_log_that_lost_its_end_is_read_from_its_beginning(
    tmp_path: Path, jumping: MockClock
) -> None:
    folder, older = tmp_path / "state", tmp_path / "older"
    folder.mkdir()
    async with running(folder) as rig:
        await rig.gateway_of(["ada", "bob"], kinds=[])
    shutil.copytree(folder, older, ignore=shutil.ignore_patterns("*.sock"))
    async with watch_of(folder / "g.sock", name=NAME) as watch:
        async with running(folder) as rig:
            await watch.connected()
            gateway = await rig.gateway_of([], kinds=[])
            await does(gateway, "logout", "bob")
            await does(gateway, "login", "eve", "dan")
            assert await next_of(watch, 2) == [(ONLINE, "eve"), (ONLINE, "dan")]
        # With its mark, so that no sidecar can tell, and its log keeps its id.
        shutil.rmtree(folder / "state")
        shutil.copytree(older, folder, dirs_exist_ok=True)
        async with running(folder):
            with trio.fail_after(60):
                found = [await anext(watch) for _ in range(4)]
    assert [(it["kind"], it["seq"]) for it in found] == [
        (OFFLINE, 3),
        ("log", 0),
        (ONLINE, 1),
        (ONLINE, 2),
    ]


@pytest.mark.rig(window=3)
async def test_a_small_window_does_not_fill_while_offlines_wait(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada"], kinds=[])
    async with reading(rig, name=NAME) as watch:
        await does(gateway, "logout", "ada")
        for uid in "abcdefgh":
            await does(gateway, "login", uid)
        assert await next_of(watch, 8) == [(ONLINE, uid) for uid in "abcdefgh"]
        await lose_link(watch)
        # Eight records come again on the new link, three at a time.
        await does(gateway, "login", "last")
        assert await next_of(watch, 2) == [(ONLINE, "last"), (OFFLINE, "ada")]


async def test_a_program_goes_on_from_the_position_that_it_stored(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada"], kinds=[])
    async with reading(rig) as watch:
        await does(gateway, "logout", "ada")
        await does(gateway, "login", "bob")
        assert await next_of(watch, 1) == [(ONLINE, "bob")]
        position, log = watch.position, watch.log
        assert position == 1
    await does(gateway, "login", "ada")
    async with reading(rig, after=position, log=log) as watch:
        # Whether the offline had come before is not known: an online is right either way.
        assert await next_of(watch, 2) == [(ONLINE, "bob"), (ONLINE, "ada")]
        assert watch.position == 4


async def test_the_oldest_goes_early_if_too_many_wait(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damped_records, "MAX_SETTLING", 2)
    gateway = await rig.gateway_of(["ada", "bob", "eve"], kinds=[])
    lines: list[str] = []
    async with reading(rig, report_line=lines.append) as watch:
        began = trio.current_time()
        await does(gateway, "logout", "ada", "bob", "eve")
        assert await next_of(watch, 1) == [(OFFLINE, "ada")]
        assert trio.current_time() - began < SETTLE_S
        assert watch.damping.hurried == 1
        assert "passed on early" in lines[-1]
