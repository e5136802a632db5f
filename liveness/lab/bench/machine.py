"""The facts of the machine that the figures were measured on."""

import os
import platform
import re
import shutil
import sqlite3
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from liveness.compiled import WHEEL


def facts(folder: Path | None) -> dict[str, Any]:
    """What a reader needs to compare figures with those of another machine.

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
        "trio": version("trio"),
        "msgpack": version("msgpack"),
        "sqlite": sqlite3.sqlite_version,
        "redis": _version("redis-server", r"v=(\S+)"),
        "valkey": _version("valkey-server", r"v=(\S+)"),
        "huge_pages": _huge_pages(),
    }


def available_bytes() -> int:
    """Memory that can be used without swapping."""
    return int(_first("/proc/meminfo", "MemAvailable").split()[0]) * 1024


def as_line(machine: dict[str, Any]) -> str:
    """The facts on one line."""
    return (
        "{cores} cores ({cpu}), {memory_mb} MB, load {load_before[0]}, {disk}, "
        "Linux {kernel}, Python {python}, wheel {wheel}"
    ).format(**machine)


def _first(path: str, name: str) -> str:
    """The first value of this name in a /proc file."""
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"  # some architectures have no "model name"


def _version(program: str, pattern: str) -> str | None:
    """The version that a program prints; None if it is not installed."""
    path = shutil.which(program)
    if path is None:
        return None
    run = subprocess.run(
        [path, "--version"], capture_output=True, encoding="utf-8", check=False
    )
    found = re.search(pattern, run.stdout)
    return found[1] if found else "unknown"


def _huge_pages() -> str:
    """The mode of transparent huge pages, on which memory figures depend."""
    try:
        modes = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(
            encoding="utf-8"
        )
    except FileNotFoundError:
        return "none"  # the kernel was built without them
    return modes.split("[")[1].split("]")[0]


def _disk(folder: Path) -> str:
    """Filesystem and device; on tmpfs the figures "on disk" mean nothing."""
    folder, best, found = folder.resolve(), Path(), "unknown"
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        device, point, kind, *_ = line.split()
        mount = Path(point)
        if folder.is_relative_to(mount) and len(mount.parts) >= len(best.parts):
            best, found = mount, f"{kind} on {device}"
    return found
