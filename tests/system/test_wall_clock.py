"""A wall clock that is stepped by a day: only stamps shift, also over a restart."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter, time_ns
from typing import Final

import pytest

from tests.helpers.wire import Record
from tests.system.conftest import QUICK_FLUSH_S, Start
from tests.system.sidecar import Sidecar

DAY_S: Final = 86_400
# Far more than a test takes, far less than a step.
TOLERANCE_S: Final = 3_600
# For a timeout of 5 s, also on a machine that stands still now and then.
PATIENCE_S: Final = 60
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
def test_a_step_changes_stamps_and_neither_silence_nor_timers(
    stepped: Make, step_s: int
) -> None:
    clock = stepped(2, flush_s=QUICK_FLUSH_S)
    sidecar = clock.sidecar.start()
    gateway = sidecar.gateway("g", kinds=[])
    watcher = sidecar.watcher(kinds=["offline"])
    gateway.send("login", ["quiet", "talks"])
    gateway.send("after", "soon", 1.5)
    gateway.apply("after", "tomorrow", DAY_S - 60)
    asked = perf_counter()
    clock.step(step_s)
    gateway.send("message", "talks")
    gateway.send("after", "new", 1.5)

    def heard(uid: str, last: str) -> list[Record]:
        wanted = {"uid": uid, "last": last}
        return [it for it in watcher.records if it.items() >= wanted.items()]

    watcher.until(
        lambda _: heard("quiet", "login") and heard("talks", "message"), PATIENCE_S
    )
    took = perf_counter() - asked
    ((quiet,), (talks,)) = heard("quiet", "login"), heard("talks", "message")
    assert 2 <= talks["silence"] <= took
    assert is_stamped(talks["at"], step_s)
    for end in (quiet, talks):
        assert end["reason"] == "silence"
        assert 2 <= end["silence"] < TOLERANCE_S
        # Both stamps are by one clock.
        assert abs((end["at"] - end["seen"]) / 1000 - end["silence"]) < 0.01
    fired = gateway.take(2)
    # A step that made these early would fire tomorrow's as well, and before them.
    assert [timer["key"] for timer in fired] == ["soon", "new"]
    assert is_stamped(fired[1]["at"], step_s)
    for timer in fired:
        assert 0 <= timer["at"] - timer["due"] < TOLERANCE_S * 1000
    sidecar.metric_until(lambda left: left == 1, "liveness_timers", state="pending")
    assert sidecar.metric("liveness_early_offline_total") == 0
    assert sidecar.get("/readyz")[0] == 200


@STEPS
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_step_over_a_restart_changes_stamps_and_neither_silence_nor_timers(
    stepped: Make, step_s: int, how: str
) -> None:
    clock = stepped(5, flush_s=QUICK_FLUSH_S)
    sidecar = clock.sidecar.start()
    gateway = sidecar.gateway("g")
    sent = perf_counter()
    gateway.send("login", "u", {"conn": 1})
    gateway.send("after", "in an hour", 3_600)
    gateway.apply("after", "soon", 5)
    if how == "stop":
        sidecar.stop()
    else:
        sidecar.kill()
    clock.step(step_s)
    # If the user's clock were reset, it would run for a minute.
    sidecar.start(timeout_s=60 if how == "stop" else 5)
    clocks = 1 if how == "stop" else 0
    assert sidecar.line("restored").items() >= {"users": 1, "clocks": clocks}.items()
    gateway, watcher = sidecar.gateway("g", kinds=[]), sidecar.watcher(after=0)
    (timer,) = gateway.take(1)
    assert timer["key"] == "soon"
    assert perf_counter() - sent >= 5
    assert is_stamped(timer["due"], step_s)
    # Nothing is past the retention, though that is the first thing it looks at.
    watcher.until(
        lambda records: any(it["kind"] == "offline" for it in records), PATIENCE_S
    )
    online, *_, last = (it for it in watcher.records if it["kind"] != "timer")
    assert perf_counter() - sent >= 5
    assert (online["seq"], online["kind"]) == (1, "online")
    assert is_stamped(online["at"], 0)
    # What is known of the user is kept too.
    assert (last["uid"], last["reason"], last["conn"]) == ("u", "silence", 1)
    assert last.get("last") == ("login" if how == "stop" else None)
    assert is_stamped(last["at"], step_s)
    assert sidecar.metric("liveness_early_offline_total") == 0
    assert sidecar.rows("select count(*) from cursors") == [(1,)]
