"""Promises to ping, and the counts of gateways that break theirs."""

from pathlib import Path
from typing import Final

import trio
from trio.testing import MockClock

from tests.service.rig import Caller, Rig, running

PING_S: Final = 1.0


def mutes(rig: Rig) -> dict[str, int]:
    return {
        gateway.name: gateway.mutes for gateway in rig.sidecar.summaries.now().gateways
    }


async def ping(gateway: Caller, every_s: float, times: int) -> None:
    for _ in range(times):
        await trio.sleep(every_s)
        await gateway.send(["ping", None])


async def test_a_gateway_that_pings_as_late_as_promised_keeps_its_promise(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timeout_s=5.0) as rig:
        gateway = await rig.gateway("g", ping=PING_S)
        await gateway.send(["login", "silent"])
        await ping(gateway, PING_S + 0.001, 6)
        assert rig.firing.ended["silence"] == 1
        await ping(gateway, 2 * PING_S - 0.1, 20)
        assert mutes(rig) == {"g": 0}


async def test_a_gateway_that_keeps_missing_its_promise_is_counted(rig: Rig) -> None:
    gateway = await rig.gateway("late", ping=PING_S)
    await rig.gateway("promised-nothing")
    await ping(gateway, 3.0, 3)
    assert mutes(rig) == {"late": 3, "promised-nothing": 0}


async def test_a_long_absence_counts_once(rig: Rig) -> None:
    gateway = await rig.gateway("g", ping=PING_S)
    await trio.sleep(300)
    assert mutes(rig) == {"g": 1}
    await ping(gateway, 0, 1)
    await trio.sleep(1.9)
    assert mutes(rig) == {"g": 1}
    assert rig.gateways["g"].absence(rig.attended.now) is None
