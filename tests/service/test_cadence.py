"""Advice on timeouts by a running service: who is told, of what, and how often."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
import trio
from trio.testing import MockClock

from tests.service.rig import Caller, Rig, running

USERS: Final = [f"u{n}" for n in range(160)]
HOUR_S: Final = 3_600.0

Lines = list[Any]


@pytest.fixture
def said() -> Iterator[Lines]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def advice(said: Lines) -> Lines:
    return [line for line in said if "usual interval" in line["event"]]


async def speak(gateway: Caller, every_s: float, for_s: float) -> None:
    """Have everyone speak so often, and a last time after so long."""
    began = trio.current_time()
    for number in range(1, round(for_s / every_s) + 1):
        await trio.sleep_until(began + number * every_s)
        await gateway.send(["keepalive", USERS])
        await gateway.settle()


def shown(rig: Rig) -> list[tuple[str, float, float | None]]:
    return [
        (gateway.name, gateway.timeout_s, gateway.interval_s)
        for gateway in rig.sidecar._now().gateways
    ]


async def test_a_timeout_too_short_for_how_often_users_speak_is_told_once(
    tmp_path: Path, jumping: MockClock, said: Lines
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["login", USERS])
        assert shown(rig) == [("g", 30.0, None)]
        await speak(gateway, 20.1, 200)
        assert shown(rig) == [("g", 30.0, 20.0)]
        (line,) = advice(said)
        assert line == {
            "event": "the timeout is under twice the usual interval of its users",
            "log_level": "warning",
            "gateway": "g",
            "timeout_s": 30.0,
            "interval_s": 20.0,
            "todo": "raise the timeout to 40 s or more, or have its users speak every "
            "15 s",
        }


@pytest.mark.long
async def test_advice_that_comes_and_goes_is_given_once_an_hour(
    tmp_path: Path, jumping: MockClock, said: Lines
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        began = trio.current_time()
        await gateway.send(["login", USERS])
        while trio.current_time() < began + HOUR_S - 1_000:
            await speak(gateway, 20, 400)
            assert rig.sidecar.presence.gateway("g").cadence.is_short
            await speak(gateway, 10, 600)
            assert not rig.sidecar.presence.gateway("g").cadence.is_short
        assert len(advice(said)) == 1
        await speak(gateway, 10, began + HOUR_S + 100 - trio.current_time())
        await speak(gateway, 20, 700)
        _first, second = advice(said)
        assert second["suppressed"] >= 2


async def test_a_timeout_that_is_long_enough_needs_no_advice(
    tmp_path: Path, jumping: MockClock, said: Lines
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("phones", timeout=600)
        await gateway.send(["login", USERS])
        await speak(gateway, 280, 2_000)
        assert shown(rig) == [("phones", 600.0, 280.0)]
        assert advice(said) == []
