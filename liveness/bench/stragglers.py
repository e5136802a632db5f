"""Another gateway, whose users fall silent one by one while something larger goes on.

What they are told, and when, is how much that delays others. Their last sign of life is
given beforehand, each with a timeout of its own: what is measured is how late they are
judged and told, not how their signs compete.
"""

import time
from pathlib import Path
from typing import Final, Self

from liveness.bench.figures import Figure
from liveness.bench.load import LoadGateway, LoadUsers, Moment, Notices, now
from liveness.bench.verdict import judge, p99_ms

PER_S: Final = 50
# Whoever is late by so much more than any promise is missing.
PATIENCE_S: Final = 5.0
# So many signs of life at once: in one burst the last would be read long after it was
# written, which is another lateness than the one that is asked for.
AT_ONCE: Final = 50
# However soon it is over: as many as a quantile needs.
LEAST_S: Final = 2.0


class Stragglers:
    """Users of the gateway `stragglers`, of whom 50 a second come due.

    Args:
        path: The server's socket.
        first_s: From now until the first of them is due, at least 3.
        seconds: For how long they go on.
    """

    def __init__(self, path: Path, *, first_s: float, seconds: float) -> None:
        self._due: dict[str, Moment] = {}
        self._gateway = LoadGateway(path, name="stragglers")
        users = LoadUsers(round(max(seconds, LEAST_S) * PER_S), kind="slow")
        for number, uid in enumerate(users.uids):
            timeout_s = first_s + number / PER_S
            frame = users.single(number, "login", timeout=timeout_s)
            mono, wall_ms = now()
            self._due[uid] = Moment(mono + timeout_s, wall_ms + timeout_s * 1000)
            self._gateway.send(frame)
            if number % AT_ONCE == AT_ONCE - 1:
                self._gateway.ping()
        self._gateway.ping()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *it: object) -> None:
        self._gateway.__exit__(*it)

    def figures(
        self,
        scenario: str,
        began: float,
        *,
        decided_ms: float,
        delivered_ms: float | None,
        meanwhile: str = "",
    ) -> list[Figure]:
        """Judge those who came due from a monotonic moment on until now.

        Args:
            scenario: Whose figures they are.
            began: The moment.
            decided_ms: The floor of the decision.
            delivered_ms: The floor of the delivery.
            meanwhile: What went on, where that is told apart from something else.
        """
        until = max(time.perf_counter(), began + LEAST_S)
        time.sleep(max(0.0, until - time.perf_counter()))
        before = sum(due.mono <= until for due in self._due.values())
        self._gateway.wait_for(before, until=until + PATIENCE_S)
        due = {uid: it for uid, it in self._due.items() if began <= it.mono <= until}
        told = [
            Notices(received, [one for one in records if one.get("uid") in due])
            for received, records in self._gateway.notices
        ]
        verdict = judge(told, due, timeout_s=0.0)
        decided, delivered = p99_ms(verdict.decided_s), p99_ms(verdict.delivered_s)
        found = {
            "decided p99": (decided, "ms", decided_ms),
            "delivered p99": (delivered, "ms", delivered_ms),
            "early": (verdict.early, "", 0.0),
            "missing": (verdict.missing, "", 0.0),
        }
        return [
            Figure(scenario, f"others {name}{meanwhile}", *it)
            for name, it in found.items()
        ]
