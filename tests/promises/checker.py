"""Was every promise kept? Each is one function, by its number in `docs/concepts.md`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from liveness.lab.common.promises import NO_PROMISE, Breach
from tests.promises.conduct import conduct
from tests.promises.not_lost import not_lost
from tests.promises.run_evidence import RunEvidence
from tests.promises.run_history import History
from tests.promises.session_checks import (
    never_early,
    newer_wins,
    no_false_silence,
    prompt,
)
from tests.promises.timer_checks import timers
from tests.simulation.plan import Plan


class Promise(NamedTuple):
    """Its name in the document, and what says in words where it was broken."""

    name: str
    broken: Callable[[RunEvidence], Iterable[str]]


PROMISES: Final[Mapping[int, Promise]] = {
    1: Promise("Never early", never_early),
    2: Promise("Prompt", prompt),
    3: Promise("Once", lambda run: run.log_breaches(3)),
    4: Promise("Not lost", not_lost),
    5: Promise("No false silence", no_false_silence),
    6: Promise("A newer connection wins", newer_wins),
    7: Promise("Timers", timers),
}


def broken_promises(
    plan: Plan, history: History, *, real_s: float | None = None
) -> list[str]:
    """Every breach that can be found, in words; none if all promises were kept.

    Args:
        plan: Its settings say what held in the run.
        history: The run's history.
        real_s: Of a run in real time how much later than it happened something may have
            been noted. Whether anything was prompt is not asked of such a run.
    """
    run = RunEvidence(plan, history, real_s)
    # Without the whole log all else would only repeat that it is not whole.
    numbers = PROMISES if run.is_whole else [4]
    found = [Breach(NO_PROMISE, it) for it in conduct(run)]
    for number in numbers:
        found += [Breach(number, it) for it in PROMISES[number].broken(run)]
    return [str(it) for it in found]
