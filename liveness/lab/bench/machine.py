"""Describes the product and the machine, for readers of the figures."""

import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from liveness import __version__
from liveness.config.compiled import WHEEL


def product() -> dict[str, str | None]:
    root = Path(__file__).parents[3]
    describe = ("describe", "--always", "--dirty", "--exclude=*", "--abbrev=12")
    is_clone = (root / ".git").exists()
    commit = _printed("git", "-C", str(root), *describe).strip() if is_clone else ""
    return {"liveness": __version__, "commit": commit or None}


def facts(folder: Path | None) -> dict[str, Any]:
    """The facts needed to compare figures with those of another machine.

    The log is written to *folder*; None: to the temporary folder.
    """
    memory_kib = int(_first("/proc/meminfo", "MemTotal").split()[0])
    return {
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": memory_kib * 1024 // 10**6,
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "disk": _disk(folder or Path(tempfile.gettempdir())),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "wheel": WHEEL,
        "redis": _version("redis-server"),
        "valkey": _version("valkey-server"),
    }


def available_bytes() -> int:
    return int(_first("/proc/meminfo", "MemAvailable").split()[0]) * 1024


def as_line(machine: dict[str, Any]) -> str:
    return (
        "{cores} cores ({cpu}), {memory_mb} MB, load {load_before[0]}, {disk}, "
        "Linux {kernel}, Python {python}, wheel {wheel}"
    ).format(**machine)


def _first(path: str, name: str) -> str:
    found = re.search(
        rf"^{name}\s*: *(.*)$", Path(path).read_text(encoding="utf-8"), re.M
    )
    return found[1] if found else "unknown"  # some architectures have no "model name"


def _printed(*command: str) -> str:
    """What a program prints; "" if it is not installed."""
    if shutil.which(command[0]) is None:
        return ""
    run = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    return run.stdout


def _version(server: str) -> str | None:
    """The version of redis-server, or of a compatible program; None: not installed."""
    found = re.search(r"v=(\S+)", _printed(server, "--version"))
    return found[1] if found else None


def _disk(folder: Path) -> str:
    """Filesystem and device; on tmpfs the durable figures mean nothing."""
    words = ("findmnt", "--noheadings", "--output=FSTYPE,SOURCE", "--target")
    return " on ".join(_printed(*words, str(folder)).split()) or "unknown"
