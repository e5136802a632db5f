"""Hosts that publish to a real redis-server, in random histories and in chosen ones."""

from random import Random, SystemRandom
from typing import Final

import pytest

from tests.simulation.cluster.history import History, faults_of
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.world import KEYS
from tests.simulation.situations import CLUSTER, Tally

# Histories of one test: some take a second.
HISTORIES: Final = 12
SEEDS: Final = range(300)
FEW: Final = 60  # that `make test` runs
NIGHTLY: Final = 20_000
FOREVER: Final = 1e12


@pytest.fixture(scope="module")
def tally() -> Tally:
    """The situations that all histories here come into."""
    return Tally([CLUSTER])


@pytest.mark.parametrize(
    "first",
    [
        *SEEDS[:FEW:HISTORIES],
        *(pytest.param(it, marks=pytest.mark.long) for it in SEEDS[FEW::HISTORIES]),
    ],
)
def test_a_history_ends_with_what_the_hosts_have(tally: Tally, first: int) -> None:
    for seed in range(first, first + HISTORIES):
        assert not faults_of(seed, tally), seed


@pytest.mark.long
def test_these_seeds_come_into_every_situation_that_is_not_rare(tally: Tally) -> None:
    for seed in {*SEEDS} - {*tally.seeds}:
        faults_of(seed, tally)
    assert tally.never_reached(include_rare=False) == []


@pytest.mark.slow
@pytest.mark.timeout(8 * 3_600)
def test_a_night_of_new_histories_ends_so_in_every_situation() -> None:
    first, tally = SystemRandom().randrange(10**9), Tally([CLUSTER])
    for seed in range(first, first + NIGHTLY):
        assert not faults_of(seed, tally), seed
    assert tally.never_reached(include_rare=True) == []


@pytest.fixture
def history() -> History:
    """Three hosts with users, and nothing that goes wrong by itself."""
    history = History(Random(1), Plan())
    history.pass_time(1)
    for machine in history.machines:
        for _ in range(9):
            machine.happen()
    history.pass_time(history.plan.lease_s / 3)
    return history


def test_a_lost_host_is_reaped_and_no_other_while_redis_is_out_of_memory(
    history: History,
) -> None:
    world, lost = history.world, history.machines[0]
    world.full_until = [FOREVER for _ in world.partitions]
    lost.is_alive = False
    for machine in history.machines[1:]:
        machine.happen()
    history.pass_time(2 * history.plan.lease_s)
    for partition in world.partitions:
        assert {*world.hosts(partition)} == {"B", "C"}
    history.mend()
    history.check()
    assert world.faults_found == []


def test_users_are_counted_on_all_hosts(history: History) -> None:
    count = sum(history.world.redis("HLEN", keys.users) for keys in KEYS[:2])
    assert [it.host.users for it in history.machines] == [count] * 3
