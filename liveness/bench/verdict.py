"""How late silent users were reported, on the client's clocks, and what went wrong."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from liveness.bench.figures import Figure
from liveness.bench.floors import NONE
from liveness.bench.load import Moment, Notices

# `at` is truncated to a millisecond: the decision was up to this much later.
AT_MS: Final = 1.0


@dataclass(slots=True)
class Verdict:
    """Seconds from each deadline to decision and delivery; early, false and missing."""

    decided_s: list[float] = field(default_factory=list)
    delivered_s: list[float] = field(default_factory=list)
    early: int = 0
    false: int = 0
    missing: int = 0


def judge(
    notices: Iterable[Notices],
    last: Mapping[str, Moment],
    *,
    timeout_s: float = 0.0,
    key: str = "uid",
) -> Verdict:
    """Compare the records with the users that really fell silent, or with timers.

    Args:
        notices: All that the gateway received.
        last: By uid, the moment before the last activity was written. The server received
            it later, so an offline within the timeout from here is too early. Of timers,
            by key, the moment that each is due.
        timeout_s: The users' timeout.
        key: The field of a record that names its user ("uid") or its timer ("key").
    """
    verdict, expected = Verdict(), dict(last)
    for received, records in notices:
        for record in records:
            moment = expected.pop(record.get(key, ""), None)
            is_other = key == "uid" and record.get("reason") != "silence"
            if moment is None or is_other:
                verdict.false += 1
                continue
            decided_s = (record["at"] - moment.wall_ms) / 1000 - timeout_s
            delivered_s = received - moment.mono - timeout_s
            if decided_s + AT_MS / 1000 < 0 or delivered_s < 0:
                verdict.early += 1
            verdict.decided_s.append(decided_s)
            verdict.delivered_s.append(delivered_s)
    verdict.missing = len(expected)
    return verdict


def mistakes(scenario: str, verdict: Verdict) -> list[Figure]:
    """The figures of what must never happen."""
    return [
        Figure(scenario, "early offlines", verdict.early, "", NONE),
        Figure(scenario, "false offlines", verdict.false, "", NONE),
        Figure(scenario, "missing", verdict.missing, "", NONE),
    ]


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share *q* of *values* does not exceed."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def p99_ms(seconds: Sequence[float]) -> float:
    """The 99th percentile, in milliseconds."""
    return 1000 * quantile(seconds, 0.99)
