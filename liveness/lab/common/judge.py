"""A judge of notices in bulk, by the clocks of the load: it can take ten million users.

The demo has another one, `HostJudge`, which knows the actions of each user.
"""

import math
from array import array
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple, Self

# `at` is truncated to a millisecond: the decision was up to this much later.
AT_S: Final = 0.001


class Moment(NamedTuple):
    """A moment on both clocks: monotonic seconds and Unix milliseconds."""

    mono: float
    wall_ms: float

    def after(self, seconds: float) -> Self:
        return self._replace(
            mono=self.mono + seconds, wall_ms=self.wall_ms + 1000 * seconds
        )


class Notices(NamedTuple):
    """One frame of records, and when it was completely received (monotonic)."""

    received: float
    records: Sequence[dict[str, Any]]


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
        # Seconds from each deadline.
        self.decided_s, self.delivered_s = array("d"), array("d")
        self.early = self.false = 0  # false: also timers that fired twice

    def take(self, notices: Notices) -> None:
        key, timeout_s = self._key, self._timeout_s
        for record in notices.records:
            moment = self._expected.pop(record.get(key, ""), None)
            is_other = key == "uid" and record.get("reason") != "silence"
            if moment is None or is_other:
                self.false += 1
                continue
            decided_s = (record["at"] - moment.wall_ms) / 1000 - timeout_s
            delivered_s = notices.received - moment.mono - timeout_s
            self.early += decided_s < -AT_S or delivered_s < 0
            self.decided_s.append(decided_s)
            self.delivered_s.append(delivered_s)

    @property
    def missing(self) -> int:
        """Users or timers that are not reported so far."""
        return len(self._expected)


def judge(
    notices: Iterable[Notices],
    last: Mapping[str, Moment],
    *,
    timeout_s: float = 0.0,
    key: str = "uid",
) -> Judge:
    judge = Judge(dict(last), timeout_s=timeout_s, key=key)
    for received in notices:
        judge.take(received)
    return judge


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share *q* of *values* does not exceed."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def p99_ms(seconds: Sequence[float]) -> float:
    return 1000 * quantile(seconds, 0.99)
