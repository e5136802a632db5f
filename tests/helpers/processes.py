"""Programs that a test runs to their end."""

import subprocess
from pathlib import Path
from typing import Any, Final

from liveness.config.sources import FILE_VARIABLE
from liveness.lab.common import processes
from tests.helpers.needs import require

Done = subprocess.CompletedProcess[str]

# A file that every user may read, and that a running sidecar can read again.
NO_SETTINGS: Final = Path(__file__).with_name("no-settings.toml")


def environment(**more: str) -> dict[str, str]:
    """This process's environment, without the settings of a sidecar on this host."""
    return processes.environment() | {FILE_VARIABLE: str(NO_SETTINGS)} | more


def ran(
    *command: str | Path, input: str = "", timeout: float = 300, **options: Any
) -> Done:
    """Run a command to its end, whatever its exit code; what it printed is kept as text.

    Its standard input is *input*: a test has none of its own to give. The other options
    are those of `subprocess.run`.
    """
    return subprocess.run(
        command,
        input=input,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def succeeded(done: Done) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def promtool(*arguments: str, **options: Any) -> str:
    """What Prometheus' own checks print about files of ours, which must pass them."""
    done = ran(require("promtool", "prometheus"), *arguments, **options)
    assert done.stderr == "", done.stderr
    return succeeded(done)
