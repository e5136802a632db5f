"""`python -m tests.fuzz`: the targets under libFuzzer, which says what it found.

Each begins with its committed corpus, `corpus/<target>`. An input at which a target fails
is left in a file that is named, and the run ends with exit code 1.
"""

import argparse
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.fuzz.targets import TARGETS
from tests.helpers.tree import ROOT

CORPUS: Final = Path(__file__).parent / "corpus"
FINDINGS: Final = ROOT / "build" / "fuzz"

# By default some three minutes, of which each target has about as much.
RUNS: Final = {"link": 200_000, "presence": 5_000, "server": 30_000}
# Beyond the smaller limits of `targets`; longer inputs say the same again.
MOST_BYTES: Final = {"link": 250, "presence": 128, "server": 200}
# An input takes milliseconds and the process 60 MiB. More is a finding.
MOST_S: Final = 10
MOST_MIB: Final = 192


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested targets; return the exit code."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("target", nargs="?", choices=[*TARGETS], help="only this one")
    parser.add_argument("--runs", type=int, help="of each target")
    parser.add_argument("--seed", type=int, default=0, help="0: another each time")
    parser.add_argument("--keep", action="store_true", help="what is found anew")
    asked = parser.parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        sys.exit("fuzz: atheris is not installed: make fuzz does it, if it can")
    failed = [
        target
        for target in ([asked.target] if asked.target else TARGETS)
        if not fuzz(
            target, asked.runs or RUNS[target], seed=asked.seed, is_kept=asked.keep
        )
    ]
    for target in failed:
        print(f"fuzz: a finding of {target}; to meet it again, put it into {CORPUS}")
    return 1 if failed else 0


def fuzz(target: str, runs: int, *, seed: int, is_kept: bool) -> bool:
    """Run one target so often, or until its first finding; whether there was none."""
    committed = CORPUS / target
    FINDINGS.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        found, kept = Path(folder, "found"), Path(folder, "kept")
        for place in (found, kept):
            place.mkdir()
        is_clean = _drive(
            target,
            f"-runs={runs}",
            f"-seed={seed}",
            f"-max_len={MOST_BYTES[target]}",
            f"-timeout={MOST_S}",
            f"-rss_limit_mb={MOST_MIB}",
            f"-artifact_prefix={FINDINGS / target}-",
            "-print_final_stats=1",
            "-verbosity=0",
            *map(str, (found, committed)),
        )
        if is_clean and is_kept:
            assert _drive(target, "-merge=1", *map(str, (kept, committed, found)))
            shutil.rmtree(committed)
            shutil.copytree(kept, committed)
    return is_clean


def _drive(target: str, *arguments: str) -> bool:
    command = [sys.executable, "-m", "tests.fuzz.drive", target, *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
