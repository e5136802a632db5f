"""The memory of the compiled wheel: where there is no more, and that it is given back."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.core.conftest import WHEELS

# An index of 1,024 slots is to grow at 820 users, and may not.
SCARCE = """
import resource
from pathlib import Path
from liveness.core.wheel._wheel import Wheel

wheel = Wheel(timeout=30.0, slots=30)
wheel.add_gateway()

def opened(uid):
    rest = {"conn": None, "start": 0.0, "timeout": None, "event": 1, "mono": 0.0}
    try:
        wheel.open(uid, gateway=0, session=uid, now=0.0, **rest)
    except MemoryError:
        return False
    return True

assert all([opened(uid) for uid in range(700)])
# What the interpreter itself still wants comes from here.
room = [bytes(400) for _ in range(20_000)]
del room[::2]
pages = int(Path("/proc/self/statm").read_text().split()[0])
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), limits[1]))
taken = [uid for uid in range(700, 1_400) if opened(uid)]
assert 700 + len(taken) == len(wheel) == 960, len(wheel)
assert all(wheel.find(uid) for uid in (*range(700), *taken))
assert wheel.find(1_399) is None
wheel.advance(31.0, 10_000)
gone = wheel.fire(0, until=31.0, limit=100)
assert [entry.uid for entry in gone] == [*range(100)]
resource.setrlimit(resource.RLIMIT_AS, limits)
assert all([opened(uid) for uid in range(2_000, 4_000)])
assert len(wheel) == 860 + 2_000
"""


def test_users_for_whom_there_is_no_memory_are_refused_and_all_others_stay() -> None:
    if len(WHEELS) == 1:
        return  # the reference asks for memory where Python does
    ran = subprocess.run(
        [sys.executable, "-c", SCARCE], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.parametrize("separator", ["", "/"], ids=["uids", "devices"])
def test_the_memory_of_a_million_users_is_given_back_when_they_go(
    separator: str,
) -> None:
    users, at_once = 1_000_000, 10_000
    rest: dict[str, Any] = {"conn": None, "start": 0.0, "timeout": None, "event": 1}
    wheel = WHEELS[-1].Wheel(timeout=30.0, slots=30, separator=separator)
    wheel.add_gateway()
    before = resident_bytes()
    for number in range(users):
        uid = f"user-{number % 5_000}/device {number}"
        wheel.open(uid, gateway=0, session=number, now=0.0, mono=0.0, **rest)
    took = resident_bytes() - before
    assert took > 88 * users
    wheel.advance(31.0, 10**9)
    while wheel.fire(0, until=30.0, limit=at_once):
        pass
    assert len(wheel) == 0
    # The rest belongs to malloc and the interpreter.
    assert resident_bytes() - before < took / 6
