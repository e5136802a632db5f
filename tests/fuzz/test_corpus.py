"""Every input that the fuzzer kept goes through the targets again, without the fuzzer."""

from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.targets import TARGETS
from tests.helpers.tree import ROOT, needs_a_clone

CORPUS: Final = Path(__file__).parent / "corpus"


@needs_a_clone
@pytest.mark.parametrize("target", TARGETS)
def test_no_target_finds_a_fault_in_any_input_of_its_corpus(target: str) -> None:
    inputs = sorted((CORPUS / target).iterdir())
    assert inputs
    for path in inputs:
        try:
            TARGETS[target](path.read_bytes())
        except Exception as fault:
            fault.add_note(f"the input is {path.relative_to(ROOT)}")
            raise
