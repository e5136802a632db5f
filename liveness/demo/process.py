"""A sidecar of the demo's own: another process, with temporary state and free ports."""

import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Final

import trio

from liveness.demo.sidecar import SidecarLost

START_S: Final = 10.0  # it takes less than one, unless the machine is very busy
LOOK_S: Final = 0.02
LAST_LINES: Final = 10
READY: Final = re.compile(r'"http": "([^"]+)".*"event": "ready"')


def socket_in(folder: Path) -> Path:
    """The socket of the sidecar that runs in *folder*."""
    return folder / "gateway.sock"


def log_in(folder: Path) -> Path:
    """What the sidecar that runs in *folder* says about itself."""
    return folder / "sidecar.log"


def last_lines(folder: Path) -> str:
    """The end of its log, for a person."""
    lines = log_in(folder).read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-LAST_LINES:])


async def run_sidecar(
    folder: Path,
    *,
    timeout_s: float,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Runs a sidecar in *folder* until cancelled.

    Started, with its HTTP address, once it is ready; when this returns it has ended.

    Raises:
        SidecarLost: It did not start, or ended by itself. Its log says why.
    """
    with log_in(folder).open("wb") as log:
        async with trio.open_nursery() as nursery:
            start = partial(
                trio.run_process,
                _command(folder, timeout_s),
                env=_environment(),
                stdout=log,
                stderr=log,
                check=False,
                process_group=0,  # Ctrl-C is for us: we end it when it is not used
            )
            process: trio.Process = await nursery.start(start)
            task_status.started(await _ready(folder, process))
            code = await process.wait()
            raise SidecarLost(f"the sidecar has ended, exit code {code}")


def _command(folder: Path, timeout_s: float) -> list[str]:
    # An empty file of settings, or that of this machine's own sidecar would be read.
    settings = folder / "liveness.toml"
    settings.touch()
    options = {
        "--config": settings,
        "--socket": socket_in(folder),
        "--state": folder / "state",
        "--http": "127.0.0.1:0",
        "--timeout": timeout_s,
    }
    flags = [str(word) for option in options.items() for word in option]
    return [sys.executable, "-m", "liveness", "serve", *flags]


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("LIVENESS_")}


async def _ready(folder: Path, process: trio.Process) -> str:
    """Waits for the line of its log that says so; gives its HTTP address."""
    with trio.move_on_after(START_S):
        while process.poll() is None:
            if ready := READY.search(log_in(folder).read_text(errors="replace")):
                return ready[1]
            await trio.sleep(LOOK_S)
        raise SidecarLost(f"the sidecar did not start, exit code {process.returncode}")
    raise SidecarLost(f"the sidecar was not ready within {START_S:g} s")
