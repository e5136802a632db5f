"""`python -m tests.mutants [PLACE… | PAIR…] [--changed] [--sample N --seed S]`.

A PLACE is a folder or a module of the product, like liveness/core/sessions, or one
function of a module: liveness/core/sessions/clearance.py:GatewayState.heard. Without one
it is all that has mutations, and all pairs.
"""

import argparse
import ast
import json
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

from tests.helpers.changes import changed_lines, git
from tests.mutants import pairs
from tests.mutants.forks import KILLED, OUTCOMES, Module, Verdict, try_room
from tests.mutants.operators import Mutation, mutations_of

ROOT: Final = Path(__file__).parents[2]


class Room(NamedTuple):
    """A folder of the product that has mutations."""

    tests: tuple[str, ...]  # that have to notice them
    # The share of a sample of 60 that has to be killed: what was, less 0.13, by which such
    # samples vary.
    least: float


# Of a folder named within another, its own.
ROOMS: Final[dict[str, Room]] = {
    "liveness/client": Room(
        ("tests/client", "tests/service/test_damped_watch.py"), 0.6
    ),
    "liveness/core": Room(
        (
            *("tests/core/links", "tests/core/sessions", "tests/core/timers"),
            *("tests/core/wire", "tests/core/test_access.py"),
            *("tests/core/test_server.py", "tests/service/links"),
            "tests/service/engine",
        ),
        0.65,
    ),
    "liveness/core/wheel": Room(("tests/core/wheel",), 0.6),
    "liveness/lab/compare": Room(("tests/lab/compare",), 0.65),
    "liveness/service": Room(
        (
            *("tests/service/engine", "tests/service/links", "tests/service/backups"),
            *("tests/service/test_file_watch.py", "tests/service/test_logs.py"),
            *("tests/service/test_reload.py", "tests/service/test_state_clock.py"),
            *("tests/service/test_systemd.py", "tests/service/test_threads.py"),
            "tests/service/test_metrics.py",
        ),
        0.4,
    ),
    "liveness/service/http": Room(
        ("tests/service/http", "tests/service/test_reload.py"), 0.65
    ),
    "liveness/service/links": Room(
        ("tests/service/links", "tests/service/engine"), 0.4
    ),
    "liveness/service/outlets": Room(("tests/service/outlets",), 0.5),
    "liveness/service/storage": Room(
        (
            *("tests/service/storage", "tests/service/backups"),
            "tests/service/test_state_clock.py",
        ),
        0.6,
    ),
    "liveness/service/timers": Room(
        (
            *("tests/service/timers", "tests/service/engine", "tests/service/backups"),
            "tests/service/storage/test_log_writer.py",
        ),
        0.6,
    ),
}
# Mutations that no test can notice, or need not, each with the reason.
ACCEPTED: Final = Path("tests", "mutants", "accepted.toml")
MARKS: Final = "not slow and not long and not machine"
# `--changed`: so many mutations of changed lines at most, as a file that was moved has
# hundreds, and so many others of one room with each commit.
MOST_CHANGED: Final = 400
OTHERS: Final = 60
# Seconds of a processor for the tests of one mutation, and of one of a changed line, which
# has to be killed.
MOST_S: Final = 5.0
MOST_CHANGED_S: Final = 60.0

Found = tuple[str, Mutation]  # a module, by its path from the root, and one of its own


def room_of(file: str) -> str | None:
    """The innermost room that a module is in, if it is in one."""
    rooms = [room for room in ROOMS if file.startswith(f"{room}/")]
    return max(rooms, key=len, default=None)


def modules_of(root: Path) -> dict[str, ast.Module]:
    """Every module that has mutations, parsed, by its path."""
    paths = sorted({path for room in ROOMS for path in (root / room).rglob("*.py")})
    return {
        path.relative_to(root).as_posix(): ast.parse(path.read_bytes())
        for path in paths
    }


def choose(found: Sequence[Found], places: Sequence[str]) -> list[Found]:
    """Those mutations that are at one of these places."""

    def is_at(place: str, file: str, mutation: Mutation) -> bool:
        path, _, function = place.partition(":")
        inside = file == path or file.startswith(f"{path.rstrip('/')}/")
        return inside and function in ("", mutation.function)

    return [it for it in found if any(is_at(place, *it) for place in places)]


def of_lines(found: Sequence[Found], lines: dict[str, set[int]]) -> list[Found]:
    """Those mutations that are of one of these lines."""
    return [
        (file, it)
        for file, it in found
        if not lines.get(file, set()).isdisjoint(range(it.line, it.last_line + 1))
    ]


def accepted(root: Path) -> set[tuple[str, ...]]:
    """The mutations that may survive, each by what it is known by, whatever its line."""
    entries = tomllib.loads((root / ACCEPTED).read_text(encoding="utf-8"))
    keys = ("file", "function", "operator", "text")
    return {tuple(it[key] for key in keys) for it in entries.get("accepted", [])}


class Mutants:
    """All mutations and pairs of a project, and what is tried of them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees = modules_of(root)
        every = [
            (file, it) for file in self._trees for it in mutations_of(self._trees[file])
        ]
        known = [(file, it.function, it.operator, it.text) for file, it in every]
        entries = accepted(root)
        outdated = sorted(entries - {*known})
        self.faults = [f"{ACCEPTED} has what is no mutation: {it}" for it in outdated]
        self.faults += pairs.faults(root)
        self.pairs = pairs.pairs(root)
        self.found = [
            it for it, key in zip(every, known, strict=True) if key not in entries
        ]
        self.verdicts = list[Verdict]()

    def try_changed(self) -> bool:
        """Try what changed of late, and some of the rest; whether that is good enough."""
        number = int(git(self._root, "rev-list", "--count", "HEAD")[0])
        lines = changed_lines(self._root)
        # Without a history, as in a shallow clone, nothing is known to have changed.
        mine = of_lines(self.found, lines or {})
        room = [*ROOMS][number % len(ROOMS)]
        others = [it for it in self.found if room_of(it[0]) == room and it not in mine]
        draw = random.Random(number)
        if len(mine) > MOST_CHANGED:
            print(
                f"of changed lines are {len(mine)} mutations, {MOST_CHANGED} are tried"
            )
            mine = draw.sample(mine, MOST_CHANGED)
        others = draw.sample(others, min(OTHERS, len(others)))
        are_killed = self.try_mutations(mine, most_s=MOST_CHANGED_S)
        print(
            f"other mutations, of which {ROOMS[room].least:.0%} have to be killed:",
            flush=True,
        )
        before = len(self.verdicts)
        self.try_mutations(others)
        killed = [it.outcome for it in self.verdicts[before:]].count(KILLED)
        are_killed &= killed >= ROOMS[room].least * len(others)
        concerned = pairs.concerned(self._root, self.pairs, number)
        return pairs.run(self._root, concerned) and are_killed

    def try_mutations(self, found: Sequence[Found], most_s: float = MOST_S) -> bool:
        """Try mutations, room by room, and print what survived; whether none did."""
        by_room: dict[str, dict[str, list[Mutation]]] = {}
        for file, mutation in found:
            if room := room_of(file):
                by_room.setdefault(room, {}).setdefault(file, []).append(mutation)
        are_killed = True
        for room, files in by_room.items():
            modules = [
                Module(file, self._trees[file], its) for file, its in files.items()
            ]
            began = time.perf_counter()
            # A process that has collected the tests of one room has much that others miss.
            with ProcessPoolExecutor(1, get_context("fork")) as process:
                work = process.submit(
                    try_room,
                    *(self._root, modules, ROOMS[room].tests, MARKS),
                    most_s=most_s,
                )
                verdicts, faults = work.result()
            outcomes = Counter(verdict.outcome for verdict in verdicts)
            counts = ", ".join(f"{outcomes[it]} {it}" for it in OUTCOMES)
            took = time.perf_counter() - began
            print(f"{room}: {counts}, {took:.0f} s", *faults, sep="\n", flush=True)
            are_killed &= not faults and outcomes[KILLED] == len(verdicts)
            self.verdicts += verdicts
        return are_killed


def mutants_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tests.mutants", description=__doc__)
    parser.add_argument("places", nargs="*")
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="where all verdicts go, as JSON")
    return parser


def main(words: Sequence[str]) -> int:
    """Try mutations and pairs, and print what survived; the exit code."""
    parser = mutants_parser()
    options = parser.parse_args(words)
    mutants = Mutants(ROOT)
    if mutants.faults:
        print(*mutants.faults, sep="\n")
        return 1
    if options.changed:
        return 0 if mutants.try_changed() else 1
    named = [pair for pair in mutants.pairs if pair.name in options.places]
    places = [it for it in options.places if it not in {pair.name for pair in named}]
    found = choose(mutants.found, places) if options.places else mutants.found
    if places and not found:
        parser.error(
            f"no mutation is at {' or at '.join(places)}, and no pair's name is"
        )
    if options.sample is not None:
        found = random.Random(options.seed).sample(
            found, min(options.sample, len(found))
        )
    elif not options.places:
        named = mutants.pairs
    are_killed = mutants.try_mutations(found)
    if options.report:
        verdicts = [asdict(verdict) for verdict in mutants.verdicts]
        options.report.write_text(json.dumps(verdicts), encoding="utf-8")
    return 0 if pairs.run(ROOT, named) and are_killed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
