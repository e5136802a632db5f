"""Blocking calls on a host that refuses threads, on virtual time."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from liveness.service.common.threads import RUN_SYNC, failure, in_thread

REFUSED = "can't start new thread"


@pytest.mark.parametrize("runs_s", [[60.5], [90, 60.5]])
def test_work_that_gets_no_thread_waits_for_one_in_every_run_of_the_process(
    said: list[Any], runs_s: list[float]
) -> None:
    refuses, done = False, list[float]()

    async def run_sync(call: Callable[[], Any], **_: object) -> Any:
        if refuses:
            raise RuntimeError(REFUSED)
        return call()

    async def work() -> None:
        await in_thread(lambda: done.append(trio.current_time()))

    async def run(refuse_s: float) -> None:
        nonlocal refuses
        refuses = True
        RUN_SYNC.set(run_sync)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await trio.sleep(refuse_s)
            assert "the host refuses to start a thread" in (failure() or "")
            refuses = False

    for refuse_s in runs_s:
        done.clear()
        said.clear()
        trio.run(run, refuse_s, clock=MockClock(autojump_threshold=0))
    assert (done, failure()) == ([61], None)
    assert [line["error"] for line in said] == [REFUSED] * 2  # one a minute
    assert said[1]["suppressed"] == 59


async def test_an_error_of_the_work_itself_is_raised() -> None:
    def fails() -> None:
        raise RuntimeError("its own")

    with pytest.raises(RuntimeError, match="its own"):
        await in_thread(fails)
    assert failure() is None
