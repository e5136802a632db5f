"""The demo's own sidecar and gateway: other processes, that can be cut and stopped."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from liveness.compiled import environment
from liveness.config.settings import Config
from liveness.config.sources import load
from liveness.demo.gateway import HOST
from liveness.errors import LivenessError

START_S: Final = 10.0  # it takes less than one, unless the machine is very busy
END_S: Final = 10.0  # a sidecar that is asked to stop does so within five
LOOK_S: Final = 0.02
LAST_LINES: Final = 10
LEASH: Final = Path(__file__).with_name("leash.py")
GATEWAY: Final = ("-m", "liveness.demo.gateway")
SIDECAR: Final = ("-m", "liveness", "serve")
NAME: Final = "gw-1"
# What was under way when the gateway was killed comes again before the demo is over.
SETTINGS: Final = f"""
[timers]
run_timeout_s = 2
retries = "{",".join(["1"] * 15)}"
"""


class ChildLost(LivenessError):
    """The sidecar or the gateway did not start, or has ended by itself."""


class Child:
    """One process, from its first start on; killed when `run` is cancelled.

    Args:
        name: For a person.
        command: For this Python: its arguments.
        log: What it prints goes there.
        ready: What it prints when it is ready.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, ready: re.Pattern[str]
    ) -> None:
        self.name = name
        self.state = "starting"
        self.is_lost = False
        self.said = ""  # the match of *ready*: its group, if it has one
        self.up_at = 0.0
        self._command = command
        self._log = log
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        self._is_meant = False  # its end
        self._up = trio.Event()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Runs it until cancelled, and anew whenever `restart` has ended it.

        Started once it is ready for the first time.

        Raises:
            ChildLost: It did not start, or ended by itself. Its log says why.
        """
        is_first = True
        while True:
            with self._launched() as process:
                await self._until_ready(process)
                self.state, self.up_at = "up", trio.current_time()
                self._up.set()
                if is_first:
                    task_status.started()
                    is_first = False
                code = await _ended(process)
            if not self._is_meant:
                raise self._lost(f"has ended, exit code {code}")
            self._is_meant = False

    async def restart(self, number: int) -> None:
        """Ends it by a signal, and returns when it is ready again.

        Raises:
            ChildLost: It does not end.
        """
        assert self._process is not None
        self.state, self._is_meant, self._up = "restarting", True, trio.Event()
        process = self._process
        process.send_signal(number)
        with trio.move_on_after(END_S):
            await _ended(process)
        if process.poll() is None:
            raise self._lost(f"did not end within {END_S:g} s")
        await self._up.wait()

    def stop(self) -> None:
        """Stops it, as a frozen machine would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.state = "stopped"

    def go_on(self) -> None:
        """Ends the `stop`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.state = "up"

    def last_lines(self) -> str:
        """The end of what it printed, for a person."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-LAST_LINES:])

    @contextmanager
    def _launched(self) -> Iterator[subprocess.Popen[bytes]]:
        """Starts it from this very thread, which its leash is bound to."""
        leash = [sys.executable, "-I", "-S", str(LEASH), str(os.getpid())]
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [*leash, sys.executable, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                process_group=0,  # Ctrl-C is for us: we end it when it is not used
            )
        self._process = process
        try:
            yield process
        finally:
            process.kill()  # whether it is stopped or not; its state is temporary
            process.wait()

    async def _until_ready(self, process: subprocess.Popen[bytes]) -> None:
        with trio.move_on_after(START_S):
            while process.poll() is None:
                if found := self._ready.search(self._log.read_text(errors="replace")):
                    self.said = found[1]
                    return
                await trio.sleep(LOOK_S)
            raise self._lost(f"did not start, exit code {process.returncode}")
        raise self._lost(f"was not ready within {START_S:g} s")

    def _lost(self, what: str) -> ChildLost:
        self.is_lost = True
        return ChildLost(f"the {self.name} {what}")


def sidecar_in(folder: Path, *, timeout_s: float) -> Child:
    """A sidecar with its state in *folder*; what it says is its HTTP address."""
    options = {"--config": _file(folder), **_options(folder, timeout_s)}
    return Child(
        "sidecar",
        [*SIDECAR, *_flags(options)],
        log=folder / "sidecar.log",
        ready=re.compile(r'"http": "([^"]+)".*"event": "ready"'),
    )


def settings_in(folder: Path, *, timeout_s: float) -> Config:
    """The settings of the sidecar in *folder*.

    Raises:
        ConfigError: It cannot be had there.
    """
    options = _options(folder, timeout_s)
    return load(options, file=_file(folder), environ={}).config


def gateway_in(folder: Path, *, port: int, most: int) -> Child:
    """A gateway of the sidecar in *folder*; what it says is where it listens."""
    options = {
        "--sidecar": socket_in(folder),
        "--name": NAME,
        "--port": port,
        "--most": most,
    }
    return Child(
        "gateway",
        [*GATEWAY, *_flags(options)],
        log=folder / "gateway.log",
        ready=re.compile(rf"listens on ({re.escape(HOST)}:\d+)"),
    )


def socket_in(folder: Path) -> Path:
    """The socket of the sidecar that runs in *folder*."""
    return folder / "gateway.sock"


def _options(folder: Path, timeout_s: float) -> dict[str, str]:
    return {
        "--socket": str(socket_in(folder)),
        "--state": str(folder / "state"),
        "--http": "127.0.0.1:0",
        "--timeout": str(timeout_s),
    }


def _file(folder: Path) -> Path:
    """A file of settings, or that of this machine's own sidecar would be read."""
    settings = folder / "liveness.toml"
    settings.write_text(SETTINGS)
    return settings


def _flags(options: Mapping[str, object]) -> list[str]:
    return [str(word) for option in options.items() for word in option]


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """Waits for its end, which a descriptor of it tells; its exit code."""
    descriptor = os.pidfd_open(process.pid)
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)
    return process.wait()
