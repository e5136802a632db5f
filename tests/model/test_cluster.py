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
MOST_MEMORY_MB: Final = 6_000
DEPTH: Final = 200_000
NOTHING: Final = {"LOST": 0, "FAILOVERS": 0, "AWAYS": 0, "OUTAGES": 0, "P": 2}
# What may happen in a run, each exactly as often as it says: so with a world of several
# events there are those of fewer.
WORLDS: Final[dict[str, dict[str, int]]] = {
    "nothing": {},
    "a lost answer": {"LOST": 1},
    "a failover": {"FAILOVERS": 1},
    "a failover and a lost answer": {"FAILOVERS": 1, "LOST": 1},
    "a failover to a clock ahead": {"FAILOVERS": 1, "REDIS_AHEAD": 1},
    "a failover, with a clock set back before": {
        "FAILOVERS": 1,
        "REDIS_BACK": 1,
        "P": 1,
    },
    "a session ends": {"CHANGES": 1},
    "a session ends, and a failover": {"CHANGES": 1, "FAILOVERS": 1},
    "a host away": {"AWAYS": 1},
    # Hosts of different names share nothing between partitions: one is enough.
    "a host away and a lost answer": {"AWAYS": 1, "LOST": 1, "P": 1},
    "an outage": {"OUTAGES": 1},
    "an outage, with a clock set back before": {"OUTAGES": 1, "REDIS_BACK": 1},
    "two processes of a name": {"NAMES": 1, "BOUND_LIVE": 26},
    "two processes of a name, one away": {"NAMES": 1, "BOUND_LIVE": 26, "AWAYS": 1},
    # A call that costs 12 of 12 ticks, of a lease of 2 s.
    "a lost call, a short lease": {"LOST": 1, "WAIT": 12, "BOUND_LIVE": 26, "P": 1},
    "a lost call, a short lease, a clock set back before": {
        "LOST": 1,
        "WAIT": 10,
        "BOUND_LIVE": 26,
        "P": 1,
        "REDIS_BACK": 1,
    },
    "a lost call and a jump ahead": {
        "LOST": 1,
        "WAIT": 10,
        "BOUND_LIVE": 26,
        "P": 1,
        "OUTAGES": 1,
        "REDIS_AHEAD": 1,
    },
}
# What is taken out, or more than what is promised; the world that shows it, and what SPIN
# says of it.
MUTANTS: Final[list[tuple[dict[str, int], str, str]]] = [
    ({"NO_CONTACT": 1}, "an outage, with a clock set back before", "fnd"),
    ({"NO_WATCH": 1}, "an outage, with a clock set back before", "fnd"),
    ({"NO_HEARD": 1}, "a failover", "fnd"),
    ({"NO_BEHIND": 1}, "a failover, with a clock set back before", "fnd"),
    ({"NO_CALLER": 1}, "a lost answer", "owned"),
    ({"NO_GAP": 1}, "a session ends, and a failover", "peace<10"),
    ({"NO_STALE": 1}, "a host away and a lost answer", "peace<26"),
    ({"NO_FENCED": 1}, "a host away and a lost answer", "reaped"),
    ({"NO_COUNT": 1}, "a host away", "owned"),
    ({"REAP_LISTING": 1}, "a host away", "st!=2"),
    ({"NO_REPLACED": 1}, "two processes of a name", "q.take==255"),
    ({"WAIT": 13}, "a lost call, a short lease", "fnd"),
    ({"WAIT": 11}, "a lost call, a short lease, a clock set back before", "fnd"),
    ({"WAIT": 11}, "a lost call and a jump ahead", "fnd"),
]
# These reach all that can be reached, and are small.
COVERING: Final = (
    *("a lost answer", "a session ends, and a failover", "a host away"),
    *("a failover to a clock ahead", "an outage", "two processes of a name, one away"),
)
_INCOMPLETE: Final = re.compile("search depth too small|out of memory|interrupted")
_UNREACHED: Final = re.compile(r"cluster\.pml:\d+, state (\d+), ")
_STATE: Final = re.compile(r"state +(\d+) -\(tr .*cluster\.pml:(\d+) => (.*)")


def verify(folder: Path, settings: dict[str, int | str]) -> str:
    """The result of the exhaustive search, which was complete or found an error."""
    spin, gcc = require("spin"), require("gcc")
    defines = [f"-D{name}={value}" for name, value in settings.items()]
    limits = ["-DSAFETY", f"-DMEMLIM={MOST_MEMORY_MB}", "-DVECTORSZ=2048"]
    for words in (
        [spin, "-a", *defines, str(MODEL)],
        [gcc, "-O1", "-w", *limits, "-o", "pan", "pan.c"],
    ):
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    ran = subprocess.run(
        [str(folder / "pan"), f"-m{DEPTH}", "-w20"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    said = ran.stdout
    assert _INCOMPLETE.search(said) is None, said
    assert "Search not completed" not in said or "errors: 1" in said, said
    return said


@pytest.mark.parametrize("world", WORLDS)
def test_every_promise_holds_in(world: str, tmp_path: Path) -> None:
    said = verify(tmp_path, {**NOTHING, **WORLDS[world]})
    assert "errors: 0" in said, said


@pytest.mark.parametrize(("changed", "world", "promise"), MUTANTS)
def test_it_is_broken_with(
    changed: dict[str, int], world: str, promise: str, tmp_path: Path
) -> None:
    said = verify(tmp_path, {**NOTHING, **WORLDS[world], **changed})
    assert "errors: 1" in said, said
    assert "assertion violated" in said, said
    assert promise in said, said


def test_every_line_is_reached_in_some_world(tmp_path: Path) -> None:
    """As an atomic sequence SPIN counts the steps of what is a single step else."""
    lines, reached = set[tuple[str, str]](), set[tuple[str, str]]()
    for world in COVERING:
        settings: dict[str, int | str] = {**NOTHING, **WORLDS[world]}
        said = verify(tmp_path, settings | {"d_step": "atomic", "P": 1})
        unreached = {*_UNREACHED.findall(said)}
        states = subprocess.run(
            [tmp_path / "pan", "-d"], capture_output=True, check=True, text=True
        ).stdout
        for number, line, step in _STATE.findall(states):  # several of what is inline
            lines.add((line, step))
            if number not in unreached:
                reached.add((line, step))
    assert len(lines) > 400
    assert lines == reached
