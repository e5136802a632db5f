"""A program under test: its own process, started and stopped, and what it costs."""

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from liveness.bench import process
from liveness.bench.load import LoadError
from liveness.errors import LivenessError

# Long after anything that works: it ends a bench that would hang.
START_S: Final = 30.0
STOP_S: Final = 30.0
POLL_S: Final = 0.002
KB: Final = 1024 / 1e6  # /proc counts in units of 1,024 bytes; in MB
LAST_LINES: Final = 10


class ProgramError(LivenessError):
    """The program did not start, or ended by itself.

    Args:
        what: Which of them.
        last_lines: The end of what it said.
    """

    def __init__(self, what: str, *, last_lines: str) -> None:
        super().__init__(what)
        self.last_lines = last_lines


class Program(ABC):
    """One program, started and stopped any number of times on the same files.

    Args:
        folder: For its files and what it says.
        command: How it is called.
        env: What it finds in its environment beside this machine's.
        handed: Descriptors that it is given.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        handed: Collection[int] = (),
    ) -> None:
        self._said = folder / "said"
        self._command = command
        self._env = env
        self._handed = handed
        self._process: subprocess.Popen[bytes] | None = None
        self._running = ExitStack()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it does what it is there for."""

    def start(self) -> float:
        """Start it; return the seconds from exec until it is ready."""
        began = time.perf_counter()
        with self._said.open("ab") as said:
            self._process = self._running.enter_context(
                process.child(
                    *self._command,
                    env=self._env,
                    stdout=said,
                    stderr=said,
                    handed=self._handed,
                )
            )
        while not self.is_ready():
            self.check()
            if time.perf_counter() - began > START_S:
                raise self._error(f"it was not ready within {START_S:g} s")
            time.sleep(POLL_S)
        return time.perf_counter() - began

    def stop(self) -> float:
        """Stop it as planned; return the seconds that took."""
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
        """End it at once, as a crash would; fine if it has ended."""
        self._running.close()

    def check(self) -> None:
        """Raise if it has ended by itself."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            raise self._error(f"it ended with code {code}")

    # --- its cost, from the process table -------------------------------------

    def cpu_s(self) -> float:
        """CPU seconds used so far, user and system, all threads."""
        return process.cpu_s(self.pid)

    def memory_mb(self) -> float:
        """Resident memory now."""
        return self._status("VmRSS")

    def peak_memory_mb(self) -> float:
        """Most resident memory since the start, or since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        """Let the peak be what is resident now (5 in clear_refs, see proc(5))."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    # --- within ---------------------------------------------------------------

    def _status(self, name: str) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        for line in lines:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * KB
        raise LoadError("a process that has ended has no memory")

    def _error(self, what: str) -> ProgramError:
        said = self._said.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return ProgramError(what, last_lines="\n".join(f"    {line}" for line in said))


class Window:
    """What a stretch of time costs: itself, and the CPU of both sides.

    Args:
        program: The other side.
    """

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
        """The server's share of a core."""
        return 100 * self.server_s / self.took_s

    @property
    def load_percent(self) -> float:
        """The load's share of a core."""
        return 100 * self.load_s / self.took_s

    def server_ns(self, count: int) -> float:
        """The server's CPU for each of *count*."""
        return self.server_s / count * 1e9
