"""What stands in `deploy/systemd`, and what systemd makes of it."""

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from tests.helpers.needs import require
from tests.helpers.tree import ROOT

FOLDER: Final = ROOT / "deploy/systemd"
SERVICE: Final = FOLDER / "liveness.service"
SOCKET: Final = FOLDER / "liveness.socket"


def settings(unit: Path) -> dict[str, list[str]]:
    """What each key is set to, in order."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.M):
        found.setdefault(key, []).append(value)
    return found


def setting(unit: Path, key: str) -> str:
    (value,) = settings(unit)[key]
    return value


def seconds(unit: Path, key: str) -> float:
    """A time of the units, which have milliseconds and seconds only."""
    number, scale = re.findall(r"^(\d+)(ms|s)$", setting(unit, key))[0]
    return int(number) / (1000 if scale == "ms" else 1)


@cache
def _calls() -> dict[str, list[str]]:
    """The members of each of systemd's sets of system calls."""
    told = subprocess.run(
        [require("systemd-analyze", "systemd"), "syscall-filter"],
        capture_output=True,
        text=True,
        check=True,
        env={"SYSTEMD_COLORS": "0", "PATH": "/usr/bin:/bin"},
    ).stdout
    sets: dict[str, list[str]] = {}
    for line in told.splitlines():
        if line.startswith("@"):
            members = sets.setdefault(line.split()[0], [])
        elif line.startswith("    ") and not line.strip().startswith("#"):
            members.append(line.strip())
    return sets


def _expanded(name: str) -> set[str]:
    if not name.startswith("@"):
        return {name}
    return set().union(*map(_expanded, _calls()[name]))


def allowed_calls() -> set[str]:
    allowed = _expanded("@default")  # always
    for line in settings(SERVICE)["SystemCallFilter"]:
        names = set().union(*map(_expanded, line.removeprefix("~").split()))
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed
