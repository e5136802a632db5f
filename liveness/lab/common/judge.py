"""A judge of notices in bulk, by the clocks of the load: it can take ten million users.

The demo has another one, `HostJudge`, which knows the actions of each user.
"""

# array.array cannot be subscripted when it runs, before Python 3.12.
from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

# `at` is truncated to a millisecond: the decision was up to this much later.
AT_S: Final = 0.001


class Moment(NamedTuple):
    """A moment on both clocks: monotonic seconds and Unix milliseconds."""

    mono: float
    wall_ms: float

    def after(self, seconds: float) -> Moment:
        return Moment(self.mono + seconds, self.wall_ms + 1000 * seconds)


class Notices(NamedTuple):
    """One frame of records, and when it was completely received (monotonic)."""

    received: float
    records: Sequence[dict[str, Any]]


@dataclass(slots=True)
class Verdict:
    """Seconds from each deadline to decision and delivery; and counts of broken promises."""

    decided_s: array[float] = field(default_factory=lambda: array("d"))
    delivered_s: array[float] = field(default_factory=lambda: array("d"))
    early: int = 0
    false: int = 0  # also timers that fired twice
    missing: int = 0


class Judge:
    """Compares records with the users that really fell silent, or with timers.

    Args:
        expected: By uid, the moment before the last activity was written. The server
            received it later, so an offline within the timeout from here is too early.
            For timers, by key, the moment when each is due. Reported ones are removed
            from it.
        timeout_s: The users' timeout.
        key: The field of a record that names its user ("uid") or its timer ("key").
    """

    def __init__(
        self,
        expected: MutableMapping[str, Moment],
        *,
        timeout_s: float = 0.0,
        key: str = "uid",
    ) -> None:
        self._expected, self._timeout_s, self._key = expected, timeout_s, key
        self._verdict = Verdict()

    def take(self, notices: Notices) -> None:
        verdict, key, timeout_s = self._verdict, self._key, self._timeout_s
        for record in notices.records:
            moment = self._expected.pop(record.get(key, ""), None)
            is_other = key == "uid" and record.get("reason") != "silence"
            if moment is None or is_other:
                verdict.false += 1
                continue
            decided_s = (record["at"] - moment.wall_ms) / 1000 - timeout_s
            delivered_s = notices.received - moment.mono - timeout_s
            verdict.early += decided_s < -AT_S or delivered_s < 0
            verdict.decided_s.append(decided_s)
            verdict.delivered_s.append(delivered_s)

    def verdict(self) -> Verdict:
        self._verdict.missing = len(self._expected)
        return self._verdict


def judge(
    notices: Iterable[Notices],
    last: Mapping[str, Moment],
    *,
    timeout_s: float = 0.0,
    key: str = "uid",
) -> Verdict:
    judge = Judge(dict(last), timeout_s=timeout_s, key=key)
    for received in notices:
        judge.take(received)
    return judge.verdict()


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share *q* of *values* does not exceed."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def p99_ms(seconds: Sequence[float]) -> float:
    return 1000 * quantile(seconds, 0.99)
