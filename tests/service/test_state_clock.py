"""The wall clock is set, the host sleeps, starts anew: what is stored keeps its moment."""

import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from liveness import host_clock
from liveness.errors import StateError
from liveness.service.common.clock import Clock
from liveness.service.storage.log_store import DATABASE, LogStore
from liveness.service.timers.state_writer import TRIM_EVERY_S
from tests.service.http.doors import Doors
from tests.service.rig import Caller, Rig, VirtualWallClock, running

WRONG_S: Final = 300  # by how much a clock is wrong, or for how long a host sleeps
SECONDS: Final = 60  # in which a timer fires
SOON_S: Final = 1.0  # of a timer that is due


class Host:
    """A host with a state directory; one sidecar after the other runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = VirtualWallClock()

    @asynccontextmanager
    async def sidecar(
        self, *, end: str = "stop", **settings: Any
    ) -> AsyncIterator[Rig]:
        """A sidecar that is stopped in order, or killed."""
        async with running(self.folder, clock=lambda: self.clock, **settings) as rig:
            yield rig
            if end == "stop":
                await rig.stop()

    @property
    def right_ms(self) -> int:
        """The time of a correct wall clock."""
        return self.clock.wall_ms() - round(self.clock.ahead_s * 1000)


@pytest.fixture
def host(tmp_path: Path, jumping: MockClock) -> Host:
    return Host(tmp_path)


async def asks(gateway: Caller, key: str, seconds: float) -> None:
    await gateway.apply(["after", key, seconds])


async def fires_at(gateway: Caller, key: str) -> float:
    """When a timer fires that is the next to do so, in virtual seconds."""
    (record,) = await gateway.records(1)
    assert record["key"] == key
    return trio.current_time()


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("step_s", [WRONG_S, -WRONG_S], ids=["forward", "back"])
async def test_a_wall_clock_that_is_set_while_no_sidecar_runs_moves_no_timer(
    host: Host, step_s: int, end: str
) -> None:
    async with host.sidecar(end=end) as rig:
        asked = trio.current_time()
        await asks(await rig.gateway("g"), "k", SECONDS)
    host.clock.ahead_s += step_s
    await trio.sleep(10)
    async with host.sidecar() as rig:
        at = await fires_at(await rig.gateway("g"), "k")
    assert SECONDS <= at - asked <= SECONDS + SOON_S


async def test_a_clock_that_is_damaged_on_disk_is_not_believed(host: Host) -> None:
    async with host.sidecar():
        pass
    with closing(sqlite3.connect(host.folder / "state" / DATABASE)) as db, db:
        ((clock,),) = db.execute("select value from meta where key = 'clock'")
        damaged = clock.replace("[1", "[9")
        assert damaged != clock
        db.execute("update meta set value = ? where key = 'clock'", [damaged])
    with pytest.raises(StateError, match="clock"):
        LogStore(host.folder / "state")


async def test_a_boot_with_a_clock_that_begins_anew_takes_no_time_from_the_next(
    jumping: MockClock,
) -> None:
    clock, stored, began = VirtualWallClock(), None, 0.0
    for boot in ("first boot", "second boot", "third boot", "last boot"):
        clock.start_host(boot)
        clock.ahead_s = 0 if boot in ("first boot", "last boot") else -TEN_DAYS_S
        for _ in range(2):
            clock.resume_state(stored)
            began = began or clock.state_s()
            await trio.sleep(10)
            stored = clock.state_time()
    assert clock.state_s() - began == pytest.approx(80, abs=0.1)


def test_the_clock_of_a_state_runs_on_while_the_host_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = {time.CLOCK_MONOTONIC: 100.0, time.CLOCK_BOOTTIME: 100.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    clock = Clock()
    asleep = clock.state_s()
    clocks[time.CLOCK_BOOTTIME] += WRONG_S
    assert clock.state_s() - asleep == pytest.approx(WRONG_S)


def test_each_boot_has_a_name_of_its_own_on_any_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_clock, "BOOT_ID", tmp_path / "boot")
    monkeypatch.setattr(host_clock, "TIME_OFFSETS", tmp_path / "offsets")
    assert Clock().boot_id() == ""
    names = [Clock().boot_id()]
    for boot in ("first\n", "second\n"):
        (tmp_path / "boot").write_text(boot)
        names.append(Clock().boot_id())
    for is_shifted in (0, 86_400):  # by a time namespace; an older kernel has none
        offsets = f"monotonic 0 0\nboottime {is_shifted} 0\n"
        (tmp_path / "offsets").write_text(offsets)
        names.append(Clock().boot_id())
        assert Clock().boot_id() == names[-1]
    assert len({*names}) == 5


RETENTION_S: Final = 60.0
# Marks of ages and trims come at intervals.
TRIMMED_S: Final = RETENTION_S + 3 * TRIM_EVERY_S
TEN_DAYS_S: Final = 864_000


async def comes_and_goes(gateway: Caller, *users: str) -> None:
    for user in users:
        await gateway.send(["login", user], ["logout", user])
    await gateway.sync()


async def test_records_are_deleted_by_age_after_the_wall_clock_was_ahead_for_a_moment(
    host: Host,
) -> None:
    async with host.sidecar(retention_s=RETENTION_S) as rig:
        gateway = await rig.gateway("g", kinds=["timer"])
        await comes_and_goes(gateway, "before")
        host.clock.ahead_s = TEN_DAYS_S
        await comes_and_goes(gateway, "during")
        host.clock.ahead_s = 0
        await comes_and_goes(gateway, "after")
        await trio.sleep(TRIMMED_S)
        await comes_and_goes(gateway, "now")
        await trio.sleep(TRIM_EVERY_S)
        kept = {it.uid for it in rig.log()}
    assert "now" in kept
    assert kept.isdisjoint({"before", "during"})


async def test_a_name_is_kept_whose_link_ends_soon_after_a_sleep(host: Host) -> None:
    async with host.sidecar(retention_s=RETENTION_S) as rig:
        await trio.sleep(TRIM_EVERY_S)
        link = await rig.watcher("reader", ack=True)
        host.clock.slept_s += TEN_DAYS_S
        link.close()
        await trio.sleep(RETENTION_S)
        assert rig.store.cursors()
        await trio.sleep(RETENTION_S)
        assert not rig.store.cursors()


async def test_troubles_of_links_are_shown_for_an_hour_by_the_clock_of_today(
    host: Host,
) -> None:
    host.clock.ahead_s = -TEN_DAYS_S
    async with host.sidecar() as rig:
        await rig.gateway("g")
        await rig.gateway("g")  # replaces the first
        at_ms, host.clock.ahead_s = host.right_ms, 0
        await trio.sleep(10)
        (trouble,) = await troubles(rig)
        assert trouble["at"] == pytest.approx(at_ms, abs=100)
        (known,) = await Doors(rig).listed("/v1/gateways")
        assert known["used"] == pytest.approx(at_ms, abs=100)
        host.clock.slept_s += 3_600
        assert await troubles(rig) == []


async def troubles(rig: Rig) -> list[dict[str, Any]]:
    answer = await Doors(rig).get("/v1/wheel")
    found: list[dict[str, Any]] = json.loads(answer.body)["link_troubles"]
    return found
