"""Runs the targets under libFuzzer, and says how far it got.

Each begins with its committed corpus, `corpus/<target>`, and with the vectors. What is
found beyond them is forgotten at the end, unless it is asked to be kept: then the corpus
becomes the fewest inputs that reach all that was reached.

An input at which a target fails is a finding: it is left in a file that is named, and the
run ends with exit code 1. Once that is mended it belongs in the corpus, and the meaning of
its bytes in `proto/vectors`.
"""

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS
from tests.helpers.tree import ROOT

CORPUS: Final = Path(__file__).parent / "corpus"
FINDINGS: Final = ROOT / "build" / "fuzz"

# By default some three minutes, of which each target has about as much.
RUNS: Final = {"wire": 200_000, "link": 100_000, "presence": 5_000, "server": 30_000}
# Longer inputs say the same again, and take a time for each frame or event. It is beyond
# the smaller limits of `targets`.
MOST_BYTES: Final = {"wire": 200, "link": 250, "presence": 128, "server": 200}
# An input takes milliseconds and the process 60 MiB. More is a finding: what one sends
# has to take a bounded time and memory.
MOST_S: Final = 10
MOST_MIB: Final = 192
# Of what libFuzzer says about a finding, so much.
TOLD_LINES: Final = 40

_DONE: Final = re.compile(
    r"^#\d+\s+DONE\s+cov: (?P<edges>\d+) ft: (?P<features>\d+) "
    r"corp: (?P<inputs>\d+)/(?P<size>\w+) .*exec/s: (?P<rate>\d+) rss: (?P<rss>\d+)Mb",
    re.MULTILINE,
)
_RUNS: Final = re.compile(r"^stat::number_of_executed_units:\s+(\d+)", re.MULTILINE)
_LEFT: Final = re.compile(r"Test unit written to (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    target: str
    runs: int
    told: str  # a line, or the text of a finding
    is_clean: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested targets; return the exit code."""
    asked = _asked(arguments)
    if asked.replay is not None:
        TARGETS[asked.target](asked.replay.read_bytes())
        print(f"{asked.replay}: no fault")
        return 0
    if importlib.util.find_spec("atheris") is None:
        print(
            "fuzz: atheris is not installed here: make fuzz brings it, where this "
            "Python has a wheel of it",
            file=sys.stderr,
        )
        return 2
    outcomes = []
    for target in [asked.target] if asked.target else TARGETS:
        runs = asked.runs or RUNS[target]
        outcomes.append(fuzz(target, runs, seed=asked.seed, is_kept=asked.keep))
        print(outcomes[-1].told, flush=True)
    findings = sum(not outcome.is_clean for outcome in outcomes)
    ran = sum(outcome.runs for outcome in outcomes)
    print(f"{ran:,} runs, {findings} findings")
    return 1 if findings else 0


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("target", nargs="?", choices=[*TARGETS], help="only this one")
    parser.add_argument("--runs", type=int, help="of each target")
    parser.add_argument("--seed", type=int, default=0, help="0: another each time")
    parser.add_argument("--keep", action="store_true", help="what is found anew")
    parser.add_argument("--replay", type=Path, help="this input, once, and no other")
    asked = parser.parse_args(arguments)
    if asked.runs is not None and asked.runs < 1:
        parser.error(f"--runs is {asked.runs}; it must be 1 or more")
    if asked.replay is not None:
        asked.target = asked.target or asked.replay.name.partition("-")[0]
        if asked.target not in TARGETS:
            parser.error(f"{asked.replay} does not say of which target it is: name one")
    return asked


def fuzz(target: str, runs: int, *, seed: int, is_kept: bool) -> Outcome:
    """Run one target so often, or until its first finding."""
    committed = CORPUS / target
    FINDINGS.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        found, begun = Path(folder, "found"), Path(folder, "seeds")
        found.mkdir()
        begun.mkdir()
        for number, data in enumerate(seeds(target)):
            (begun / str(number)).write_bytes(data)
        said = _drive(
            target,
            f"-runs={runs}",
            f"-seed={seed}",
            f"-max_len={MOST_BYTES[target]}",
            f"-timeout={MOST_S}",
            f"-rss_limit_mb={MOST_MIB}",
            f"-artifact_prefix={FINDINGS / target}-",
            "-print_final_stats=1",
            *map(str, (found, committed, begun)),
        )
        outcome = told(target, said.returncode, said.stdout)
        if outcome.is_clean and is_kept:
            keep(target, [committed, found, begun], Path(folder, "kept"))
    return outcome


def keep(target: str, of: Sequence[Path], folder: Path) -> None:
    """Make the fewest inputs of these folders that reach all that they do the corpus."""
    folder.mkdir()
    said = _drive(target, "-merge=1", str(folder), *map(str, of))
    if said.returncode:
        raise RuntimeError(f"the corpus could not be merged: {said.stdout[-2_000:]}")
    shutil.rmtree(CORPUS / target)
    shutil.copytree(folder, CORPUS / target)


def told(target: str, code: int, said: str) -> Outcome:
    """The messages of libFuzzer, for a person."""
    ran = _RUNS.search(said)
    runs = int(ran[1]) if ran else 0
    done = _DONE.search(said)
    if code == 0 and done is not None:
        line = (
            f"{target}: {runs:,} runs, {int(done['rate']):,} a second; coverage "
            f"{int(done['edges']):,} edges, {int(done['features']):,} features; corpus "
            f"{int(done['inputs']):,} inputs, {done['size']}; {done['rss']} MiB"
        )
        return Outcome(target, runs, line, is_clean=True)
    left = _LEFT.search(said)
    lines = [
        *said.splitlines()[-TOLD_LINES:],
        f"{target}: a finding after {runs:,} runs",
    ]
    if left is None:
        lines.append(
            f"{target}: libFuzzer ended with exit code {code} and left no input"
        )
    else:
        path = Path(left[1]).relative_to(ROOT)
        lines.append(
            f'{target}: left in {path}; again: make fuzz ARGS="--replay {path}"'
        )
    return Outcome(target, runs, "\n".join(lines), is_clean=False)


def _drive(target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.drive", target, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
