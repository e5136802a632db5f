"""The storm guard in a running service: what is told, what is counted, what it costs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
import trio
from trio.testing import MockClock

from liveness.config import GuardSettings
from liveness.core.guard import ALL, ALONE, BY_CALM, BY_COMMAND, BY_TIME, ONLY
from tests.service.rig import WAITING_PER_S, Caller, Rig, running

ON: Final = GuardSettings(enabled=True)
SMALL: Final = GuardSettings(enabled=True, least_users=20, hold_s=40)
USERS: Final = [f"u{n}" for n in range(1_000)]

Lines = list[Any]


@pytest.fixture
def said() -> Iterator[Lines]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def storms(said: Lines) -> Lines:
    return [line for line in said if line["event"].startswith("storm")]


def decided(rig: Rig) -> float:
    """How many offlines count for the lateness of decisions."""
    return rig.counts.lateness["decided"].cumulative()[-1][1]


async def arrive(rig: Rig, name: str, uids: list[str]) -> Caller:
    gateway = await rig.gateway(name)
    await gateway.send(["login", uids])
    await gateway.settle()
    return gateway


async def test_a_thousand_who_come_due_at_once_are_held_for_a_timeout(
    tmp_path: Path, jumping: MockClock, said: Lines
) -> None:
    async with running(tmp_path, guard=ON) as rig:
        gateway = await arrive(rig, "g", USERS)
        assert await gateway.is_told_nothing(59.9)
        records = await gateway.records(1_000)
        assert all(60 <= one["silence"] < 60.5 for one in records)
        begun, ended = storms(said)
        assert begun["event"] == "storm: too many users came due at once, and are held"
        assert {key: begun[key] for key in ("gateway", "due", "users", "likely")} == {
            "gateway": "g",
            "due": 1_000,
            "users": 1_000,
            "likely": ONLY,
        }
        assert begun["log_level"] == ended["log_level"] == "warning"
        assert begun["hold_s"] == 30.0
        assert (ended["event"], ended["why"]) == ("storm is over", BY_TIME)
        assert (ended["saved"], ended["others"]) == (0, 1_000)
        assert rig.sidecar._now().storms == 1


@pytest.mark.parametrize(
    ("count", "guard"), [(999, ON), (1_000, GuardSettings(enabled=False))]
)
async def test_fewer_or_without_a_guard_they_are_judged_at_their_deadlines(
    tmp_path: Path, jumping: MockClock, said: Lines, count: int, guard: GuardSettings
) -> None:
    async with running(tmp_path, guard=guard) as rig:
        gateway = await arrive(rig, "g", USERS[:count])
        records = await gateway.records(count)
        assert all(30 <= one["silence"] < 30.5 for one in records)
        assert storms(said) == []
        assert decided(rig) == count


async def test_whoever_speaks_is_saved_and_when_all_have_the_storm_is_over(
    tmp_path: Path, jumping: MockClock, said: Lines
) -> None:
    async with running(tmp_path, guard=SMALL) as rig:
        gateway = await arrive(rig, "g", USERS[:50])
        other = await arrive(rig, "h", USERS[50:60])
        # Fewer than a storm takes: as ever, though another gateway has one.
        assert len(await other.records(10)) == 10
        await trio.sleep(10)
        assert rig.presence.held(rig.engine.attended)["storm"] == 50
        await gateway.send(["keepalive", USERS[:49]])
        await gateway.settle()
        await trio.sleep(1)
        assert rig.presence.held(rig.engine.attended)["storm"] == 1
        await gateway.send(["logout", USERS[49]])
        await trio.sleep(1)
        (_, ended) = storms(said)
        assert (ended["why"], ended["saved"], ended["others"]) == (BY_CALM, 50, 0)
        (record,) = await gateway.records(1)
        assert (record["uid"], record["reason"]) == (USERS[49], "logout")


async def test_whoever_was_held_is_not_in_the_lateness(
    tmp_path: Path, jumping: MockClock, said: Lines
) -> None:
    async with running(tmp_path, guard=SMALL) as rig:
        gateway = await arrive(rig, "g", USERS[:50])
        await trio.sleep(50)
        await gateway.send(["keepalive", "u0"])
        await gateway.records(49)
        assert decided(rig) == 0
        (record,) = await gateway.records(1)
        assert decided(rig) == 1
        assert rig.counts.lateness["decided"].sum < 0.05
        assert 30 <= record["silence"] < 30.05


async def test_a_release_is_carried_out_at_once_and_told(
    tmp_path: Path, jumping: MockClock, said: Lines
) -> None:
    async with running(tmp_path, guard=SMALL) as rig:
        gateway = await arrive(rig, "g", USERS[:50])
        quiet = await arrive(rig, "h", USERS[50:90])
        await trio.sleep(35)
        assert [line["likely"] for line in storms(said)] == [ALL, ALL]
        assert rig.engine.release("nobody") == []
        (released,) = rig.engine.release("g")
        assert released[:2] == ("g", 50)
        began = trio.current_time()
        await gateway.records(50)
        assert trio.current_time() - began < 0.1
        assert await quiet.is_told_nothing(5)
        assert [one.gateway for one in rig.engine.release(None)] == ["h"]
        await quiet.records(40)
        assert [line.get("why") for line in storms(said)] == [
            *[None] * 2,
            *[BY_COMMAND] * 2,
        ]


async def test_a_gateway_whose_users_alone_come_due_is_named_as_the_likely_cause(
    tmp_path: Path, jumping: MockClock, said: Lines
) -> None:
    async with running(tmp_path, guard=SMALL) as rig:
        await arrive(rig, "g", USERS[:50])
        await trio.sleep(15)
        await arrive(rig, "h", USERS[50:200])
        await trio.sleep(20)
        (begun,) = storms(said)
        assert (begun["gateway"], begun["likely"]) == ("g", ALONE)


async def test_a_storm_does_not_make_the_hand_spin(
    tmp_path: Path, jumping: MockClock, said: Lines
) -> None:
    guard = GuardSettings(enabled=True, hold_s=600)
    async with running(tmp_path, guard=guard) as rig:
        await arrive(rig, "g", USERS)
        await trio.sleep(40)
        before = len(rig.turns)
        await trio.sleep(100)
        assert (len(rig.turns) - before) / 100 <= WAITING_PER_S
        assert len(storms(said)) == 1
