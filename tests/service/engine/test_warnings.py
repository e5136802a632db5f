"""Warnings of a running service, and how often they are logged."""

from typing import Any, Final

import pytest
import trio

from liveness.core.links.outbox import STALLED_S
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
        await gateway.apply(["keepalive", USERS])


def shown(rig: Rig) -> list[tuple[str, float, float | None]]:
    return [
        (gateway.name, gateway.timeout_s, gateway.interval_s)
        for gateway in rig.sidecar.summaries.now().gateways
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
    (_, _, usual), (_, _, phones_usual) = shown(rig)
    assert [usual, phones_usual] == [pytest.approx(20.1, abs=0.05)] * 2
    (line,) = advice(said)
    assert line == {
        "event": "the timeout is under twice the usual interval of its users",
        "log_level": "warning",
        "gateway": "g",
        "timeout_s": 30.0,
        "interval_s": pytest.approx(20.1, abs=0.05),
        "todo": "raise the timeout to 41 s or more, or have its users send something "
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
        await speak(gateway, 20, 600)
        assert rig.presence.gateways.by_name["g"].cadence.is_short
        await speak(gateway, 10, 600)
        assert not rig.presence.gateways.by_name["g"].cadence.is_short
    assert len(advice(said)) == 1
    await speak(gateway, 10, began + HOUR_S + 100 - trio.current_time())
    await speak(gateway, 20, 700)
    _first, second = advice(said)
    assert second["suppressed"] >= 2


# --- readers that take no more records ------------------------------------------------


def stalls(said: Lines) -> list[dict[str, object]]:
    names = ("role", "name", "link", "unacked", "why", "todo")
    found = [line for line in said if line["event"] == "a reader takes no more records"]
    return [{name: line[name] for name in names} for line in found]


@pytest.mark.rig(window=10)
async def test_a_gateway_that_does_not_acknowledge_is_named_once_until_it_does(
    rig: Rig, said: Lines
) -> None:
    gateway = await rig.gateway("g", kinds=["online"])
    await gateway.send(["login", USERS[:9]])
    await trio.sleep(10 * STALLED_S)
    assert stalls(said) == []  # there is room for one more
    await gateway.send(["login", USERS[9:20]])
    await trio.sleep(STALLED_S - 1)
    assert stalls(said) == []
    await trio.sleep(10 * STALLED_S)
    expected = {
        "role": "gateway",
        "name": "g",
        "link": 1,
        "unacked": 10,
        "why": "it has not acknowledged the records that it was sent",
        "todo": "have it acknowledge what it has processed; until then it gets no record",
    }
    assert stalls(said) == [expected]
    await gateway.send(["ack", 10])
    await trio.sleep(5 * STALLED_S)
    assert stalls(said) == [expected] * 2


@pytest.mark.rig(window=10)
async def test_a_reader_that_is_slow_is_not_named(rig: Rig, said: Lines) -> None:
    gateway = await rig.gateway("g", kinds=["online"])
    await gateway.send(["login", USERS])
    for seq in range(1, 11):
        await trio.sleep(STALLED_S - 2)
        await gateway.send(["ack", seq])
    assert stalls(said) == []


@pytest.mark.rig(timeout_s=3_600)
async def test_a_watcher_that_does_not_read_its_link_is_named(
    rig: Rig, said: Lines
) -> None:
    watcher = await rig.watcher()
    gateway = await rig.gateway("g", kinds=[])
    for n in range(5):
        await gateway.send(["login", [f"{'u' * 200}{n}{m}" for m in range(1_000)]])
    await gateway.sync()
    await trio.sleep(STALLED_S + 3)
    (line,) = stalls(said)
    assert (line["role"], line["name"], line["unacked"]) == ("watcher", "w", 0)
    assert line["why"] == "it does not read its link"
    assert len(await watcher.records(5_000)) == 5_000
    await trio.sleep(STALLED_S + 3)
    assert len(stalls(said)) == 1


@pytest.mark.rig(window=10, max_pending=1_000)
async def test_a_gateway_that_the_sidecar_does_not_read_is_not_named(
    rig: Rig, said: Lines
) -> None:
    gateway = await rig.gateway("g", kinds=["online"])
    await gateway.send(["login", USERS[:10]])
    await gateway.records(10)
    with rig.no_room_for_timers():
        await gateway.send(*(["after", f"{n}", 10_000] for n in range(1_000)))
        await rig.until(
            lambda: rig.presence.gateways.by_name["g"].reading_paused_at is not None
        )
        await gateway.send(["ack", 10])
        await trio.sleep(3 * STALLED_S)
    await gateway.sync()
    assert stalls(said) == []
