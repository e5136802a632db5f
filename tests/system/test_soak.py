"""An hour of everything at once takes no more and more memory, files or threads.

Each round users log in, speak, move, log out and fall silent, timers are asked for,
cancelled and answered, watchers come and go, and gateways connect anew. The log is cut
back by its retention all the while.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from time import perf_counter
from typing import Any, Final, NamedTuple

import pytest

from tests.helpers.wire import Record
from tests.system.client import Client
from tests.system.conftest import Say, Start
from tests.system.sidecar import Sidecar, eventually

SOAK_S: Final = 3_600
SHORT_S: Final = 6
ROUND_S: Final = 0.1
SAMPLES: Final = 40

USERS: Final = 40  # that log in each round
TIMERS: Final = 10
TIMEOUT_S: Final = 1.0
AGAIN: Final = 7  # rounds after which a gateway connects anew
FRESH: Final = 5  # and of those the one that says it is fresh
# Cut back from some minutes on.
SETTINGS: Final[dict[str, Any]] = {
    "state_retention_bytes": 16 << 20,
    "timers_max_live": 4_000,  # and half as many that have ended
    "limits_tail": 1_000,
}


class Sample(NamedTuple):
    """The resources that the sidecar uses."""

    rss: int
    files: int
    threads: int
    log_wal: int
    timers_wal: int


# Of the last quarter above the second. A record that left 20 bytes behind, or a watcher in
# a hundred that left its socket, exceeds it after an hour.
MARGIN: Final = Sample(8 << 20, 6, 3, 4 << 20, 4 << 20)


class Load:
    """Two gateways, and those who watch them."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._first, self._second = sidecar.gateway("first"), sidecar.gateway("second")

    def round(self, number: int) -> None:
        """One round of everything."""
        part = USERS // 4
        users = [f"{number}-{n}" for n in range(USERS)]
        conns = [number * USERS + n for n in range(USERS)]
        options: dict[str, Any] = {"timeout": TIMEOUT_S}
        leave, move, speak = users[:part], users[part : 2 * part], users[2 * part :]
        self._first.send("login", users, {"conn": conns, **options})
        self._first.send("logout", leave, {"conn": conns[:part]})
        self._second.send("login", move, options)
        self._second.send("message", move)
        for uid, conn in zip(speak, conns[2 * part :], strict=True):
            self._first.send("keepalive", uid, {"conn": conn})
        self._second.send("logout", move[::2])
        for n in range(TIMERS):
            self._first.send("after", f"{number}-{n}", 0.1, {"payload": "x" * 100})
        self._first.send("cancel", {"key": f"{number}-0"})
        with Client(self._sidecar.socket) as watcher:
            watcher.hello("w", role="watcher", scope="all", ack=False)
            watcher.listed()
            watcher.sync()
        if number % AGAIN == 0:
            self._second.close()
            fresh = number % (AGAIN * FRESH) == 0
            self._second = self._sidecar.gateway("second", fresh=fresh)
        for link in (self._first, self._second):
            link.sync()
            self._answer(link)

    def wait(self, until: float) -> None:
        """Answers timers until a monotonic moment."""
        while (left_s := until - perf_counter()) > 0:
            with suppress(TimeoutError):
                self._first.receive(left_s)
            self._answer(self._first)

    def is_over(self) -> bool:
        """Answers timers; whether none is left, and nobody is online any more."""
        self.wait(perf_counter() + ROUND_S)
        metric = self._sidecar.metric
        timers = [metric("liveness_timers", state=it) for it in ("pending", "fired")]
        return not any([*timers, metric("liveness_users_online")])

    def _answer(self, link: Client) -> None:
        records, link.records = link.records, list[Record]()
        for record in records:
            if record["kind"] == "timer":
                link.send("done", record["key"], None, {"seq": record["seq"]})
        if records:
            link.send("ack", records[-1]["seq"])


def samples(sidecar: Sidecar, seconds: float) -> Iterator[Sample]:
    """Runs the load for so long."""
    load, began, numbers = Load(sidecar), perf_counter(), count()
    for n in range(1, SAMPLES + 1):
        while perf_counter() < began + n * seconds / SAMPLES:
            at = perf_counter()
            load.round(next(numbers))
            load.wait(at + ROUND_S)
        yield Sample(
            sidecar.rss_bytes,
            len(sidecar.open_files),
            sidecar.threads,
            sidecar.database.with_name("liveness.db-wal").stat().st_size,
            sidecar.timers.with_name("timers.db-wal").stat().st_size,
        )
    eventually(load.is_over)


def worst(samples: list[Sample]) -> Sample:
    return Sample(*map(max, zip(*samples, strict=True)))


@pytest.mark.parametrize(
    "seconds",
    [
        SHORT_S,
        pytest.param(
            SOAK_S, marks=[pytest.mark.slow, pytest.mark.timeout(SOAK_S + 600)]
        ),
    ],
)
def test_memory_descriptors_threads_and_journals_stay_as_they_are(
    start: Start, say: Say, seconds: float
) -> None:
    sidecar = start(**SETTINGS)
    taken = [*samples(sidecar, seconds)]
    for row in (Sample._fields, *taken):
        say("  ".join(f"{it:>9}" for it in row))
    say(f"{sidecar.metric('liveness_log_seq'):.0f} records")
    quarter = SAMPLES // 4
    second, last = worst(taken[quarter : 2 * quarter]), worst(taken[-quarter:])
    grown = Sample(*(b - a for a, b in zip(second, last, strict=True)))
    assert all(more <= most for more, most in zip(grown, MARGIN, strict=True)), grown
    assert sidecar.metric("liveness_early_offline_total") == 0
    assert sidecar.metric("liveness_offline_total", reason="silence") > 0
    ended = sidecar.timer_rows("select distinct state from timers")
    assert {state for (state,) in ended} == {"done", "cancelled"}
