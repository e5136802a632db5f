"""A program under test in a process of its own: started, stopped, its CPU and memory.

However the bench ends, it ends the processes that it started.
"""

import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Final, NoReturn, Self, TypeAlias

from liveness.compiled import environment
from liveness.errors import LivenessError
from liveness.lab.common.load import LoadError

SignalHandler: TypeAlias = Callable[[int, FrameType | None], object]

# Runs a module of this environment.
PYTHON: Final = (sys.executable, "-m")
INTERRUPTING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Far longer than any start or stop that works, also with ten million users: without it the
# bench could hang.
START_S: Final = 180.0
STOP_S: Final = 180.0
POLL_S: Final = 0.002
KIB_IN_MB: Final = 1024 / 1e6  # /proc counts in KiB
LAST_LINES: Final = 10


class ProgramError(LivenessError):
    """The program did not start, or ended by itself; with the end of its output."""

    def __init__(self, message: str, *, last_lines: str) -> None:
        super().__init__(message)
        self.last_lines = last_lines


@dataclass(eq=False)
class Program(ABC):
    """A program that can be started and stopped several times on the same files.

    Leaving it as a context kills the process. If a `LoadError` or `OSError` leaves the
    block because the process had ended by itself, a `ProgramError` is raised instead.
    """

    folder: Path
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)  # added to its environment
    fds: Collection[int] = ()  # that it inherits

    def __post_init__(self) -> None:
        self._output = self.folder / "output"
        self._process: subprocess.Popen[bytes] | None = None
        self._running = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None and issubclass(kind, LoadError | OSError):
                self.check()
        finally:
            self.kill()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it serves requests."""

    def start(self) -> float:
        """Start it; return the seconds from exec until it is ready."""
        began = time.perf_counter()
        with self._output.open("ab") as output:
            self._process = self._running.enter_context(
                child(
                    *self.command,
                    env=self.env,
                    stdout=output,
                    stderr=output,
                    fds=self.fds,
                )
            )
        while not self.is_ready():
            self.check()
            if time.perf_counter() - began > START_S:
                raise self._error(f"it was not ready within {START_S:g} s")
            time.sleep(POLL_S)
        return time.perf_counter() - began

    def stop(self) -> float:
        """Stop it with SIGTERM; return the seconds that took."""
        assert self._process is not None
        began = time.perf_counter()
        self._process.terminate()
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise self._error(f"it had not stopped within {STOP_S:g} s") from None
        if code:
            raise self._error(f"it ended with code {code} on SIGTERM")
        return time.perf_counter() - began

    def kill(self) -> None:
        """Kill it with SIGKILL, as in a crash; does nothing if it has ended."""
        self._running.close()

    def check(self) -> None:
        """Raise if it has ended by itself."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            raise self._error(f"it ended with code {code}")

    def cpu_s(self) -> float:
        """CPU seconds used so far: user and system, all threads.

        To the nanosecond, while /proc counts in hundredths: this is the clock of
        clock_getcpuclockid(3).
        """
        return time.clock_gettime(~self.pid << 3 | 2)

    def memory_mb(self) -> float:
        """Resident memory now."""
        return self._status_mb("VmRSS")

    def peak_memory_mb(self) -> float:
        """Most resident memory since the start, or since `reset_peak`."""
        return self._status_mb("VmHWM")

    def reset_peak(self) -> None:
        """Reset the peak to what is resident now (5 in clear_refs, see proc(5))."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="utf-8")

    def _status_mb(self, name: str) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        lines = status.splitlines()
        for line in lines:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * KIB_IN_MB
        raise LoadError("a process that has ended has no memory")

    def _error(self, message: str) -> ProgramError:
        text = self._output.read_text(errors="replace", encoding="utf-8")
        lines = text.splitlines()[-LAST_LINES:]
        return ProgramError(
            message, last_lines="\n".join(f"    {line}" for line in lines)
        )


class Window:
    """Measures a block: its duration, and the CPU time of the program and of the load."""

    took_s = server_s = load_s = 0.0

    def __init__(self, program: Program) -> None:
        self._program = program

    def __enter__(self) -> Self:
        self._began = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        spent = [b - a for a, b in zip(self._began, self._read(), strict=True)]
        self.took_s, self.server_s, self.load_s = spent

    def _read(self) -> tuple[float, float, float]:
        return time.perf_counter(), self._program.cpu_s(), time.process_time()

    @property
    def server_percent(self) -> float:
        """The program's CPU time, as a share of one core."""
        return 100 * self.server_s / self.took_s

    @property
    def load_percent(self) -> float:
        """The load's CPU time, as a share of one core."""
        return 100 * self.load_s / self.took_s

    def server_ns(self, count: int) -> float:
        """The program's CPU time for each of *count* events."""
        return self.server_s / count * 1e9


# --- processes and signals ------------------------------------------------------


@contextmanager
def child(
    *command: str,
    env: Mapping[str, str],
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    fds: Collection[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command in a child process, which is killed when the block ends.

    It does not get the settings of this machine but only *env*, no descriptors of ours
    but *fds*, and not Ctrl-C, which is for the bench.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with _signals_deferred():
            process = subprocess.Popen(
                command,
                env={**environment(), **env},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=fds,
                bufsize=0,  # so that select() sees all that can be read
                process_group=0,
            )
        yield process
    finally:
        if process is not None:
            with _signals_deferred():
                process.kill()
                process.wait()


@contextmanager
def temporary_folder(parent: Path | None) -> Iterator[Path]:
    """A new folder in *parent* (None: the temporary folder), removed at the end."""
    with tempfile.TemporaryDirectory(prefix="liveness-bench-", dir=parent) as folder:
        yield Path(folder)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the block as Ctrl-C does, so that it cleans up.

    The exit code is then the one that a shell reports: 1 would mean a missed floor.
    """

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    with _handled(
        [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN], end
    ):
        yield


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Puts signals off until the end of the block.

    An exception between the fork and the assignment, or during the kill, would leave the
    process running.
    """
    caught: list[int] = []
    try:
        with _handled(INTERRUPTING, lambda number, _frame: caught.append(number)):
            yield
    finally:
        for number in caught[:1]:
            signal.raise_signal(number)


@contextmanager
def _handled(numbers: Iterable[int], handler: SignalHandler) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
