"""Every input that the fuzzer kept goes through the targets again, without the fuzzer."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.runner import CORPUS, FINDINGS, main, told
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS
from tests.helpers.tree import ROOT, needs_a_clone

MOST_CORPUS_BYTES: Final = 1_500_000
DONE: Final = """
#2	INITED cov: 10 ft: 20 corp: 1/1b exec/s: 0 rss: 58Mb
#100000	DONE   cov: 370 ft: 1391 corp: 298/18Kb lim: 250 exec/s: 642 rss: 59Mb
Done 100000 runs in 155 second(s)
stat::number_of_executed_units: 100000
stat::peak_rss_mb:              59
"""
FOUND: Final = f"""
 === Uncaught Python exception: ===
AssertionError: it was not so
Test unit written to {FINDINGS}/wire-crash-0a
stat::number_of_executed_units: 157691
"""
targets = pytest.mark.parametrize("target", TARGETS)


def corpus(target: str) -> list[Path]:
    return sorted((CORPUS / target).iterdir())


# --- what was kept


@needs_a_clone
@targets
def test_no_target_finds_a_fault_in_any_input_of_its_corpus(target: str) -> None:
    inputs = corpus(target)
    assert inputs
    for path in inputs:
        try:
            TARGETS[target](path.read_bytes())
        except Exception as fault:
            fault.add_note(f"the input is {path.relative_to(ROOT)}")
            raise


@targets
def test_no_target_finds_a_fault_in_what_it_begins_with(target: str) -> None:
    begun = [*seeds(target)]
    assert len(begun) > 100
    for data in begun:
        TARGETS[target](data)


@needs_a_clone
def test_the_corpus_stays_small() -> None:
    sizes = [path.stat().st_size for target in TARGETS for path in corpus(target)]
    assert sum(sizes) < MOST_CORPUS_BYTES


# --- what is said of a run


def test_a_clean_run_says_how_far_it_got() -> None:
    outcome = told("link", 0, DONE)
    assert outcome.is_clean
    assert outcome.runs == 100_000
    assert outcome.told == (
        "link: 100,000 runs, 642 a second; coverage 370 edges, 1,391 features; corpus "
        "298 inputs, 18Kb; 59 MiB"
    )


def test_a_finding_says_where_it_was_left_and_how_to_have_it_again() -> None:
    outcome = told("wire", 77, FOUND)
    assert not outcome.is_clean
    assert outcome.runs == 157_691
    assert "AssertionError: it was not so" in outcome.told
    *_, first, last = outcome.told.splitlines()
    assert first == "wire: a finding after 157,691 runs"
    path = "build/fuzz/wire-crash-0a"
    assert last == f'wire: left in {path}; again: make fuzz ARGS="--replay {path}"'


@pytest.mark.parametrize("code", [0, 1, -9])
def test_whatever_ends_without_its_account_is_no_clean_run(code: int) -> None:
    outcome = told("wire", code, "Killed\n")
    assert not outcome.is_clean
    assert f"exit code {code} and left no input" in outcome.told


def test_an_input_is_gone_through_again_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "wire-crash-0a"
    path.write_bytes(next(iter(seeds("wire"))))
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--replay", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{path}: no fault\n")


def test_an_input_of_no_target_is_refused_with_a_word_of_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments, said in (
        (["--replay", str(tmp_path / "some-crash")], "name one"),
        (["--runs", "0"], "it must be 1 or more"),
        (["wires"], "invalid choice: 'wires'"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
