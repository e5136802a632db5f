"""The promises, in worlds that are drawn: the product's own parts on virtual time."""

from random import SystemRandom
from typing import Final

import pytest

from tests.promises.run_history import History
from tests.simulation.plan import plan_of
from tests.simulation.run import run
from tests.simulation.search import outcome_of, outcome_of_seed, outcomes
from tests.simulation.situations import ONE_HOST, Tally

# Chosen so that they reach every situation that is not rare, each by two of them if two of
# the first 150 do, and every branch that those take. Only new seeds find new faults, and
# each night brings thousands.
SEEDS: Final = (
    *range(41),
    *(42, 52, 54, 56, 57, 61, 62, 66, 71, 72, 75, 76, 79),
    *(85, 89, 95, 100, 101, 103, 105, 119, 122, 128, 141, 182),
)
FEW: Final = 12  # that `make test` runs
NIGHTLY: Final = 20_000
HOUR_S: Final = 3_600


@pytest.fixture(scope="module")
def tally() -> Tally:
    """What all seeds that are run here come into."""
    return Tally(ONE_HOST)


def trace(history: History) -> list[object]:
    """All that was sent and delivered, but for the log's id, which is drawn by the product."""
    for link in history.links:
        link.hello.pop("log", None)
    links = [
        (link.number, link.ended_at, link.sent, link.delivered, link.pongs)
        for link in history.links
    ]
    # Webhooks' ids are drawn by the product, too.
    requests = [
        (it.at, it.status, len(it.body))
        for outbound in history.outbound.values()
        for it in outbound.requests
    ]
    readings = [it.readings for it in history.outbound.values()]
    return [*links, *requests, *readings, history.cluster]


@pytest.mark.parametrize("seed", [5, 6, 7, 8])
def test_a_seed_reproduces_a_run_exactly(seed: int) -> None:
    plan = plan_of(seed)
    first, second = run(plan), run(plan)
    assert first.faults == []
    assert trace(first) == trace(second)


@pytest.mark.parametrize(
    "seed",
    [*SEEDS[:FEW], *(pytest.param(it, marks=pytest.mark.long) for it in SEEDS[FEW:])],
)
def test_every_promise_is_kept(seed: int, tally: Tally) -> None:
    outcome = outcome_of_seed(seed)
    tally.add(seed, outcome.reached, outcome.lasted_s)
    assert not outcome.breaches, str(outcome)


@pytest.mark.long
@pytest.mark.timeout(HOUR_S)
def test_these_seeds_come_into_every_situation_that_is_not_rare(tally: Tally) -> None:
    for seed in {*SEEDS} - {*tally.seeds}:
        outcome = outcome_of(plan_of(seed))
        tally.add(seed, outcome.reached, outcome.lasted_s)
    assert tally.never_reached(include_rare=False) == []


@pytest.mark.slow
@pytest.mark.timeout(8 * HOUR_S)
def test_a_night_of_new_seeds_keeps_every_promise_in_every_situation() -> None:
    first, tally = SystemRandom().randrange(10**9), Tally(ONE_HOST)
    for outcome in outcomes(range(first, first + NIGHTLY)):
        tally.add(outcome.plan.seed, outcome.reached, outcome.lasted_s)
        assert not outcome.breaches, str(outcome)
    assert tally.never_reached(include_rare=True) == []
