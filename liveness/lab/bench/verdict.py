"""The figures of what must never happen; the judge itself is in `lab/common/judge.py`."""

from liveness.lab.bench.floors import NONE
from liveness.lab.common.figures import Figure
from liveness.lab.common.judge import AT_S, Judge, Verdict, judge, p99_ms, quantile

# Callers in this room take the judge from here, until they name its own module.
__all__ = ["AT_S", "Judge", "Verdict", "judge", "mistakes", "p99_ms", "quantile"]


def mistakes(scenario: str, verdict: Verdict) -> list[Figure]:
    """The figures of what must never happen."""
    return [
        Figure(scenario, "early offlines", verdict.early, "", NONE),
        Figure(scenario, "false offlines", verdict.false, "", NONE),
        Figure(scenario, "missing", verdict.missing, "", NONE),
    ]
