"""The attempts of a timer over real links, on virtual time: how each ends, and is counted."""

from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from liveness.config.settings import TimerSettings
from tests.helpers import disk
from tests.service.rig import Caller, Rig, running

SHORT: Final = TimerSettings(run_timeout_s=5, retries="1,2")
KEYS: Final = ("done", "fails", "final", "unanswered")


def rows(rig: Rig) -> dict[str, tuple[Any, ...]]:
    """State, attempts, message and next attempt of each key, as the table has it."""
    query = "select key, state, attempts, message, next from timers"
    return {
        key: tuple(row)
        for key, *row in disk.rows(rig.store.path.parent / "timers.db", query)
    }


async def attempts(gateway: Caller, count: int) -> dict[tuple[str, int], int]:
    """The next attempts, in any order, each with its seq."""
    records = await gateway.records(count)
    return {(record["key"], record["attempt"]): record["seq"] for record in records}


async def test_an_attempt_ends_by_done_by_fail_or_by_no_answer_and_each_is_counted(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timers=SHORT) as rig:
        gateway = await rig.connect()
        assert (await gateway.hello("g"))["run_timeout"] == SHORT.run_timeout_s
        await gateway.send(
            *(["after", key, 0.1] for key in KEYS), ["after", "far", 600]
        )
        first = await attempts(gateway, 4)
        assert {*first} == {(key, 1) for key in KEYS}
        await gateway.send(
            ["done", "done", "called", {"seq": first["done", 1]}],
            ["done", "done"],  # too late
            ["fail", "fails", "no 1", {"seq": first["fails", 1]}],
            ["fail", "final", "no such order", {"final": True}],
        )
        for number, wait_s in ((2, 1), (3, 2)):
            failed_at = trio.current_time()
            (again,) = (await attempts(gateway, 1)).items()
            assert again[0] == ("fails", number)
            waited_s = trio.current_time() - failed_at
            assert waited_s == pytest.approx(wait_s, abs=0.1)
            await gateway.send(["fail", "fails", f"no {number}", {"seq": again[1]}])
        assert [*await attempts(gateway, 2)] == [("unanswered", 2), ("unanswered", 3)]
        await rig.until(lambda: rig.sidecar.scheduler.states["failed"] == 3)
        await gateway.sync()
        assert (
            rows(rig).items()
            >= {
                "done": ("done", 1, "called", None),
                "fails": ("failed", 3, "no 3", None),
                "final": ("failed", 1, "no such order", None),
                "unanswered": ("failed", 3, "no answer within 5 s", None),
            }.items()
        )
        assert rows(rig)["far"][:3] == ("pending", 0, None)
        now = rig.sidecar.summaries.now()
        counted = {"done": 1, "fail": 4, "unanswered": 3, "late": 1}
        assert now.timer_attempts == counted
        assert {state: n for state, n in now.timers.items() if n} == {
            "pending": 1, "done": 1, "failed": 3,
        }  # fmt: skip
        assert now.timers_loaded == 1
        assert rig.counts.timer_lateness.cumulative()[-1][1] == 8
