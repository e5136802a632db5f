"""Runs seeds, and of a run that breaks a promise finds a short one that does too."""

import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import get_context
from typing import Final

from tests.promises.checker import broken_promises
from tests.simulation.plan import Plan, Step, plan_of
from tests.simulation.run import run
from tests.simulation.situations import noted

# Runs that may go into making one shorter: some minutes.
SHORTENING_RUNS: Final = 120
SHOWN_BREACHES: Final = 10
AT_ONCE: Final = 64  # seeds that are handed to all processes together


@dataclass(frozen=True, slots=True)
class Outcome:
    plan: Plan
    breaches: list[str]
    lasted_s: float
    reached: frozenset[str] = frozenset()

    @property
    def promise(self) -> str:
        """Which promise was broken first: what its breach begins with."""
        return self.breaches[0].partition(":")[0] if self.breaches else ""

    def __str__(self) -> str:
        plan = replace(self.plan, steps=())
        return "\n".join(
            [
                f"seed {self.plan.seed} breaks a promise:",
                *self.breaches[:SHOWN_BREACHES],
                "the shortest history found that does:",
                repr(plan),
                *map(repr, self.plan.steps),
                f'again: make simulate ARGS="--seed {self.plan.seed}"',
            ]
        )


def outcome_of(plan: Plan) -> Outcome:
    """Run a plan, and check it; whatever is raised is a breach too."""
    with noted() as counts:
        try:
            history = run(plan)
        except Exception:  # of whatever kind: it is reported, and the search goes on
            return Outcome(plan, [f"raised: {traceback.format_exc()}"], 0.0)
        breaches = broken_promises(plan, history)
        return Outcome(plan, breaches, history.ended_at, frozenset(counts))


def outcome_of_seed(seed: int) -> Outcome:
    outcome = outcome_of(plan_of(seed))
    return shortest(outcome) if outcome.breaches else outcome


def outcomes(seeds: Iterable[int]) -> Iterator[Outcome]:
    """Run seeds on all processors; the outcomes come in order."""
    left = iter(seeds)
    with get_context("spawn").Pool(os.cpu_count(), maxtasksperchild=AT_ONCE) as pool:
        while some := [*islice(left, AT_ONCE)]:
            yield from pool.imap(outcome_of_seed, some)
        pool.close()
        pool.join()  # each ends its own Redis


def shortest(outcome: Outcome) -> Outcome:
    """Leave steps out as long as the same promise is broken."""
    found = outcome

    def breaks(steps: tuple[Step, ...]) -> bool:
        nonlocal found
        tried = outcome_of(replace(outcome.plan, steps=steps))
        if tried.promise != outcome.promise:
            return False
        found = tried
        return True

    reduced(outcome.plan.steps, breaks, most=SHORTENING_RUNS)
    return found


def reduced(
    steps: tuple[Step, ...], breaks: Callable[[tuple[Step, ...]], bool], *, most: int
) -> tuple[Step, ...]:
    """A part of the steps that still breaks, from which no single one may be missing.

    Args:
        steps: They break.
        breaks: Says so of fewer steps.
        most: It is asked no more often than this; then there may be some too many.
    Source:
        Zeller & Hildebrandt, 2002: the ddmin algorithm, by complements only.
    """
    parts, asked = 2, 0
    while len(steps) > 1:
        size = -(-len(steps) // parts)
        for at in range(0, len(steps), size):
            if asked == most:
                return steps
            asked += 1
            rest = steps[:at] + steps[at + size :]
            if breaks(rest):
                steps, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(steps), 2 * parts)
    return steps
