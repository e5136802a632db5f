"""The model of lease, fence and reap holds, and without a protection it does not.

SPIN makes a C program of `cluster.pml`, which tries every order of events. README.md says
what is modelled.
"""

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.needs import require

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

MODEL: Final = Path(__file__).with_name("cluster.pml")
MOST_MEMORY_MB: Final = 7_000
DEPTH: Final = 2_000_000
NOTHING: Final = {"LOST": 0, "FAILOVERS": 0, "AWAYS": 0, "OUTAGES": 0, "P": 2}
# What may happen in a run, each as often as it says.
WORLDS: Final[dict[str, dict[str, int]]] = {
    "a lost answer": {"LOST": 1},
    "a failover": {"FAILOVERS": 1, "P": 1},
    # Four minutes. Hosts of different names share nothing between partitions: one is enough.
    "a failover and a lost answer": {"FAILOVERS": 1, "LOST": 1, "P": 1},
    "a host away": {"AWAYS": 1},
    "an outage": {"OUTAGES": 1},
    "an outage, with the clock of Redis set back": {"OUTAGES": 1, "REDIS_BACK": 1},
    "two processes of a name": {"NAMES": 1, "BOUND_LIVE": 26},
}
# A protection that is taken out, the world that shows it, and what SPIN says of it.
MUTANTS: Final = [
    ("NO_CONTACT", "an outage, with the clock of Redis set back", "fnd"),
    ("NO_WATCH", "an outage, with the clock of Redis set back", "fnd"),
    ("NO_HEARD", "a failover", "fnd"),
    ("NO_CALLER", "a lost answer", "peace<10"),
    ("NO_GAP", "a failover", "peace<10"),
    ("REAP_LISTING", "a host away", "st!=2"),
    ("NO_REPLACED", "two processes of a name", "q.take==255"),
]


def verify(folder: Path, settings: dict[str, int]) -> str:
    """What the exhaustive search says; it must have been complete, or found an error."""
    spin, gcc = require("spin"), require("gcc")
    defines = [f"-D{name}={value}" for name, value in settings.items()]
    limits = ["-DSAFETY", f"-DMEMLIM={MOST_MEMORY_MB}", "-DVECTORSZ=2048"]
    for words in (
        [spin, "-a", *defines, str(MODEL)],
        [gcc, "-O2", "-w", *limits, "-o", "pan", "pan.c"],
    ):
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    ran = subprocess.run(
        [str(folder / "pan"), f"-m{DEPTH}"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return ran.stdout


@pytest.mark.parametrize("world", WORLDS)
def test_every_promise_holds_in(world: str, tmp_path: Path) -> None:
    said = verify(tmp_path, NOTHING | WORLDS[world])
    assert "errors: 0" in said, said
    # An incomplete search says so: depth, memory.
    assert "Search not completed" not in said, said
    assert "max search depth too small" not in said, said
    assert "out of memory" not in said, said
    stored = re.search(r"^ *([0-9.e+]+) states, stored", said, re.MULTILINE)
    assert stored is not None, said
    assert float(stored[1]) > 1_000, said


@pytest.mark.parametrize(("switch", "world", "promise"), MUTANTS)
def test_it_is_broken_without(
    switch: str, world: str, promise: str, tmp_path: Path
) -> None:
    said = verify(
        tmp_path,
        NOTHING | WORLDS[world] | {"CHANGES": int(switch == "NO_GAP"), switch: 1},
    )
    assert "errors: 1" in said, said
    assert "assertion violated" in said, said
    assert promise in said, said
