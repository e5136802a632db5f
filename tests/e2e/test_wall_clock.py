"""A wall clock that is stepped by a day: stamps shift, and nothing else does."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter, time_ns
from typing import Final

import pytest

from tests.e2e.client import Record
from tests.e2e.conftest import QUICK_FLUSH_S, Start
from tests.e2e.sidecar import Sidecar

DAY_S: Final = 86_400
# Far more than a test takes, far less than a step.
TOLERANCE_S: Final = 3_600
STEPS: Final = pytest.mark.parametrize("step_s", [DAY_S, -DAY_S], ids=["on", "back"])


class Stepped:
    """A sidecar whose wall clock, and only that, can be stepped while it runs."""

    def __init__(self, sidecar: Sidecar, library: Path) -> None:
        self.sidecar = sidecar
        self._file = sidecar.folder / "clock"
        self.step(0)
        sidecar.under = [
            "env",
            f"LD_PRELOAD={library}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "FAKETIME_NO_CACHE=1",
        ]

    def step(self, seconds: int) -> None:
        """Sets it so far from the right time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}")
        new.replace(self._file)


Make = Callable[..., Stepped]


@pytest.fixture
def stepped(make: Start) -> Make:
    libraries = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]
    if not libraries:
        pytest.skip("libfaketime is missing: apt install libfaketime")
    return lambda *args, **settings: Stepped(make(*args, **settings), libraries[0])


def is_stamped(at_ms: int, step_s: int) -> bool:
    return abs(at_ms / 1000 - time_ns() / 1e9 - step_s) < TOLERANCE_S


@STEPS
def test_a_step_makes_nobody_offline_and_keeps_nobody_online(
    stepped: Make, step_s: int
) -> None:
    clock = stepped(2, flush_s=QUICK_FLUSH_S)
    sidecar = clock.sidecar.start()
    gateway, watcher = sidecar.gateway("g"), sidecar.watcher()
    gateway.send("login", ["quiet", "talks"])
    gateway.settle()
    assert all(is_stamped(one["at"], 0) for one in watcher.take(2))
    clock.step(step_s)
    sent = perf_counter()
    gateway.send("message", "talks")

    def ends(uid: str, last: str) -> list[Record]:
        return [
            one
            for one in watcher.records
            if (one["uid"], one.get("last")) == (uid, last)
        ]

    watcher.until(lambda _: ends("quiet", "login") and ends("talks", "message"))
    took = perf_counter() - sent
    ((quiet,), (talks,)) = ends("quiet", "login"), ends("talks", "message")
    assert took >= 2
    assert 2 <= talks["silence"] <= took
    assert is_stamped(talks["at"], step_s)
    for one in (quiet, talks):
        assert one["reason"] == "silence"
        assert 2 <= one["silence"] < TOLERANCE_S
        # Stamps are by one clock: they are as far apart as the silence was long.
        assert abs((one["at"] - one["seen"]) / 1000 - one["silence"]) < 0.01
    watcher.records = []
    gateway.send("login", "later")
    assert is_stamped(watcher.take(1)[0]["at"], step_s)
    assert sidecar.metric("liveness_early_offline_total") == 0
    assert sidecar.get("/readyz")[0] == 200


@STEPS
def test_a_step_fires_no_timer_early_and_none_late(stepped: Make, step_s: int) -> None:
    clock = stepped()
    sidecar = clock.sidecar.start()
    gateway = sidecar.gateway("g")
    asked = perf_counter()
    gateway.send("after", "soon", 1.5)
    gateway.send("after", "tomorrow", DAY_S - 60)
    gateway.settle()
    clock.step(step_s)
    gateway.send("after", "new", 1.5)
    # A step that made it early would bring tomorrow's as well, and before these.
    fired = gateway.take(2)
    assert perf_counter() - asked >= 1.5
    assert [one["key"] for one in fired] == ["soon", "new"]
    assert is_stamped(fired[1]["at"], step_s)
    for one in fired:
        assert 0 <= one["at"] - one["due"] < TOLERANCE_S * 1000
    sidecar.metric_until(lambda left: left == 1, "liveness_timers", state="pending")


@STEPS
def test_over_a_restart_a_timer_is_due_by_the_wall_clock(
    stepped: Make, step_s: int
) -> None:
    clock = stepped()
    sidecar = clock.sidecar.start()
    gateway = sidecar.gateway("g")
    gateway.send("after", "in an hour", 3_600)
    gateway.settle()
    sidecar.kill()
    clock.step(step_s)
    sidecar.start()
    gateway = sidecar.gateway("g")
    gateway.send("after", "now", 0.1)
    expected = ["in an hour", "now"] if step_s > 0 else ["now"]
    assert [one["key"] for one in gateway.take(len(expected))] == expected


@STEPS
def test_a_step_over_a_stop_resets_nobodys_clock_and_deletes_nothing(
    stepped: Make, step_s: int
) -> None:
    clock = stepped(5, flush_s=QUICK_FLUSH_S)
    sidecar = clock.sidecar.start()
    gateway = sidecar.gateway("g")
    sent = perf_counter()
    gateway.send("login", "u", {"conn": 1})
    gateway.settle()
    sidecar.stop()
    clock.step(step_s)
    # Were the clock reset, it would run for a minute.
    sidecar.start(timeout_s=60)
    assert sidecar.line("restored").items() >= {"users": 1, "clocks": 1}.items()
    sidecar.gateway("g")
    # Nothing is past the retention, which is looked at first of all.
    online, end = sidecar.watcher(after=0).take(2)
    assert perf_counter() - sent >= 5
    assert (online["seq"], online["kind"]) == (1, "online")
    assert is_stamped(online["at"], 0)
    assert end.items() >= {"seq": 2, "reason": "silence", "conn": 1}.items()
    assert is_stamped(end["at"], step_s)
    assert sidecar.metric("liveness_early_offline_total") == 0
    assert sidecar.rows("select count(*) from cursors") == [(1,)]
