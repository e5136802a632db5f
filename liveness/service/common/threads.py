"""Work in threads, on a host that has none to spare at times.

Whatever waits for a disk is done in a thread. Idle ones are kept for 10 s, so that at any
time a new one may be needed, which the host may refuse: a limit of processes counts threads
(`TasksMax=`, `pids_limit`), and a container's is shared by all that runs in it.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import structlog
import trio

from liveness.service.common.logs import SAY_AGAIN_S, Every

T = TypeVar("T")

TRY_AGAIN_S: Final = 1.0

_log = structlog.get_logger("threads")


class _Waiting(set[object]):
    """The calls that wait for a thread: of the whole process, as the limit is."""

    def __init__(self) -> None:
        self.every = Every(SAY_AGAIN_S, clock=trio.current_time)


_of_this_run: Final = trio.lowlevel.RunVar[_Waiting]("waiting for a thread")


def _waiting() -> _Waiting:
    try:
        return _of_this_run.get()
    except LookupError:
        _of_this_run.set(waiting := _Waiting())
        return waiting


def failure() -> str | None:
    """Why work waits for a thread at present, in words; None if none does."""
    if not _waiting():
        return None
    return "the host lets no thread begin (TasksMax, or another limit of processes)"


async def in_thread(
    call: Callable[[], T],
    *,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> T:
    """What *call* returns in a thread, as `trio.to_thread.run_sync` has it.

    Should there be no thread for it, it is tried again each second.
    """
    waiting, this, has_begun = _waiting(), object(), False

    def begin() -> T:
        nonlocal has_begun
        has_begun = True
        waiting.discard(this)
        return call()

    try:
        while True:
            try:
                return await trio.to_thread.run_sync(
                    begin, limiter=limiter, abandon_on_cancel=abandon_on_cancel
                )
            except RuntimeError as error:
                if has_begun:
                    raise
                waiting.add(this)
                say = "the host lets no thread begin: raise its limit of processes; "
                say += "what needs one waits, and is tried again every second"
                waiting.every(_log.error, say, key=say, error=str(error))
            await trio.sleep(TRY_AGAIN_S)
    finally:
        waiting.discard(this)
