"""The processes that the bench starts: whatever ends the bench ends them too."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Final, NoReturn, TypeAlias

from liveness.compiled import environment

Handler: TypeAlias = Callable[[int, FrameType | None], object]

# What runs a module of this environment.
PYTHON: Final = (sys.executable, "-m")
INTERRUPTING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def child(
    *command: str,
    env: Mapping[str, str],
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    handed: Collection[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command in a process of its own, which is killed at the end if need be.

    It gets none of this machine's settings but *env*, no descriptor of ours but those
    *handed* over, and no Ctrl-C: that is for us.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with _uninterrupted():
            process = subprocess.Popen(
                command,
                env={**environment(), **env},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=handed,
                bufsize=0,  # whoever selects sees all that can be read
                process_group=0,
            )
        yield process
    finally:
        if process is not None:
            with _uninterrupted():
                process.kill()
                process.wait()


@contextmanager
def folder_of_its_own(folder: Path | None) -> Iterator[Path]:
    """A new folder in *folder*, or in the usual temporary one; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="liveness-bench-", dir=folder) as own:
        yield Path(own)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the block as Ctrl-C does, so that all is put away.

    The exit code is then the one a shell reports, as 1 is taken: by a missed floor.
    """

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    wanted = (signal.SIGTERM, signal.SIGHUP)
    with _handled(
        [one for one in wanted if signal.getsignal(one) is not signal.SIG_IGN], end
    ):
        yield


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used so far, user and system, all its threads.

    To the nanosecond, where /proc counts in hundredths: this is the clock that
    clock_getcpuclockid(3) names.
    """
    return time.clock_gettime(~pid << 3 | 2)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Puts signals off until the end of the block.

    An exception after the fork and before the process is noted, or amid its end, would
    leave it behind.
    """
    caught: list[int] = []
    try:
        with _handled(INTERRUPTING, lambda number, _frame: caught.append(number)):
            yield
    finally:
        for number in caught[:1]:
            signal.raise_signal(number)


@contextmanager
def _handled(numbers: Iterable[int], handler: Handler) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
