"""Runs blocking calls in threads, also on a host that refuses new threads at times.

All disk I/O runs in trio's worker threads. trio ends a thread that was idle for 10 s, so a
new one may be needed at any time. The host may refuse it: limits on processes
(`TasksMax=`, `pids_limit`) count threads, and all processes of a container share one limit.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import structlog
import trio

from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle

T = TypeVar("T")

TRY_AGAIN_S: Final = 1.0

_log = structlog.get_logger("threads")


# Runs the calls in place of trio's threads: the simulation does it in a random order and at
# random times.
RUN_SYNC: Final = trio.lowlevel.RunVar[Any]("runs blocking calls")
_waiting: Final = set[object]()  # all calls of this process that wait for a thread
# One for each run, since each has a clock of its own.
_log_throttle: Final = trio.lowlevel.RunVar[LogThrottle]("logs that the host refuses")


def failure() -> str | None:
    """Why calls wait for a thread now; None if no call does."""
    if not _waiting:
        return None
    return (
        "the host refuses to start a thread (TasksMax, or another limit on processes)"
    )


async def in_thread(
    call: Callable[[], T],
    *,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> T:
    """Run *call* in a thread, as `trio.to_thread.run_sync` does.

    If the host refuses a new thread, tries again every second.
    """
    this, has_begun = object(), False

    def begin() -> T:
        nonlocal has_begun
        has_begun = True
        _waiting.discard(this)
        return call()

    try:
        while True:
            try:
                run_sync = RUN_SYNC.get(trio.to_thread.run_sync)
                done: T = await run_sync(
                    begin, limiter=limiter, abandon_on_cancel=abandon_on_cancel
                )
                return done
            except RuntimeError as error:
                if has_begun:
                    raise
                _waiting.add(this)
                message = (
                    "the host refuses to start a thread: raise its limit on processes; "
                    "disk I/O waits, and is tried again every second"
                )
                _throttle()(_log.error, message, key=message, error=str(error))
            await trio.sleep(TRY_AGAIN_S)
    finally:
        _waiting.discard(this)


def _throttle() -> LogThrottle:
    try:
        return _log_throttle.get()
    except LookupError:
        throttle = LogThrottle(REPEAT_LOG_S, clock=trio.current_time)
        _log_throttle.set(throttle)
        return throttle
