"""Where the system gives no more memory, users are refused and nobody else is disturbed."""

import subprocess
import sys

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
