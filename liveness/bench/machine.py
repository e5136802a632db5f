"""What the figures were measured on."""

import os
import platform
import sqlite3
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from liveness import __version__
from liveness.core.wheel import IMPLEMENTATION


def facts(folder: Path | None) -> dict[str, object]:
    """Everything a reader needs to compare figures with those of another machine.

    Args:
        folder: Where the log is written; None: the usual temporary folder.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _first("/proc/cpuinfo", "model name"),
        "memory_mb": int(_first("/proc/meminfo", "MemTotal").split()[0])
        * 1024
        // 10**6,
        "load": round(os.getloadavg()[0], 2),
        "filesystem": _filesystem(folder or Path(tempfile.gettempdir())),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "liveness": __version__,
        "wheel": IMPLEMENTATION,
        "trio": version("trio"),
        "msgpack": version("msgpack"),
        "sqlite": sqlite3.sqlite_version,
    }


def as_line(machine: dict[str, object]) -> str:
    """The facts on one line."""
    return (
        "{cores} cores ({cpu}), {memory_mb} MB, load {load}, {filesystem}, "
        "Linux {kernel}, Python {python}, wheel {wheel}, {date}"
    ).format(**machine)


def _first(path: str, name: str) -> str:
    """The value of the first line of a /proc file that has this name."""
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"  # not every architecture names its model


def _filesystem(folder: Path) -> str:
    """The kind of filesystem: on tmpfs nothing that is "on disk" is on a disk."""
    folder, best, kind = folder.resolve(), Path(), "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, named, *_ = line.split()
        mount = Path(point)
        if folder.is_relative_to(mount) and len(mount.parts) >= len(best.parts):
            best, kind = mount, named
    return kind
