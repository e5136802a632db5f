"""Hosts that publish to a real redis-server, in random histories and in chosen ones."""

from collections import Counter
from random import Random, SystemRandom
from typing import Final

import pytest

from liveness.cluster.format import configuration_of
from liveness.outlets.cluster.session_changes import Call
from tests.simulation.cluster.history import History, faults_of
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.world import KEYS
from tests.simulation.situations import never_reached, noted

# Histories of one test: some take a second.
HISTORIES: Final = 12
SEEDS: Final = range(300)
FEW: Final = 60  # that `make test` runs
NIGHTLY: Final = 20_000
FOREVER: Final = 1e12


@pytest.fixture(scope="module")
def counts() -> Counter[str]:
    """The situations that all histories here come into."""
    return Counter()


@pytest.fixture(scope="module")
def done() -> set[int]:
    """The seeds of those."""
    return set()


@pytest.mark.parametrize(
    "first",
    [
        *SEEDS[:FEW:HISTORIES],
        *(pytest.param(it, marks=pytest.mark.long) for it in SEEDS[FEW::HISTORIES]),
    ],
)
def test_a_history_ends_with_what_the_hosts_have(
    counts: Counter[str], done: set[int], first: int
) -> None:
    for seed in range(first, first + HISTORIES):
        with noted() as found:
            assert not faults_of(seed), seed
        counts.update(found)
        done.add(seed)


@pytest.mark.long
def test_these_seeds_come_into_every_situation_that_is_not_rare(
    counts: Counter[str], done: set[int]
) -> None:
    for seed in {*SEEDS} - done:
        with noted() as found:
            faults_of(seed)
        counts.update(found)
    assert never_reached(counts, ["cluster"], though_rare=False) == []


@pytest.mark.slow
@pytest.mark.timeout(8 * 3_600)
def test_a_night_of_new_histories_ends_so_in_every_situation() -> None:
    first = SystemRandom().randrange(10**9)
    with noted() as counts:
        for seed in range(first, first + NIGHTLY):
            assert not faults_of(seed), seed
    assert never_reached(counts, ["cluster"], though_rare=True) == []


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


def test_the_last_look_is_not_ahead_though_the_clock_of_redis_was_set_back(
    history: History,
) -> None:
    world = history.world
    world.skew_s = [-3_600.0 for _ in world.partitions]
    host = world.hosts(0)["B"]
    who: list[str | int | bytes] = ["B", host.epoch, host.nonce, host.incarnation]
    answer = world.run(0, Call("beat", [*who, host.last, host.last, 0, 1, 0, 0]))
    assert answer is not None
    assert answer[7] > 3_500e6  # microseconds since the last look: the next one is due


def test_a_host_that_begins_after_the_clock_of_redis_was_set_back_has_the_others_clock(
    history: History,
) -> None:
    world = history.world
    world.skew_s = [-3_600.0 for _ in world.partitions]
    history.pass_time(history.plan.lease_s)
    conf = configuration_of(2, "/")
    begin = Call("begin", ["D", 1, 1, "log", 0, conf, 30_000_000, 0, 0, 1])
    # The clock of the partition is slower by 2 % until Redis' clock has caught up.
    assert world.now * 1e6 - world.run(0, begin)[3] < 1e6


def test_of_two_processes_of_one_name_the_newest_publishes_until_it_ends(
    history: History,
) -> None:
    first = history.machines[0]
    first.clock_s = 3_600.0  # so its epochs are higher
    first.restart()
    history.pass_time(1)
    newest = history.add(first.name)
    newest.clock_s = 0.0
    newest.restart()
    history.pass_time(history.plan.lease_s)
    assert first.process.host.identity.is_stopped
    assert newest.process.host.is_following
    newest.is_alive = False
    history.pass_time(2 * history.plan.lease_s)
    assert first.process.host.is_following
    history.mend()
    history.check()
    assert history.world.faults_found == []


def test_users_are_counted_on_all_hosts(history: History) -> None:
    count = sum(history.world.redis("HLEN", keys.users) for keys in KEYS[:2])
    assert [it.process.host.users for it in history.machines] == [count] * 3
