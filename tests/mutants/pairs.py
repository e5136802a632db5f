"""Protections that no operator takes out: pairs.toml has each as old text and new text.

A pair is tried on a copy of the project, made of links, in which its file alone is another.
It is killed if the test that it names fails in its call; named without its parameters, a
test stands for all its cases. A copy that does not compile, a run that hangs, crashes or
fails elsewhere shows nothing: then the pair has survived.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.helpers.changes import changed

PATH: Final = Path("tests", "mutants", "pairs.toml")
# What tests need of the project, and a build.
COPIED: Final = (
    *("liveness", "tests", "proto"),
    *("pyproject.toml", "setup.py", "README.md", "LICENSE"),
)
# What a mutant leaves out is waited for as long as a busy machine may need, a minute for a
# page: three cases take three. Less than pytest's own limit for a test, which would be
# taken for a failure.
LIMIT_S: Final = 450.0
# Most tests wait more than they compute.
AT_ONCE: Final = 2 * (os.cpu_count() or 1)
# `--changed`: the share of the pairs without changes that is tried too, others with each
# commit.
ONE_IN: Final = 24
# Of what a run said, so much tells why it was no good.
LAST_LINES: Final = 15


@dataclass(frozen=True, slots=True)
class Pair:
    """One protection: what is lost without it, the test that notices, and the change."""

    name: str
    what: str
    test: str
    file: str
    old: str
    new: str

    @property
    def test_file(self) -> str:
        return self.test.partition("::")[0]


def pairs(root: Path) -> list[Pair]:
    """All pairs of a project.

    Raises:
        TypeError: One lacks a key, or has one too many.
    """
    text = (root / PATH).read_text(encoding="utf-8")
    return [Pair(**entry) for entry in tomllib.loads(text).get("pair", [])]


def faults(root: Path) -> list[str]:
    """What is wrong with pairs before any is tried."""
    found, names = list[str](), set[str]()
    for pair in pairs(root):
        if pair.name in names:
            found.append(f"{pair.name}: two pairs have this name")
        names.add(pair.name)
        file = root / pair.file
        times = file.read_text(encoding="utf-8").count(pair.old) if file.exists() else 0
        if times != 1:
            found.append(
                f"{pair.name}: {pair.file} has its old text {times} times: change "
                f"{PATH} with it, or remove the pair with what it took out"
            )
        # So that it is not found out by a run of an hour.
        test = root / pair.test_file
        function = pair.test.rpartition("::")[2].partition("[")[0]
        if not test.exists() or f"def {function}(" not in test.read_text("utf-8"):
            found.append(f"{pair.name}: there is no test {pair.test}")
    return found


def concerned(root: Path, all_pairs: Sequence[Pair], number: int) -> list[Pair]:
    """Pairs whose file or test has changed of late, and of the others a few in turn.

    Where there is no history to look into, as in a shallow clone, every pair is taken.
    """
    files = changed(root)
    if files is None:
        return [*all_pairs]
    mine = [pair for pair in all_pairs if files & {pair.file, pair.test_file}]
    others = [pair for pair in all_pairs if pair not in mine]
    return mine + others[number % ONE_IN :: ONE_IN]


def run(root: Path, tried: Sequence[Pair], limit_s: float = LIMIT_S) -> bool:
    """Try pairs, and print what survived; whether none did."""
    if not tried:
        return True
    with TemporaryDirectory(prefix="pairs-") as scratch:
        whole = Path(scratch, "whole")
        # Links need one file system, which a temporary folder may not share.
        _copy(root, whole, shutil.copy2)
        tests = sorted({pair.test for pair in tried})
        code, _, said = _test(whole, tests, limit_s * len(tests), str(AT_ONCE))
        if code:
            print("without any pair's change their tests fail", said, sep="\n")
            return False
        with ThreadPoolExecutor(AT_ONCE) as threads:
            verdicts = threads.map(partial(_verdict, whole, limit_s=limit_s), tried)
            survivors = 0
            for pair, why in zip(tried, verdicts, strict=True):
                survivors += bool(why)
                if why:
                    print(f"{pair.name}: SURVIVED: {pair.what}\n  {why}", flush=True)
    print(f"pairs: {len(tried) - survivors} killed, {survivors} survived", flush=True)
    return not survivors


def _verdict(whole: Path, pair: Pair, *, limit_s: float) -> str:
    """Why a pair has survived, or nothing."""
    with TemporaryDirectory(dir=whole.parent) as folder:
        copy = Path(folder, "copy")
        # A change and a build replace files: they write into none, so links do.
        _copy(whole, copy, os.link)
        file = copy / pair.file
        text = file.read_text(encoding="utf-8").replace(pair.old, pair.new)
        file.unlink()
        file.write_text(text, encoding="utf-8")
        if file.suffix in (".pyx", ".pxd"):
            done = _run(copy, ["setup.py", "-q", "build_ext", "--inplace"], limit_s)
            if done.returncode:
                return f"it does not compile\n{_last(done.stdout)}"
        code, counts, said = _test(copy, [pair.test], limit_s, "0")
    if code == -signal.SIGKILL:
        return f"it was ended after {limit_s:g} s"
    failed, errors = counts.get("failed", 0), counts.get("error", 0)
    # One that fails in its call and again at its end is counted twice.
    if failed and not counts.get("passed") and errors <= failed:
        return ""
    return f"{pair.test} did not fail, or not in each of its cases\n{said}"


def _copy(root: Path, folder: Path, place: Callable[[str, str], object]) -> None:
    """The project as its tests need it, with what is compiled already."""
    folder.mkdir()
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, copy_function=place)
        elif (root / name).exists():
            shutil.copy2(root / name, folder / name)


def _test(
    folder: Path, tests: Sequence[str], limit_s: float, processes: str
) -> tuple[int, dict[str, int], str]:
    """pytest's exit code, how many cases failed, passed and so on, and its last words."""
    options = ["-q", "-p", "no:cacheprovider", "-n", processes]
    done = _run(folder, ["-m", "pytest", *options, *tests], limit_s)
    summary = _last(done.stdout, 1)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", summary)}
    return done.returncode, counts, _last(done.stdout)


def _run(
    folder: Path, words: Sequence[str], limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Run Python in a copy to its end, or end it with all that it has started."""
    known = {
        key: it for key, it in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    }
    environ = known | {"PYTHONPATH": str(folder), "CFLAGS": "-O0", "MUTANT": "true"}
    command = [sys.executable, *words]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environ | {"REQUIRE_COMPILED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, said)


def _last(said: str, lines: int = LAST_LINES) -> str:
    return "\n".join(f"  | {line}" for line in said.splitlines()[-lines:])
