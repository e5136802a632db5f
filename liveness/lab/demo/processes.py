"""The demo's child processes, which can be killed, stopped and restarted."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from liveness.compiled import environment
from liveness.config.settings import Config
from liveness.config.sources import load
from liveness.console.gateway_program import filled
from liveness.errors import LivenessError
from liveness.lab.demo.gateway import HOST
from liveness.lab.demo.reminders import RETRY_S, RUN_TIMEOUT_S

START_S: Final = 30.0  # it takes a second or two, unless the machine is very busy
END_S: Final = 10.0  # a sidecar stops within five seconds of SIGTERM
POLL_S: Final = 0.02
LAST_LINES: Final = 10
PARENT_DEATH: Final = Path(__file__).with_name("parent_death.py")
# Our gateway; `gateway_program` explains the placeholders.
GATEWAY: Final = (
    *(sys.executable, "-m", "liveness.lab.demo.gateway", "--sidecar", "{socket}"),
    *("--name", "{name}", "--port", "{port}", "--most", "{most}"),
)
SIDECAR: Final = ("-m", "liveness", "serve")
NAME: Final = "gw-1"
SETTINGS: Final = f"""
[timers]
run_timeout_s = {RUN_TIMEOUT_S}
retries = "{",".join([str(RETRY_S)] * 15)}"
"""


class ChildLost(LivenessError):
    """A child process did not start, or has ended by itself."""


@dataclass(eq=False)
class Child:
    """A child process across its restarts; killed when `run` is cancelled."""

    name: str
    command: Sequence[str]  # a program by its whole path, and its arguments
    log: Path  # for its output
    # Matches its output once it is ready; group 1 is its address.
    ready: re.Pattern[str]

    def __post_init__(self) -> None:
        self.state = "starting"
        self.is_lost = False
        self.address = ""
        self.up_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._up = trio.Event()
        self._may_start: trio.Event | None = None  # while it is ended on purpose

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Runs the process until cancelled, and again after `end` and `start`.

        The task counts as started when the process is ready for the first time.

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
                code = await _exit_code(process)
            if self._may_start is None:
                raise self._lost(f"has ended, exit code {code}")
            await self._may_start.wait()
            self._may_start = None

    async def restart(self, number: int) -> None:
        """Ends the process by a signal; returns when it is ready again.

        Raises:
            ChildLost: It does not end.
        """
        await self.end(number, state="restarting")
        await self.start()

    async def end(self, number: int, *, state: str = "down") -> None:
        """Ends the process by a signal; it stays down until `start`.

        Raises:
            ChildLost: It does not end.
        """
        assert self._process is not None
        self.state, self._up, self._may_start = state, trio.Event(), trio.Event()
        process = self._process
        _signal(process, number)
        with trio.move_on_after(END_S):
            await _exit_code(process)
        if process.poll() is None:
            raise self._lost(f"did not end within {END_S:g} s")

    async def start(self) -> None:
        """Starts it after `end`; returns when it is ready."""
        assert self._may_start is not None
        self.state = "restarting"
        self._may_start.set()
        await self._up.wait()

    def stop(self) -> None:
        """Stops the process, as a frozen machine would."""
        assert self._process is not None
        _signal(self._process, signal.SIGSTOP)
        self.state = "stopped"

    def resume(self) -> None:
        """Ends the `stop`."""
        assert self._process is not None
        _signal(self._process, signal.SIGCONT)
        self.state = "up"

    def last_lines(self) -> str:
        """The end of its output, indented."""
        lines = self.log.read_text(errors="replace", encoding="utf-8").splitlines()
        return "\n".join(f"    {line}" for line in lines[-LAST_LINES:])

    @contextmanager
    def _launched(self) -> Iterator[subprocess.Popen[bytes]]:
        """Starts the process; from the main thread, as parent_death.py requires."""
        launcher = [sys.executable, "-I", "-S", str(PARENT_DEATH), str(os.getpid())]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [*launcher, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                process_group=0,  # so that Ctrl-C reaches only the demo
            )
        self._process = process
        try:
            yield process
        finally:
            _signal(process, signal.SIGKILL)  # works while it is stopped too
            process.wait()

    async def _until_ready(self, process: subprocess.Popen[bytes]) -> None:
        with trio.move_on_after(START_S):
            while process.poll() is None:
                if found := self.ready.search(
                    self.log.read_text(errors="replace", encoding="utf-8")
                ):
                    self.address = found[1]
                    return
                await trio.sleep(POLL_S)
            raise self._lost(f"did not start, exit code {process.returncode}")
        raise self._lost(
            f"was not ready within {START_S:g} s: no line of its output has "
            f"{self.ready.pattern}"
        )

    def _lost(self, what: str) -> ChildLost:
        self.is_lost = True
        return ChildLost(f"the {self.name} {what}")


def sidecar_in(
    folder: Path, *, timeout_s: float, name: str = "sidecar", more: str = ""
) -> Child:
    """A sidecar with its files in *folder*; its address is that of HTTP.

    *more* is TOML for its settings.
    """
    options = {"--config": _settings_file(folder, more), **_options(folder, timeout_s)}
    return Child(
        name,
        [sys.executable, *SIDECAR, *_flags(options)],
        log=folder / "sidecar.log",
        ready=re.compile(r'"http": "([^"]+)".*"event": "ready"'),
    )


def settings_in(folder: Path, *, timeout_s: float) -> Config:
    """The settings of the sidecar in *folder*.

    Raises:
        ConfigError: No sidecar can run there.
    """
    options = _options(folder, timeout_s)
    return load(options, file=_settings_file(folder), environ={}).config


def gateway_in(
    folder: Path,
    *,
    words: Sequence[str],
    port: int,
    most: int,
    name: str = "gateway",
    known_as: str = NAME,
) -> Child:
    """A gateway of the sidecar in *folder*; its address is where it listens.

    *words* is its command, with placeholders.
    """
    values = {"socket": socket_in(folder), "name": known_as, "port": port, "most": most}
    return Child(
        name,
        filled(words or GATEWAY, values),
        log=folder / "gateway.log",
        ready=re.compile(rf"listens on ({re.escape(HOST)}:\d+)"),
    )


def redis_in(folder: Path, *, program: str, port: int) -> Child:
    """Redis without a disk: it is empty whenever it starts."""
    options = {
        "--port": port,
        "--bind": HOST,
        "--dir": folder,
        "--save": "",
        "--appendonly": "no",
    }
    return Child(
        "Redis",
        [program, *_flags(options)],
        log=folder / "redis.log",
        ready=re.compile("(Ready to accept connections)"),
    )


def socket_in(folder: Path) -> Path:
    """The socket of the sidecar in *folder*."""
    return folder / "gateway.sock"


def _options(folder: Path, timeout_s: float) -> dict[str, str]:
    return {
        "--socket": str(socket_in(folder)),
        "--state": str(folder / "state"),
        "--http": "127.0.0.1:0",
        "--timeout": str(timeout_s),
    }


def _settings_file(folder: Path, more: str = "") -> Path:
    """Our settings; without the file the sidecar would read those of this machine."""
    settings = folder / "liveness.toml"
    settings.write_text(SETTINGS + more, encoding="utf-8")
    return settings


def _flags(options: Mapping[str, object]) -> list[str]:
    return [str(word) for option in options.items() for word in option]


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Signals a process and those that it has started, such as that of `go run`.

    They are its process group, which bears its pid. That is no other process's as long as
    nobody has waited for its end.
    """
    if process.returncode is None:
        os.killpg(process.pid, number)


async def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """Waits for the end of a process, through a pidfd; ends what it has left behind."""
    descriptor = os.pidfd_open(process.pid)
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)
    _signal(process, signal.SIGKILL)
    return process.wait()
