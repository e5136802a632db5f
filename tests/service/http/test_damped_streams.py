"""The feed with `settle_s`, in virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from liveness.config.settings import HttpSettings
from tests.service.http.reading import Event, Reader, reading
from tests.service.rig import Caller, Rig

SETTLE_S = 5


@asynccontextmanager
async def feed(
    rig: Rig, query: str = "", last: str | None = None
) -> AsyncIterator[Reader]:
    """A stream that has said where it begins."""
    headers = {} if last is None else {"last-event-id": last}
    target = f"/v1/feed?settle_s={SETTLE_S}{query}"
    async with reading(rig.door(), target, headers=headers) as reader:
        await reader.event()
        yield reader


async def does(gateway: Caller, name: str, *uids: str) -> None:
    await gateway.apply([name, [*uids]])


def seqs_of(events: list[Event]) -> list[int]:
    return [event.data["seq"] for event in events]


def position_of(event: Event) -> int:
    assert event.id is not None
    return int(event.id.partition(":")[2])


async def test_an_offline_settles_though_the_log_is_still(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada", "bob"], kinds=[])
    async with feed(rig) as reader:
        began = trio.current_time()
        await does(gateway, "logout", "ada", "bob")
        await does(gateway, "login", "bob")
        assert seqs_of(await reader.events(1)) == [3]
        assert SETTLE_S <= trio.current_time() - began < SETTLE_S + 0.2
        await does(gateway, "logout", "bob")
        await trio.sleep(1)
        await rig.stop()
        end = await reader.event()
        assert end is not None
        assert end.name == "end"


async def test_a_reader_that_reconnects_by_the_last_id_loses_nothing(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada"], kinds=[])
    async with feed(rig) as reader:
        await does(gateway, "logout", "ada")
        await does(gateway, "login", "bob", "eve")
        events = await reader.events(2)
        assert seqs_of(events) == [3, 4]
        assert [*map(position_of, events)] == [1, 1]
    async with feed(rig, last=events[-1].id) as reader:
        events = await reader.events(3)
        assert seqs_of(events) == [3, 4, 2]
        assert [*map(position_of, events)] == [1, 1, 4]
    async with feed(rig, last=events[-1].id) as reader:
        await does(gateway, "login", "dan")
        (event,) = await reader.events(1)
        assert (event.data["seq"], position_of(event)) == (5, 5)


@pytest.mark.rig(max_settling=100)
async def test_an_offline_that_goes_early_is_counted(rig: Rig) -> None:
    users = [f"user-{n}" for n in range(103)]
    gateway = await rig.gateway_of(users, kinds=[])
    async with feed(rig) as reader:
        began = trio.current_time()
        await does(gateway, "logout", *users)
        assert seqs_of(await reader.events(3)) == [104, 105, 106]
        assert trio.current_time() - began < SETTLE_S
        assert rig.counts.limits_met["limits.max_settling"] == 3


@pytest.mark.rig(max_settling=100)
async def test_a_stream_that_ends_gives_back_the_room_of_what_waits(rig: Rig) -> None:
    users = [f"user-{n}" for n in range(100)]
    gateway = await rig.gateway_of(users, kinds=[])
    async with feed(rig) as reader:
        await does(gateway, "logout", *users)
        await trio.sleep(2)
    await does(gateway, "login", *users)
    async with feed(rig) as reader:
        await does(gateway, "logout", *users)
        assert len(await reader.events(100)) == 100
    assert rig.counts.limits_met["limits.max_settling"] == 0


@pytest.mark.rig(http=HttpSettings(max_backlog=100))
async def test_offlines_that_wait_are_no_backlog(rig: Rig) -> None:
    users = [f"user-{n}" for n in range(300)]
    gateway = await rig.gateway_of(users, kinds=[])
    async with feed(rig, "&kind=offline") as reader:
        for n in range(0, 300, 90):
            await does(gateway, "logout", *users[n : n + 90])
            await trio.sleep(0.1)
        assert seqs_of(await reader.events(300)) == [*range(301, 601)]
