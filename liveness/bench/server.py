"""The server under test: its own process, in a folder of its own, gone at the end."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from liveness.bench import process
from liveness.bench.load import Gateway, LoadError
from liveness.commands import CommandError
from liveness.commands.status import readiness
from liveness.errors import LivenessError

# Long after anything that works: it ends a bench that would hang.
START_S: Final = 30.0
STOP_S: Final = 30.0
POLL_S: Final = 0.002
KB: Final = 1024 / 1e6  # /proc counts in units of 1,024 bytes; in MB
LAST_LINES: Final = 10


class ServerError(LivenessError):
    """The server did not start, or ended by itself.

    Args:
        what: Which of them.
        last_lines: The end of what it said.
    """

    def __init__(self, what: str, *, last_lines: str) -> None:
        super().__init__(what)
        self.last_lines = last_lines


class Server:
    """One sidecar, started and stopped any number of times on the same state.

    Args:
        folder: For its socket, its state and what it says.
        timeout_s: Its silence timeout.
    """

    def __init__(self, folder: Path, *, timeout_s: float) -> None:
        self.socket = folder / "gateway.sock"
        self._said = folder / "stderr"
        settings = folder / "settings.toml"
        settings.touch()  # none but the defaults, whatever this machine has set
        self._command = ["liveness", "serve", "--config", str(settings)]
        self._command += ["--socket", str(self.socket), "--http", "127.0.0.1:0"]
        self._command += ["--state", str(folder / "state"), "--timeout", str(timeout_s)]
        self._process: subprocess.Popen[bytes] | None = None
        self._running = ExitStack()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start it; return the seconds from exec until hello and `/readyz` succeed."""
        began = time.perf_counter()
        with self._said.open("ab") as said:
            self._process = self._running.enter_context(
                process.child(*self._command, stderr=said)
            )
        while not self._is_ready():
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

    def _is_ready(self) -> bool:
        try:
            with Gateway(self.socket, role="watcher", name="ready?", ack=False):
                pass
            return readiness(self.socket)[0]
        except (FileNotFoundError, ConnectionRefusedError, CommandError):
            return False

    def _error(self, what: str) -> ServerError:
        said = self._said.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return ServerError(what, last_lines="\n".join(f"    {line}" for line in said))


@contextmanager
def server(folder: Path | None, *, timeout_s: float) -> Iterator[Server]:
    """Give a server, not started; its process and files are gone afterwards.

    Args:
        folder: Where its own folder is made; None: the usual temporary one.
        timeout_s: Its silence timeout.
    Raises:
        ServerError: It has ended by itself, whatever else went wrong for that.
    """
    with tempfile.TemporaryDirectory(prefix="liveness-bench-", dir=folder) as own:
        it = Server(Path(own), timeout_s=timeout_s)
        try:
            yield it
        except (LoadError, OSError):
            it.check()
            raise
        finally:
            it.kill()
