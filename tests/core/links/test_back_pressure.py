"""What waits while the disk is behind, by how much waits for it."""

import pytest

from liveness.core.effects import LogLine
from liveness.core.links.back_pressure import (
    FIRE_PER_TURN,
    FIRE_WHILE_THROTTLED,
    BackPressure,
)
from tests.core.server_shell import Shell

ENDS, RECORDS, COMMANDS = 100, 1_000, 90


@pytest.fixture
def shell() -> Shell:
    """Two gateways, g and h."""
    made = Shell(max_pending=COMMANDS, pause_firing=ENDS, pause_reading=RECORDS)
    for name in "gh":
        made.gateway(name)
    return made


def look(shell: Shell) -> BackPressure:
    shell.parts.pressure.look(shell.attended.now)
    return shell.parts.pressure


@pytest.mark.parametrize(
    ("waiting", "limit"),
    [
        (ENDS - 1, FIRE_PER_TURN),
        (ENDS, FIRE_WHILE_THROTTLED),
        (2 * ENDS - 1, FIRE_WHILE_THROTTLED),
        (2 * ENDS, 0),
    ],
)
def test_the_more_offlines_wait_the_fewer_users_are_fired(
    shell: Shell, waiting: int, limit: int
) -> None:
    shell.disk.pending_ends = waiting
    pressure = look(shell)
    assert (pressure.fire_limit, pressure.reading_is_paused) == (limit, False)
    assert pressure.firing_was_throttled == (limit < FIRE_PER_TURN)


def test_the_more_records_wait_the_less_is_read(shell: Shell) -> None:
    found = []
    for waiting in (RECORDS // 2 - 1, RECORDS // 2, RECORDS - 1, RECORDS):
        shell.disk.records_pending = waiting
        pressure = look(shell)
        found.append((pressure.reads_small_pieces, pressure.reading_is_paused))
        assert pressure.fire_limit == FIRE_PER_TURN
    assert found == [(False, False), (True, False), (True, False), (True, True)]


def test_each_bound_is_counted_once_until_less_waits(shell: Shell) -> None:
    met = shell.counts.limits_met
    for waits in (False, True, True, False, False, True):
        shell.disk.pending_ends = ENDS * waits
        shell.disk.records_pending = RECORDS * waits
        look(shell)
    assert (met["limits.pause_firing"], met["limits.pause_reading"]) == (2, 2)


def commands(shell: Shell, **by_gateway: int) -> BackPressure:
    """This many timer commands of each gateway wait."""
    shell.disk.commands_by_gateway = by_gateway
    shell.disk.commands_pending = sum(by_gateway.values())
    return look(shell)


@pytest.mark.parametrize(
    ("by_gateway", "held_back"),
    [
        ({"g": 45}, []),  # up to half of the bound anyone may use
        ({"g": 46}, ["g"]),
        ({"g": 30, "h": 30}, []),
        ({"g": 30, "h": 31}, ["h"]),
        ({"g": 40, "h": 6}, []),  # as there is room for more than an equal share
        ({"g": 80, "h": 30}, ["g"]),  # an equal share is there for each
        ({"g": 80, "gone": 80}, ["g"]),
    ],
)
def test_a_gateway_with_more_commands_than_there_is_room_for_is_not_read(
    shell: Shell, by_gateway: dict[str, int], held_back: list[str]
) -> None:
    assert [*commands(shell, **by_gateway).held_back] == held_back


def test_timers_of_a_gateway_fire_until_twice_its_share_of_commands_waits(
    shell: Shell,
) -> None:
    assert commands(shell, g=60, h=60).gateways_without_timers == set()
    assert commands(shell, g=61, h=60).gateways_without_timers == {"g"}


def test_a_gateway_that_is_held_back_is_named_and_read_again(shell: Shell) -> None:
    gateway = shell.parts.gateways.by_name["g"]
    for _ in range(2):
        commands(shell, g=80)
        assert gateway.reading_paused_at == shell.attended.now
    lines = [it for it in shell.server.effects if isinstance(it, LogLine)]
    (line,) = [it for it in lines if "timer commands wait" in it.message]
    assert line.key == "g"
    assert line.fields == {"name": "g", "pending": 80}
    assert shell.counts.limits_met["timers.max_pending"] == 1
    commands(shell)
    assert gateway.reading_paused_at is None
