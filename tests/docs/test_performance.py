"""The tables of `docs/performance.md`: they say what the reports say, and no more."""

import importlib.util
from typing import Any

import pytest

from liveness.lab.bench import full_options
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


class Run:
    """A report with these figures."""

    def __init__(self, users: int, *figures: Figure, **changed: Any) -> None:
        self.users, self.figures = users, figures
        (first, *_) = SCRIPT.reports()
        options = full_options(users)
        parameters = {name: getattr(options, name) for name in PARAMETERS}
        parameters |= {"scenarios": ["silence"], **changed.pop("parameters", {})}
        self.content = {**first.content, "parameters": parameters, **changed}


PARAMETERS = ("users", "rate", "seconds", "timeout_s", "sizes", "without")


def test_the_page_says_what_the_reports_committed_say() -> None:
    page = SCRIPT.PAGE.read_text()
    assert SCRIPT.filled(page, SCRIPT.reports()) == page


@pytest.mark.parametrize("table", SCRIPT.TABLES)
def test_a_page_without_the_place_of_a_table_is_refused(table: str) -> None:
    page = SCRIPT.PAGE.read_text().replace(SCRIPT.BEGIN.format(table), "")
    with pytest.raises(ValueError, match=table):
        SCRIPT.filled(page, SCRIPT.reports())


def test_a_report_names_the_release_and_the_commit_that_were_measured() -> None:
    runs = [
        Run(
            100_000,
            liveness="0.3.0",
            commit="112233445566",
            date="2026-12-01T10:00:00Z",
        ),
        Run(100_000, liveness="0.3.1", commit=None),
    ]
    _head, clone, wheel = SCRIPT.measured(runs)
    assert clone[:2] == ("2026-12-01", "0.3.0, commit 112233445566")
    assert wheel[1] == "0.3.1"


def test_each_promise_is_next_to_what_was_measured_and_a_miss_is_shown() -> None:
    run = Run(
        1_000_000,
        Figure("silence", "all decided", 21.5, "s", 20.0),
        Figure("silence", "early offlines", 0, "", 0.0),
        Figure("silence", "missing", 2, "", 0.0),
        Figure("cost", "a ratio", 5.0, "x", least=4.0, users=4_000_000),
        Figure("day", "of a scenario that is gone", 1.0, "s", 2.0),
    )
    assert [*SCRIPT.floors([run])][1:] == [
        ("1,000,000", "silence: all decided", "≤ 20 s", "21.5 s", "MISSED"),
        ("4,000,000", "cost: a ratio", "≥ 4 x", "5 x", "met"),
        ("1,000,000", "silence: early, false or missing", "≤ 0", "2", "MISSED"),
    ]


def test_each_system_has_its_largest_size_up_to_a_million() -> None:
    run = Run(
        1_000_000,
        *(
            Figure("cost", "memory a user", value, "B", system=system, users=users)
            for system, users, value in (
                ("liveness", 100_000, 206.0),
                ("liveness", 1_000_000, 114.0),
                ("liveness", 4_000_000, 100.0),
                ("etcd", 10_000, 3_088.0),
            )
        ),
    )
    _head, ours, etcd = SCRIPT.systems([run])
    assert (ours[0], ours[1], ours[5]) == ("1,000,000", "the sidecar", "114 B")
    assert (etcd[0], etcd[5], etcd[2]) == ("10,000", "3,088 B", "")


def test_the_command_gives_the_same_run_again() -> None:
    usual = Run(1_000_000, parameters={"scenarios": ["idle", "day"]})
    other = Run(
        100_000,
        parameters={
            "scenarios": ["cost"],
            "rate": 5,
            "sizes": [100, 200],
            "without": ["zset", "redis"],
        },
    )
    command = SCRIPT.command_of
    assert command(usual.content["parameters"]) == "liveness bench idle --users 1000000"
    assert command(other.content["parameters"]) == (
        "liveness bench cost --users 100000 --rate 5 --sizes 100,200 "
        "--without zset --without redis"
    )
