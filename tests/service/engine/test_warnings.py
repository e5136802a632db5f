"""Advice on timeouts by a running service: what is logged, and how often."""

from typing import Any, Final

import pytest
import trio

from tests.service.rig import Caller, Rig

USERS: Final = [f"u{n}" for n in range(160)]
HOUR_S: Final = 3_600.0

Lines = list[Any]


def advice(said: Lines) -> Lines:
    return [line for line in said if "usual interval" in line["event"]]


async def speak(gateway: Caller, every_s: float, for_s: float) -> None:
    """Have everyone speak so often, and a last time after so long."""
    began = trio.current_time()
    for number in range(1, round(for_s / every_s) + 1):
        await trio.sleep_until(began + number * every_s)
        await gateway.send(["keepalive", USERS])
        await gateway.sync()


def shown(rig: Rig) -> list[tuple[str, float, float | None]]:
    return [
        (gateway.name, gateway.timeout_s, gateway.interval_s)
        for gateway in rig.sidecar._now().gateways
    ]


async def test_a_timeout_too_short_for_its_users_is_logged_once(
    rig: Rig, said: Lines
) -> None:
    gateway = await rig.gateway_of(USERS)
    phones = await rig.gateway_of([f"phone {n}" for n in range(160)], "h", timeout=60)
    assert shown(rig) == [("g", 30.0, None), ("h", 60.0, None)]
    for _ in range(10):
        await trio.sleep(20.1)
        await gateway.send(["keepalive", USERS])
        await phones.send(["keepalive", [f"phone {n}" for n in range(160)]])
    await gateway.sync()
    assert shown(rig) == [("g", 30.0, 20.0), ("h", 60.0, 20.0)]
    (line,) = advice(said)
    assert line == {
        "event": "the timeout is under twice the usual interval of its users",
        "log_level": "warning",
        "gateway": "g",
        "timeout_s": 30.0,
        "interval_s": 20.0,
        "todo": "raise the timeout to 40 s or more, or have its users send something "
        "every 15 s",
    }


@pytest.mark.long
async def test_advice_that_comes_and_goes_is_given_once_an_hour(
    rig: Rig, said: Lines
) -> None:
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
