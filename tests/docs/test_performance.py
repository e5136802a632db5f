"""The tables of `docs/performance.md`: they say what the reports say, and no more."""

import importlib.util
from types import SimpleNamespace
from typing import Any

from liveness.lab.common.figures import Figure
from tests.helpers.tree import ROOT


def loaded() -> Any:
    """The script in the folder of the page, which is in no package."""
    spec = importlib.util.spec_from_file_location(
        "docs_performance", ROOT / "docs/performance.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = loaded()


def test_the_page_says_what_the_reports_committed_say() -> None:
    page = SCRIPT.PAGE.read_text()
    assert SCRIPT.filled(page, SCRIPT.reports()) == page


def test_each_promise_is_next_to_what_was_measured_and_a_miss_is_shown() -> None:
    figures = [
        Figure("silence", "all decided", 21.5, "s", 20.0),
        Figure("silence", "early offlines", 0, "", 0.0),
        Figure("silence", "missing", 2, "", 0.0),
        Figure("cost", "a ratio", 5.0, "x", least=4.0, users=4_000_000),
        Figure("day", "of a scenario that is gone", 1.0, "s", 2.0),
    ]
    run = SimpleNamespace(users=1_000_000, figures=figures)
    assert [*SCRIPT.floors([run])][1:] == [
        ("1,000,000", "silence: all decided", "≤ 20 s", "21.5 s", "MISSED"),
        ("4,000,000", "cost: a ratio", "≥ 4 x", "5 x", "met"),
        ("1,000,000", "silence: early, false or missing", "≤ 0", "2", "MISSED"),
    ]
