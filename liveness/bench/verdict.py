"""What became of the users that fell silent, on the client's clocks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from liveness.bench.load import Moment, Notices

# `at` is a whole millisecond, cut off: the decision came up to this much later.
AT_MS: Final = 1.0


@dataclass(slots=True)
class Verdict:
    """Lateness in seconds after each deadline, and what went wrong."""

    decided_s: list[float] = field(default_factory=list)
    delivered_s: list[float] = field(default_factory=list)
    early: int = 0
    false: int = 0
    missing: int = 0


def judge(
    notices: Iterable[Notices], fell_silent: Mapping[str, Moment], *, timeout_s: float
) -> Verdict:
    """Hold what was announced against what was done.

    Args:
        notices: All that the gateway received.
        fell_silent: Whoever fell silent, and the moment before its last sign of life
            was written. The server received that sign later, so a user that goes
            offline before this moment and the timeout have passed is too early.
        timeout_s: Their timeout.
    """
    verdict, awaited = Verdict(), dict(fell_silent)
    for received, records in notices:
        for record in records:
            last = awaited.pop(record.get("uid", ""), None)
            if last is None or record.get("reason") != "silence":
                verdict.false += 1
                continue
            decided_s = (record["at"] - last.wall_ms) / 1000 - timeout_s
            delivered_s = received - last.mono - timeout_s
            if decided_s + AT_MS / 1000 < 0 or delivered_s < 0:
                verdict.early += 1
            verdict.decided_s.append(decided_s)
            verdict.delivered_s.append(delivered_s)
    verdict.missing = len(awaited)
    return verdict


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share *q* of them do not exceed."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def p99_ms(seconds: Sequence[float]) -> float:
    """The 99th percentile, in milliseconds."""
    return 1000 * quantile(seconds, 0.99)
