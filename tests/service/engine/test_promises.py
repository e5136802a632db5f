"""Promises to ping, and the counts and log lines of gateways that break theirs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
import trio
from trio.testing import MockClock

from liveness.core.sessions.clearance import MISSES
from tests.service.rig import Caller, Rig, running

Lines = list[Any]

PING_S: Final = 1.0


@pytest.fixture
def said() -> Iterator[Lines]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def advice(said: Lines) -> Lines:
    return [line for line in said if "promise" in line["event"]]


def mutes(rig: Rig) -> dict[str, int]:
    return {
        gateway.name: gateway.mutes for gateway in rig.sidecar.summaries.now().gateways
    }


async def ping(gateway: Caller, every_s: float, times: int) -> None:
    for _ in range(times):
        await trio.sleep(every_s)
        await gateway.send(["ping", None])


async def test_a_gateway_that_pings_as_late_as_promised_keeps_its_promise(
    tmp_path: Path, jumping: MockClock, said: Lines
) -> None:
    async with running(tmp_path, timeout_s=5.0) as rig:
        gateway = await rig.gateway("g", ping=PING_S)
        await gateway.send(["login", "silent"])
        await ping(gateway, PING_S + 0.001, 6)
        assert rig.firing.ended["silence"] == 1
        await ping(gateway, 2 * PING_S - 0.1, 20)
        assert mutes(rig) == {"g": 0}
    assert advice(said) == []


async def test_a_gateway_that_keeps_missing_its_promise_is_named(
    rig: Rig, said: Lines
) -> None:
    gateway = await rig.gateway("late", ping=PING_S)
    await rig.gateway("promised-nothing")
    await ping(gateway, 3.0, MISSES - 1)
    assert advice(said) == []
    await ping(gateway, 3.0, 1)
    assert mutes(rig) == {"late": MISSES, "promised-nothing": 0}
    (line,) = advice(said)
    assert line == {
        "event": "the gateway keeps missing its promise to ping",
        "log_level": "warning",
        "gateway": "late",
        "ping_s": PING_S,
        "times": MISSES,
        "within_s": pytest.approx(6.0, abs=0.3),
        "todo": "have it send a ping at least as often as its hello promises, or "
        "promise a longer interval; if it hangs, find out why",
    }
    await ping(gateway, 3.0, 10)
    assert len(advice(said)) == 1


async def test_a_long_absence_counts_once(rig: Rig, said: Lines) -> None:
    gateway = await rig.gateway("g", ping=PING_S)
    await trio.sleep(300)
    assert mutes(rig) == {"g": 1}
    await ping(gateway, 0, 1)
    await trio.sleep(1.9)
    assert mutes(rig) == {"g": 1}
    assert rig.gateways["g"].absence(rig.attended.now) is None
    assert advice(said) == []
