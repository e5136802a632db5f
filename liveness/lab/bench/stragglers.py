"""Users of another gateway who come due one by one while the scenario does its work.

Their lateness shows how much that work delays others. They send their last activity
beforehand, each with a timeout of its own: so only their decisions and deliveries compete
with that work, not their activities.
"""

import time
from pathlib import Path
from typing import Final

from liveness.lab.bench.floors import DECIDED_MS, NONE
from liveness.lab.common.figures import Figure
from liveness.lab.common.judge import Judge, judge, p99_ms
from liveness.lab.common.load import LoadGateway, LoadUsers, Moment, Notices, now

PER_S: Final = 50
# A user that is not reported this long after the end counts as missing. It is far beyond
# any floor.
PATIENCE_S: Final = 5.0
# Logins sent at once. In a larger burst the last would be read long after it was written,
# which would count as lateness.
AT_ONCE: Final = 50
# The default moment when the first is due: all have logged in by then.
FIRST_S: Final = 2.0
# The shortest time to measure: a quantile needs some users.
LEAST_S: Final = 1.0


class Stragglers(LoadGateway):
    """Users of the gateway `stragglers`; 50 a second come due, for *seconds*.

    The first of them is due after *first_s*.
    """

    def __init__(self, path: Path, *, first_s: float, seconds: float) -> None:
        super().__init__(path, name="stragglers")
        self._due: dict[str, Moment] = {}
        users = LoadUsers(round(max(seconds, LEAST_S) * PER_S), kind="slow")
        for number in range(len(users)):
            timeout_s = first_s + number / PER_S
            frame = users.single(number, "login", timeout=timeout_s)
            self._due[users.uid(number)] = now().after(timeout_s)
            self.send(frame)
            if number % AT_ONCE == AT_ONCE - 1:
                self.ping()
        self.ping()

    def wait_for_first(self) -> None:
        first = next(iter(self._due.values()))
        time.sleep(max(0.0, first.mono - time.perf_counter()))

    def verdict(self, began: float) -> Judge:
        """Judge those that came due from a monotonic moment until now."""
        until = max(time.perf_counter(), began + LEAST_S)
        time.sleep(max(0.0, until - time.perf_counter()))
        expected = sum(due.mono <= until for due in self._due.values())
        self.wait_for(expected, until=until + PATIENCE_S)
        due = {uid: at for uid, at in self._due.items() if began <= at.mono <= until}
        notices = [
            Notices(received, [row for row in records if row.get("uid") in due])
            for received, records in self.notices
        ]
        return judge(notices, due)

    def figures(
        self,
        scenario: str,
        began: float,
        decided_ms: float = DECIDED_MS,
        delivered_ms: float | None = None,
    ) -> list[Figure]:
        verdict = self.verdict(began)
        return [
            Figure(scenario, f"others {name}", value, unit, most)
            for name, value, unit, most in (
                ("decided p99", p99_ms(verdict.decided_s), "ms", decided_ms),
                ("delivered p99", p99_ms(verdict.delivered_s), "ms", delivered_ms),
                ("early", verdict.early, "", NONE),
                ("missing", verdict.missing, "", NONE),
            )
        ]
