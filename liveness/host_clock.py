"""The clocks of the host, read at one moment together with the event loop's.

A login has the start of its connection by CLOCK_MONOTONIC, so that it does not matter when
the login is read. A time namespace may shift that clock, but not the wall clock. So two
processes in which the clocks differ by the same amount have the same CLOCK_MONOTONIC
(`HostTime.is_same_clock`).
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from liveness.core.records import HostReading, HostTime

# The process may be preempted or stopped between readings of two clocks. So it reads them
# this often and uses the quickest reading, which must take less than LONGEST_S.
TRIES: Final = 5
LONGEST_S: Final = 0.001
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
TIME_OFFSETS: Final = Path("/proc/self/timens_offsets")


def read_host(loop_clock: Callable[[], float]) -> HostReading | None:
    """Read the host's clocks together with the event loop's.

    Returns:
        The reading; None if every try took too long, or the loop's clock is virtual.
    """
    if _is_virtual():
        return None
    best, shortest = None, LONGEST_S
    for _ in range(TRIES):
        began = time.clock_gettime(time.CLOCK_MONOTONIC)
        loop_s, unix_s = loop_clock(), time.time()
        took = time.clock_gettime(time.CLOCK_MONOTONIC) - began
        if took < shortest:
            best, shortest = HostReading(HostTime(began, unix_s), began - loop_s), took
    return best


def wall_s() -> float:
    """The wall clock, in Unix seconds."""
    return time.time()


def boot_id() -> str:
    """Identifies CLOCK_BOOTTIME: the boot, and the offset of the time namespace.

    Processes with the same value have the same CLOCK_BOOTTIME, whenever they run. "" if it
    is unknown, as in some sandboxes.
    """
    try:
        # Kernels without time namespaces lack this file.
        added = (
            TIME_OFFSETS.read_text(encoding="utf-8") if TIME_OFFSETS.exists() else ""
        )
        return " ".join([BOOT_ID.read_text(encoding="utf-8").strip(), *added.split()])
    except OSError:
        return ""


def _is_virtual() -> bool:
    """Whether the event loop's clock is trio's MockClock, as in tests."""
    testing = sys.modules.get("trio.testing")
    if testing is None:
        return False
    lowlevel = sys.modules["trio"].lowlevel
    return lowlevel.in_trio_run() and isinstance(
        lowlevel.current_clock(), testing.MockClock
    )
