"""Users of another gateway who come due one by one while the scenario does its work.

Their lateness shows how much that work delays others. They send their last activity
beforehand, each with a timeout of its own: what is measured is how late they are decided
and delivered, not how their activities compete for the server.
"""

import time
from pathlib import Path
from typing import Final, Self

from liveness.lab.bench.verdict import judge, p99_ms
from liveness.lab.common.figures import Figure
from liveness.lab.common.load import LoadGateway, LoadUsers, Moment, Notices, now

PER_S: Final = 50
# A user that is not reported this long after the end counts as missing. It is far beyond
# any floor.
PATIENCE_S: Final = 5.0
# Logins sent at once. In a larger burst the last would be read long after it was written,
# which would count as lateness.
AT_ONCE: Final = 50
# The shortest time to measure: a quantile needs some users.
LEAST_S: Final = 2.0


class Stragglers:
    """Users of the gateway `stragglers`; 50 a second come due, for *seconds*.

    The first of them is due after *first_s*, at least 3.
    """

    def __init__(self, path: Path, *, first_s: float, seconds: float) -> None:
        self._due: dict[str, Moment] = {}
        self._gateway = LoadGateway(path, name="stragglers")
        users = LoadUsers(round(max(seconds, LEAST_S) * PER_S), kind="slow")
        for number in range(len(users)):
            timeout_s = first_s + number / PER_S
            frame = users.single(number, "login", timeout=timeout_s)
            self._due[users.uid(number)] = now().after(timeout_s)
            self._gateway.send(frame)
            if number % AT_ONCE == AT_ONCE - 1:
                self._gateway.ping()
        self._gateway.ping()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._gateway.__exit__(*error)

    def wait_for_first(self) -> None:
        """Return when the first of them is due."""
        first = next(iter(self._due.values()))
        time.sleep(max(0.0, first.mono - time.perf_counter()))

    def figures(
        self,
        scenario: str,
        began: float,
        *,
        decided_ms: float,
        delivered_ms: float | None,
        meanwhile: str = "",
    ) -> list[Figure]:
        """The figures of the users that came due from a monotonic moment until now.

        Their floors are *decided_ms* and *delivered_ms*; *meanwhile* is added to their names.
        """
        until = max(time.perf_counter(), began + LEAST_S)
        time.sleep(max(0.0, until - time.perf_counter()))
        expected = sum(due.mono <= until for due in self._due.values())
        self._gateway.wait_for(expected, until=until + PATIENCE_S)
        due = {uid: at for uid, at in self._due.items() if began <= at.mono <= until}
        notices = [
            Notices(
                received, [record for record in records if record.get("uid") in due]
            )
            for received, records in self._gateway.notices
        ]
        verdict = judge(notices, due, timeout_s=0.0)
        return [
            Figure(scenario, f"others {name}{meanwhile}", value, unit, most)
            for name, value, unit, most in (
                ("decided p99", p99_ms(verdict.decided_s), "ms", decided_ms),
                ("delivered p99", p99_ms(verdict.delivered_s), "ms", delivered_ms),
                ("early", verdict.early, "", 0.0),
                ("missing", verdict.missing, "", 0.0),
            )
        ]
