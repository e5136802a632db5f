"""Runs the simulation by hand: one seed again, or new ones for a while."""

import argparse
import itertools
import sys
from collections.abc import Iterator
from random import SystemRandom
from time import perf_counter

from tests.simulation.cluster.history import faults_of
from tests.simulation.search import outcomes
from tests.simulation.situations import CLUSTER, ONE_HOST, Tally


def main() -> int:
    """Run until the first breach; 1 if there was one."""
    parser = argparse.ArgumentParser(prog="make simulate")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seed", type=int, help="run this seed only")
    what.add_argument(
        "--minutes", type=float, default=1.0, help="run new seeds so long"
    )
    what.add_argument("--seeds", type=int, help="run so many new seeds")
    parser.add_argument("--first", type=int, help="the first of the new seeds")
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="hosts on a redis-server, not one sidecar",
    )
    asked = parser.parse_args()
    run = report_of_clusters if asked.cluster else report
    if asked.seed is not None:
        return run(iter([asked.seed]))
    first = SystemRandom().randrange(10**9) if asked.first is None else asked.first
    if asked.seeds is not None:
        return run(iter(range(first, first + asked.seeds)))
    return run(seeds_for(asked.minutes * 60, first))


def seeds_for(seconds: float, first: int) -> Iterator[int]:
    """Seeds from *first* on, as long as there is time."""
    until = perf_counter() + seconds
    return itertools.takewhile(lambda _: perf_counter() < until, itertools.count(first))


def report(seeds: Iterator[int]) -> int:
    """Run them, and say how it went."""
    tally = Tally(ONE_HOST)
    for outcome in outcomes(seeds):
        tally.add(outcome.plan.seed, outcome.reached, outcome.lasted_s)
        if outcome.breaches:
            print(outcome)
            return 1
    print(tally)
    return 0


def report_of_clusters(seeds: Iterator[int]) -> int:
    """Play their histories, and say how it went."""
    tally = Tally([CLUSTER])
    for seed in seeds:
        if faults := faults_of(seed, tally):
            print(f"seed {seed}:\n{faults}")
            return 1
    print(tally)
    return 0


if __name__ == "__main__":
    sys.exit(main())
