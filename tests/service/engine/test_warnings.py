"""What an operator is shown of users that send rarely, gateways that break their promise
to ping, and readers that stop."""

from typing import Final

import pytest
import trio

from liveness.core.cursors import NOT_READING
from liveness.core.links.outbox import STALLED_S
from tests.service.rig import Rig

USERS: Final = [f"u{n}" for n in range(160)]


def shown(rig: Rig) -> list[tuple[str, float, float | None]]:
    return [
        (gateway.name, gateway.timeout_s, gateway.interval_s)
        for gateway in rig.sidecar.summaries.now().gateways
    ]


async def test_it_is_shown_how_often_the_users_of_a_gateway_send(rig: Rig) -> None:
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


async def test_each_promise_to_ping_that_is_broken_is_counted(rig: Rig) -> None:
    gateway = await rig.gateway("late", ping=1.0)
    await rig.gateway("promised nothing")
    for _ in range(3):
        await trio.sleep(3)
        await gateway.send(["ping", None])
    shown = rig.sidecar.summaries.now().gateways
    assert [(it.name, it.mutes) for it in shown] == [
        ("late", 3),
        ("promised nothing", 0),
    ]


# --- readers that take no more records ------------------------------------------------


def stalled(rig: Rig) -> list[tuple[str | None, str | None]]:
    """Readers that take no more records, and why."""
    links = rig.sidecar.parts.registry.named.values()
    return [(link.name, link.outbox.stop) for link in links if link.outbox.stalled_s]


@pytest.mark.rig(timeout_s=3_600)
async def test_a_watcher_that_does_not_read_its_link_is_shown(rig: Rig) -> None:
    watcher = await rig.watcher()
    gateway = await rig.gateway("g", kinds=[])
    for n in range(5):
        await gateway.send(["login", [f"{'u' * 200}{n}{m}" for m in range(1_000)]])
    await gateway.sync()
    await trio.sleep(STALLED_S + 3)
    assert stalled(rig) == [("w", NOT_READING)]
    assert len(await watcher.records(5_000)) == 5_000
    await trio.sleep(STALLED_S + 3)
    assert stalled(rig) == []


@pytest.mark.rig(window=10, max_pending=1_000)
async def test_a_gateway_that_the_sidecar_does_not_read_is_not_shown(rig: Rig) -> None:
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
        assert stalled(rig) == []
