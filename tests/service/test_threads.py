"""A host that refuses threads: a real limit of processes, in a process of its own."""

import subprocess
import sys
from textwrap import dedent
from typing import Final

# Root is not limited, and of whom else the tests may run as there are other processes.
_UID: Final = 64_117

_PROGRAM: Final = f"""
    import os, resource, sys
    from threading import Thread

    import structlog
    import trio
    from trio.testing import MockClock

    from liveness.service.common.threads import failure, in_thread

    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer(key_order=["event"])],
        logger_factory=structlog.WriteLoggerFactory(sys.stdout),
    )
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)

    def allow(threads):
        resource.setrlimit(resource.RLIMIT_NPROC, (threads, most))

    async def work(number, limiter):
        print("done", number, await in_thread(lambda: number * 2, limiter=limiter))

    async def main():
        limiter = trio.CapacityLimiter(1)
        print(failure())
        allow(1)
        with trio.move_on_after(30.5):
            await work(0, limiter)
        print(failure())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, 1, limiter)
            await trio.sleep(59.9)
            print(failure(), limiter.borrowed_tokens)
            allow(most)
        print(failure())
        allow(1)
        try:
            await in_thread(lambda: Thread(target=print).start())
        except RuntimeError as error:
            print("raised", error)

    if os.getuid() == 0:
        os.setuid({_UID})
    trio.run(main, clock=MockClock(autojump_threshold=0))
"""


def test_work_that_gets_no_thread_waits_for_one() -> None:
    """It is said once a minute, and an error of the work itself is raised."""
    command = [sys.executable, "-c", dedent(_PROGRAM)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300)
    why = "the host refuses to start a thread (TasksMax, or another limit on processes)"
    said = (
        "event='the host refuses to start a thread: raise its limit on processes; disk "
        "I/O waits, and is tried again every second' error=\"can't start new thread\""
    )
    assert done.stdout.splitlines() == [
        "None",
        said,
        "None",
        f"{said} suppressed=60",
        f"{why} 0",
        "done 1 2",
        "None",
        "raised can't start new thread",
    ]
    assert done.returncode == 0
