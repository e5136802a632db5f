"""The storm guard in a running service: its log lines, counters and cost."""

from typing import Any, Final

import pytest
import trio

from liveness.config.settings import GuardSettings
from liveness.core.sessions.storm_guard import BY_TIME
from tests.service.rig import WAITING_PER_S, Rig

ON: Final = GuardSettings(enabled=True)
SMALL: Final = GuardSettings(enabled=True, least_users=20, hold_s=40)
USERS: Final = [f"u{n}" for n in range(1_000)]

Lines = list[Any]


def storms(said: Lines) -> Lines:
    return [line for line in said if line["event"].startswith("storm")]


def decided(rig: Rig) -> float:
    """How many offlines count for the lateness of decisions."""
    return rig.counts.lateness["decided"].cumulative()[-1][1]


@pytest.mark.rig(guard=ON)
async def test_a_thousand_users_due_at_once_are_held_for_a_timeout(
    rig: Rig, said: Lines
) -> None:
    gateway = await rig.gateway_of(USERS)
    assert await gateway.is_told_nothing(59.9)
    records = await gateway.records(1_000)
    assert all(60 <= record["silence"] < 60.5 for record in records)
    begun, ended = storms(said)
    expected = {"gateway": "g", "due": 1_000, "users": 1_000}
    expected["event"] = "storm: too many users came due at once, and are held"
    assert begun == {**begun, **expected, "log_level": "warning", "hold_s": 30.0}
    assert (ended["event"], ended["why"]) == ("storm is over", BY_TIME)
    assert ended["log_level"] == "warning"
    assert ended["due"] == 1_000
    assert rig.sidecar.summaries.now().storms == 1


@pytest.mark.rig(guard=SMALL)
async def test_users_that_were_held_are_not_in_the_lateness(rig: Rig) -> None:
    gateway = await rig.gateway_of(USERS[:50])
    await trio.sleep(50)
    await gateway.send(["keepalive", "u0"])
    await gateway.records(49)
    assert decided(rig) == 0
    (record,) = await gateway.records(1)
    assert decided(rig) == 1
    assert rig.counts.lateness["decided"].sum < 0.05
    assert 30 <= record["silence"] < 30.05


@pytest.mark.rig(guard=GuardSettings(enabled=True, hold_s=600))
async def test_a_storm_does_not_make_the_hand_spin(rig: Rig, said: Lines) -> None:
    await rig.gateway_of(USERS)
    await trio.sleep(40)
    before = len(rig.turns)
    await trio.sleep(100)
    assert (len(rig.turns) - before) / 100 <= WAITING_PER_S
    assert len(storms(said)) == 1
