"""The scripted sidecar: time, disk and faults pass as the script says.

That it decides and delivers as the real one does is tested in `test_conformance`,
under asyncio and trio.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from time import CLOCK_MONOTONIC, clock_gettime, time_ns
from typing import Any

import anyio
import anyio.abc
import pytest
from trio.testing import MockClock

from liveness.testing import (
    MAX_REPLIES,
    START_WALL_MS,
    ScriptedSidecar,
    scripted_sidecar,
)
from tests.helpers.peer import SOON_S, Caller
from tests.helpers.wire import Record

every_loop = pytest.mark.parametrize("loop", ["asyncio", "trio"])


@pytest.fixture
async def script() -> AsyncIterator[ScriptedSidecar]:
    async with scripted_sidecar(within=SOON_S) as script:
        yield script


@pytest.fixture
async def gateway(script: ScriptedSidecar) -> AsyncIterator["Gateway"]:
    async with gateways(script, "gw") as gateway:
        yield gateway


class Gateway(Caller):
    async def has_nothing_to_read(self) -> bool:
        """Whether a pong comes next; a second one, for what would follow the first."""
        await self.sync()
        await self.sync()
        return True


@asynccontextmanager
async def gateways(
    script: ScriptedSidecar, *names: str, **options: Any
) -> AsyncIterator[Any]:
    """Gateways that were welcomed: one, or a list of several."""
    async with AsyncExitStack() as stack:
        linked = []
        for name in names:
            stream = await stack.enter_async_context(
                await anyio.connect_unix(script.path)
            )
            linked.append(Gateway(stream))
            await linked[-1].hello(name, **options)
        yield linked[0] if len(names) == 1 else linked


def summary(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(r["uid"], r["kind"], r["reason"], r.get("conn")) for r in records]


async def test_a_user_falls_silent_at_its_timeout_and_not_before(
    script: ScriptedSidecar, gateway: Gateway
) -> None:
    await gateway.send(["login", "ada", {"conn": 1}])
    await gateway.send(["login", "own", {"timeout": 10}])
    await script.pass_time(9.999)
    assert set(script.users) == {"ada", "own"}
    await script.pass_time(0.001)
    assert set(script.users) == {"ada"}
    assert summary(await gateway.records()) == [("own", "offline", "silence", None)]
    await script.pass_time(19.999)
    assert set(script.users) == {"ada"}
    await script.pass_time(0.001)
    (record,) = await gateway.records()
    assert summary([record]) == [("ada", "offline", "silence", 1)]
    assert (record["at"], record["seen"]) == (START_WALL_MS + 30_000, START_WALL_MS)
    assert (record["silence"], record["last"]) == (30, "login")


def host_clock() -> list[float]:
    return [clock_gettime(CLOCK_MONOTONIC), time_ns() / 1e9]


async def test_the_newer_connection_is_found_by_the_clock_of_the_host() -> None:
    """In whatever order logins are read, and however much time is passed in between."""
    async with (
        scripted_sidecar(within=SOON_S) as script,
        gateways(script, "gw", "other", kinds=[], clock=host_clock()) as linked,
    ):
        gateway, other = linked
        (older, _), (newer, _) = host_clock(), host_clock()
        await other.apply(["login", "ada", {"conn": 2, "began": newer}])
        await gateway.apply(["login", "ada", {"conn": 1, "began": older}])
        assert script.users == {"ada": ("other", 1, 2)}
        await script.pass_time(5)
        newest, _ = host_clock()
        await gateway.apply(["login", "ada", {"conn": 3, "began": newest}])
        await other.apply(["login", "ada", {"conn": 4, "began": newer}])
        assert script.users == {"ada": ("gw", 3, 3)}
        await other.apply(["login", "ada", {"conn": 5, "began": newest + 60}])
        assert script.users == {"ada": ("other", 5, 5)}, "no word on what is to come"
        await other.apply(["login", ["ada"], {"conn": [6], "began": [None], "age": 9}])
        assert script.users == {"ada": ("other", 5, 5)}, "its age counts"


async def test_waits_end_when_the_event_comes(
    script: ScriptedSidecar, autojump_clock: MockClock
) -> None:
    async with gateways(script, "gw") as gateway, anyio.create_task_group() as tasks:
        tasks.start_soon(script.online, "ada")
        tasks.start_soon(script.next_event, "ada")
        tasks.start_soon(script.until, lambda: script.users and script.links)
        tasks.start_soon(script.until, lambda: script.links and script.users)
        tasks.start_soon(script.linked, "late")
        tasks.start_soon(script.offline, "ada")
        await anyio.sleep(0.01)  # idle: with a clock that jumps, for ever if not
        await gateway.apply(["login", "ada"])
        await gateway.send(["logout", "ada"])
        async with gateways(script, "late"):
            pass


async def test_a_failed_wait_says_what_is_known(script: ScriptedSidecar) -> None:
    async def said(wait: Callable[..., Awaitable[object]], *args: Any) -> str:
        with pytest.raises(AssertionError) as failed:
            await wait(*args, within=0.01)
        return str(failed.value)

    assert await said(script.online, "ada") == (
        "'ada' is not online after 0.01 s; nothing was heard of it; linked: no gateway"
    )
    async with gateways(script, "gw") as gateway:
        await gateway.send(["login", 7], ["login", ""], ["logout", 7])
        await gateway.expect("error")
        text = await said(script.online, 7)
        assert "heard last: Event(event='logout', uid=7, conn=None" in text
        assert "recorded last: {'seq': 2, 'kind': 'offline'" in text
        assert "linked: gw; refused last: gw, bad-uid: '' is no uid" in text
        with script.not_reading(), script.disk_full():
            text = await said(script.linked, "other")
        assert text.startswith("other has no link after 0.01 s; linked: gw; ")
        assert "it does not read; its disk is full" in text
        script.crash()
        text = await said(script.until, lambda: False)
        assert "linked: no gateway; the sidecar is not running" in text
        assert "'eve' did not go offline" in await said(script.offline, "eve")
        assert "no event of 'eve'" in await said(script.next_event, "eve")


async def test_a_long_list_comes_in_several_frames(
    script: ScriptedSidecar, gateway: Gateway
) -> None:
    await gateway.send(["login", [*range(1_001)]], ["list"])
    (first,) = await gateway.expect("list")
    last, seq = await gateway.expect("list")
    assert (len(first), len(last), seq) == (1_000, 1, 1_001)


async def test_a_gateway_that_reads_all_its_pongs_is_never_refused(
    gateway: Gateway,
) -> None:
    await gateway.send(*(["ping", n] for n in range(1_500)))
    assert [await gateway.expect("pong") for _ in range(1_500)] == [
        [n] for n in range(1_500)
    ]


async def test_a_dropped_link_ends_without_a_frame_and_unacknowledged_records_come_again(
    script: ScriptedSidecar, gateway: Gateway
) -> None:
    await gateway.send(["login", ["ada", "eve"]], ["logout", ["ada", "eve"]])
    first = await gateway.records()
    await gateway.send(["ack", first[0]["seq"]])
    script.drop("gw")
    assert script.links == {}
    assert await gateway.receive() is None
    async with gateways(script, "gw") as again:
        assert await again.records() == first[1:]
        script.drop("gw")


async def test_a_gateway_that_leaves_its_replies_unread_is_refused(
    script: ScriptedSidecar, gateway: Gateway
) -> None:
    pings = [["ping", "x" * 1_000]] * (2 * MAX_REPLIES)

    async def send_all() -> None:
        with suppress(anyio.BrokenResourceError):
            await gateway.send(*pings)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send_all)
        await script.until(lambda: script.refused)
        ((name, refusal),) = script.refused
        assert (name, refusal.code) == ("gw", "overloaded")
        while await gateway.receive() is not None:
            pass
        tasks.cancel_scope.cancel()


async def test_a_crash_forgets_what_no_pong_has_covered(
    script: ScriptedSidecar, gateway: Gateway
) -> None:
    await gateway.apply(["login", "ada"], ["after", "kept", 1])
    with script.disk_full():
        await gateway.send(["login", "eve"], ["logout", "ada"], ["ping", 1])
        await gateway.send(["cancel", {"key": "kept"}], ["after", "lost", 1])
        await script.online("eve")
        script.crash()
    assert await gateway.receive() is None
    script.start()
    assert script.users == {"ada": ("gw", 1, None)}
    assert len(script.records) == 1
    assert list(script.timers) == [("gw", "kept")]
    async with gateways(script, "gw") as again:
        assert again.welcome["next"] == 2


async def test_a_gap_comes_only_to_a_gateway_whose_records_were_trimmed(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "late") as late:
        await late.send(["login", "ada"], ["logout", "ada"])
        await late.records()
    script.trim()
    async with gateways(script, "other", after=0, log=late.welcome["log"]) as other:
        assert await other.has_nothing_to_read()
    async with gateways(script, "late") as late:
        (gap,) = await late.records()
        assert (gap["kind"], gap["first"], gap["until"]) == ("gap", 1, 3)


async def test_under_a_new_log_no_user_and_no_timer_is_known(
    script: ScriptedSidecar, gateway: Gateway
) -> None:
    await gateway.send(["login", "ada"], ["logout", "ada"], ["login", "ada"])
    await gateway.send(["after", "tea", 1])
    await gateway.records()
    log = gateway.welcome["log"]
    script.crash()
    script.start(new_log=True)
    assert (script.users, script.records, script.timers) == ({}, [], {})
    async with gateways(script, "gw", after=2, log=log) as again:
        assert again.welcome["log"] != log
        assert again.welcome["next"] == 1
        assert await again.has_nothing_to_read()


def fired(records: list[Record]) -> list[tuple[str, int, int]]:
    """Key, attempt, and the seconds after the start at which it fired."""
    return [(r["key"], r["attempt"], r["at"] - START_WALL_MS) for r in records]


async def test_a_timer_due_while_its_gateway_was_away_comes_when_it_is_back_fresh(
    script: ScriptedSidecar,
) -> None:
    async with (
        gateways(script, "mail", role="watcher", scope="all") as watcher,
        gateways(script, "gw") as gateway,
    ):
        await gateway.apply(["login", "ada"], ["after", "tea", 1])
        script.drop("gw")
        await script.pass_time(2)
        async with gateways(script, "gw", fresh=True) as again:
            await script.pass_time(1)
            assert [key for key, *_ in fired(await again.records())] == ["tea"]
        assert (await watcher.records())[0]["uid"] == "ada"


async def test_timers_and_silences_come_in_the_order_of_their_moments(
    script: ScriptedSidecar, gateway: Gateway
) -> None:
    await gateway.send(["login", 10, {"timeout": 10}], ["after", "20", 20])
    await gateway.send(["login", 30, {"timeout": 30}], ["after", "5000", 5_000])
    await script.pass_time(2 * 86_400)
    seen = [r.get("uid") or r["key"] for r in await gateway.records(34)]
    assert [*dict.fromkeys(seen)] == [10, "20", 30, "5000"]


async def test_time_in_which_nothing_is_read_is_no_missing_answer(
    script: ScriptedSidecar, gateway: Gateway
) -> None:
    await gateway.send(["after", "k", 1])
    await script.pass_time(1)
    with script.not_reading():
        await gateway.send(["done", "k", "well"])
        await script.pass_time(3_600)
    assert (await script.timer("gw", "k", "done")).message == "well"


async def test_trimming_lets_go_of_timers_that_ended(
    script: ScriptedSidecar, gateway: Gateway
) -> None:
    await gateway.send(["after", "ended", 1], ["after", "live", 1])
    await gateway.send(["cancel", {"key": "ended"}])
    script.trim()
    assert list(script.timers) == [("gw", "live")]
    await gateway.send(["after", "ended", 2])
    await script.pass_time(2)
    keys = [key for key, *_ in fired(await gateway.records(2))]
    assert keys == ["live", "ended"]


async def test_a_failed_wait_for_a_timer_says_what_is_known_of_it(
    script: ScriptedSidecar,
) -> None:
    with pytest.raises(AssertionError, match=r"'tea' of gw is not done .*not known"):
        await script.timer("gw", "tea", "done", within=0.01)
    async with gateways(script, "gw") as gateway:
        await gateway.send(["after", "tea", 10])
        await script.timer("gw", "tea", "pending")
        with pytest.raises(AssertionError, match=r"it is Timer\(state='pending'"):
            await script.timer("gw", "tea", "done", within=0.01)


async def test_its_settings_are_announced_and_hold() -> None:
    async with (
        scripted_sidecar(timeout=5, flush=0.2, window=2) as script,
        gateways(script, "gw", kinds=["online"]) as gateway,
    ):
        announced = [gateway.welcome[name] for name in ("timeout", "flush", "window")]
        assert announced == [5, 0.2, 2]
        await gateway.send(["login", ["a", "b", "c", "d", "e"]])
        assert [r["seq"] for r in await gateway.records()] == [1, 2]
        assert await gateway.has_nothing_to_read()
        await gateway.send(["ack", 1])
        assert [r["seq"] for r in await gateway.records()] == [3]
        script.trim()
        assert await gateway.has_nothing_to_read()
        await gateway.send(["ack", 2])
        (gap,) = await gateway.records()
        assert (gap["kind"], gap["first"], gap["until"]) == ("gap", 4, 6)
        await script.pass_time(5)
        assert not script.users


async def test_what_a_script_cannot_do_is_a_value_error(
    script: ScriptedSidecar,
) -> None:
    for seconds in (-1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="cannot pass"):
            await script.pass_time(seconds)
    with pytest.raises(ValueError, match="no-code"):
        script.refuse("gw", "no-code")
    with pytest.raises(ValueError, match="gw has no link to drop; linked: no gateway"):
        script.drop("gw")
    with pytest.raises(ValueError, match="running"):
        script.start()
    script.stop()
    for end in (script.stop, script.crash):
        with pytest.raises(ValueError, match="not running"):
            end()
    script.start()


@every_loop
def test_a_failure_comes_out_as_it_is_and_nothing_is_left_behind(loop: str) -> None:
    folders: list[Path] = []

    async def main() -> None:
        async with scripted_sidecar() as script, gateways(script, "gw"):
            folders.append(script.path.parent)
            assert folders[0].stat().st_mode & 0o077 == 0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        anyio.run(main, backend=loop)
    assert not folders[0].exists()


@every_loop
def test_it_can_be_cancelled(loop: str) -> None:
    async def main() -> None:
        with anyio.move_on_after(0.01) as scope:
            async with scripted_sidecar() as script:
                await script.online("nobody")
        assert scope.cancelled_caught

    anyio.run(main, backend=loop)


def test_importing_it_imports_no_event_loop_test_runner_or_service() -> None:
    unwanted = "asyncio trio pytest starlette sqlite3 structlog liveness.client.sidecar"
    program = f"import sys, liveness.testing; print({{*'{unwanted}'.split()}} & {{*sys.modules}})"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "set()\n"
