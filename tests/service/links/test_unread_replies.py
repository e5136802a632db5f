"""Answers that nobody reads: bounded in memory, on disk and in time, over all links."""

import os
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from liveness.service.links.link_socket import LINGER_S
from liveness.service.storage.online_list import SpoolFull, Spools
from tests.helpers.wire import contents
from tests.service.http.asgi import Answer, ask
from tests.service.rig import Caller, Rig, running

pytestmark = pytest.mark.usefixtures("jumping")

MIB: Final = 1 << 20
# More than a socket's buffers take, so that the writer of a peer that does not read blocks.
LARGE: Final = "x" * 60_000
PINGS: Final = 10
# A list of these takes some 650 KB.
USERS: Final = [f"{n:06}{'x' * 200}" for n in range(3_000)]


def met(rig: Rig) -> dict[str, int]:
    """Which limits were met by now, and how often."""
    return {name: count for name, count in rig.counts.limits_met.items() if count}


def on_disk(rig: Rig) -> int:
    return rig.sidecar.summaries.now().unread["disk"]


def in_memory(rig: Rig) -> int:
    return rig.sidecar.parts.unread.memory


async def with_users(rig: Rig) -> Caller:
    """A gateway with users, all on disk."""
    gateway = await rig.gateway("users")
    await gateway.apply(["login", USERS])
    return gateway


async def asks(caller: Caller, count: int = PINGS) -> None:
    """Ask for more than fits into a socket's buffers."""
    await caller.send(*(["ping", LARGE] for _ in range(count)))


async def listed(caller: Caller) -> list[str]:
    """Who a list says is online; other answers and records may come before it."""
    users, seq = list[str](), list[int]()
    while not seq:
        frame = await caller.receive()
        assert frame is not None
        if frame[0] == "list":
            _, rows, *seq = frame
            users += [row[0] for row in rows]
    return users


async def users_by_http(rig: Rig) -> Answer:
    return await ask(rig.sidecar.http.app("http", lambda _: None), "GET", "/v1/users")


async def refusal(caller: Caller) -> dict[str, Any]:
    """The error that a link ends with, behind what was written before."""
    error: dict[str, Any] = contents(await caller.last(), "error")[0]
    return error


def is_linked(rig: Rig, name: str, role: str = "watcher") -> bool:
    return (role, name) in rig.registry.named


# --- in time --------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "least_s"), [("watcher", 20), ("gateway", 40)])
async def test_a_link_that_reads_no_answers_ends_in_time(
    tmp_path: Path, role: str, least_s: float
) -> None:
    async with running(tmp_path, unread_s=20, gateway_hold_s=40) as rig:
        silent = await rig.gateway("silent", role=role)
        await asks(silent)
        await rig.until(lambda: in_memory(rig) > 100_000)
        took = await rig.until(lambda: not is_linked(rig, "silent", role))
        assert least_s - 2 <= took <= least_s + 2
        assert met(rig) == {"limits.unread_s": 1}
        told = await refusal(silent)
        assert told["code"] == "overloaded"
        assert f"{least_s} s (limits.unread_s)" in told["message"]
        await rig.until(lambda: not rig.registry.links, 3 * LINGER_S)
        assert in_memory(rig) == 0


async def test_an_unread_list_ends_its_link_and_leaves_no_file(tmp_path: Path) -> None:
    async with running(tmp_path, unread_s=20) as rig:
        await with_users(rig)
        silent = await rig.watcher("silent", kinds=["moved"])
        await silent.send(["list"])
        await rig.until(lambda: on_disk(rig))
        assert await rig.until(lambda: not is_linked(rig, "silent")) >= 18
        assert met(rig) == {"limits.unread_s": 1}
        await rig.until(lambda: not on_disk(rig), 3 * LINGER_S)


# --- in memory ------------------------------------------------------------------------


async def test_links_end_at_once_at_twice_the_bound(tmp_path: Path) -> None:
    many = [*range(4_000)]  # an answer is some 300 KB
    async with running(tmp_path, max_unread_bytes=MIB // 4) as rig:
        gateway = await rig.gateway("g" * 64)
        await gateway.apply(["login", many])
        silent = [await rig.watcher(f"silent {n}", kinds=["moved"]) for n in range(8)]
        began = trio.current_time()
        for caller in silent:
            await caller.send(["where", many])
            await trio.sleep(0.02)
            assert in_memory(rig) < 3 * MIB // 4 + MIB // 4
        # Nobody can be said not to read by now.
        assert trio.current_time() - began < 0.5
        assert 1 <= met(rig)["limits.max_unread_bytes"] < 8
        await gateway.sync()


# --- on disk --------------------------------------------------------------------------


async def test_a_list_without_room_delays_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path, max_spool_bytes=MIB, timeout_s=600) as rig:
        users = await with_users(rig)
        silent = await rig.watcher("silent", kinds=["moved"])
        await silent.send(["list"])
        await rig.until(lambda: on_disk(rig))
        waits = await rig.watcher("waits", kinds=["online"])
        await waits.send(["list"], ["ping", 1])
        assert await waits.expect("pong") == [1]
        await users.send(["login", "late"])
        assert [one["uid"] for one in await waits.records(1)] == ["late"]
        assert on_disk(rig) <= MIB
        # Room is made once the one that does not read has ended for that.
        await rig.until(lambda: not is_linked(rig, "silent"))
        assert "limits.unread_s" in (await refusal(silent))["message"]
        assert sorted(await listed(waits)) == sorted([*USERS, "late"])
        assert met(rig) == {"limits.unread_s": 1}
        await rig.until(lambda: not on_disk(rig), 3 * LINGER_S)


async def test_a_list_larger_than_the_bound_ends_its_link(tmp_path: Path) -> None:
    async with running(tmp_path, max_spool_bytes=MIB // 4) as rig:
        await with_users(rig)
        watcher = await rig.watcher(kinds=["moved"])
        await watcher.send(["list"])
        told = await refusal(watcher)
        assert told["code"] == "overloaded"
        assert "limits.max_spool_bytes" in told["message"]
        assert met(rig) == {"limits.max_spool_bytes": 1}
        assert on_disk(rig) == 0
        answer = await users_by_http(rig)
        assert answer.status == 503
        assert "raise limits.max_spool_bytes" in answer.error


async def test_spools_leave_the_log_half_of_the_free_disk(tmp_path: Path) -> None:
    spools = Spools(tmp_path, most_bytes=1 << 60)
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    make = partial(spools.make, limiter=trio.CapacityLimiter(1))
    with pytest.raises(SpoolFull, match="free on the disk"):
        await make(lambda write: write(b""), needed_bytes=free // 2 + free // 4)
    with await make(lambda write: write(b"much"), needed_bytes=free // 4) as spool:
        assert await spool.read() == b"much"
        assert await spool.read() == b""
        assert spools.bytes == 4
    assert spools.bytes == 0


async def test_a_spool_that_cannot_be_filled_leaves_nothing(tmp_path: Path) -> None:
    spools = Spools(tmp_path, most_bytes=10)

    def fill(size: int, write: Any) -> None:
        write(b"x" * 5)
        write(b"x" * size)

    make = partial(spools.make, limiter=trio.CapacityLimiter(1))
    with await make(partial(fill, 1)):
        with pytest.raises(SpoolFull) as refused:
            await make(partial(fill, 5))
        assert refused.value.needed_bytes == 5
        with pytest.raises(SpoolFull, match="raise limits"):
            await make(partial(fill, 6), needed_bytes=11)
        assert spools.bytes == 6
    with await make(partial(fill, 5)) as spool:
        assert [await spool.read() for _ in range(3)] == [b"x" * 5, b"x" * 5, b""]
    assert spools.bytes == 0
