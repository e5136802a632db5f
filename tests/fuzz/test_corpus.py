"""Every input that the fuzzer kept goes through the targets again, without the fuzzer."""

from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.runner import CORPUS, main
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS
from tests.helpers.tree import ROOT, needs_a_clone

MOST_CORPUS_BYTES: Final = 1_500_000
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


# --- by hand


def test_an_input_is_gone_through_again_by_hand(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "wire-crash-0a"
    path.write_bytes(next(iter(seeds("wire"))))
    assert main(["--replay", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: no fault\n"


def test_an_input_of_no_target_is_refused_with_a_word_of_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--replay", str(tmp_path / "some-crash")])
    assert ended.value.code == 2
    assert "name one" in capsys.readouterr().err
