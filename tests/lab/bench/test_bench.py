"""The bench's parts, in process: options, floors, plans, comparisons."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from liveness.cli import main
from liveness.lab.bench import FULL, QUICK, BenchOptions, full_options, systems
from liveness.lab.bench.cost import ratios
from liveness.lab.bench.floors import of_load
from liveness.lab.bench.systems import plan
from liveness.lab.common.figures import Figure

# --- what is asked for --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("day", 'Invalid value "day"'),
        ("cost --without memcached", "valkey"),
        ("cost --sizes 99", "is not numbers from 100 to 10000000"),
    ],
)
def test_bad_options_are_refused_with_the_remedy(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["bench", *options.split()]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert message in shown.err


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["bench", "--json", "/there/is/none"]) == 1
    said = "liveness: the report cannot be written to /there/is/none (No such file or"
    assert capsys.readouterr().err.startswith(said)


def test_a_missing_program_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    options = [f"--without={name}" for name in ("zset", "valkey", "asyncio")]
    assert main.main(["bench", "cost", "--quick", *options]) == 2
    assert "apt install redis-server, or leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("other", [{"rate": 1}, {"users": 500}], ids=["rate", "users"])
def test_what_depends_on_the_load_is_promised_of_the_usual_one_only(
    other: dict[str, Any],
) -> None:
    assert of_load(FULL, 1.0) == of_load(full_options(1_000_000), None, 1.0) == 1.0
    assert of_load(replace(FULL, **other), 1.0) is None


# --- what is measured, and on what --------------------------------------------------------


def test_what_does_not_fit_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(systems, "available_bytes", lambda: 4_000_000_000)
    sizes = (100, 2_000_000, 5_000_000)
    options = replace(QUICK, sizes=sizes, without=("redis", "zset", "valkey"))
    runs, left_out = plan(options)
    measured = ("liveness", "asyncio")
    assert runs == [(users, name) for users in (100, 2_000_000) for name in measured]
    assert left_out[-1] == "5,000,000 users: there is memory for 4,000,000"


# --- how they compare ---------------------------------------------------------------------

MILLION, FOUR = 1_000_000, 4_000_000
EVENT = "server CPU an event"
SINGLES = f"SETEX's {EVENT} / ours, one-uid frames"
BATCHES = f"SETEX's {EVENT} / ours, batches"
MEMORY = "SETEX's memory a user / ours"
GROWTH = f"{EVENT} / that with 100,000, batches"


def compared(
    figures: Sequence[Figure], options: BenchOptions
) -> dict[tuple[int | None, str], tuple[float, bool | None]]:
    return {
        (it.users, it.name): (it.value, it.is_met) for it in ratios(figures, options)
    }


def test_a_ratio_is_how_many_times_ours_redis_costs() -> None:
    costs = [
        Figure("cost", name, value, unit, system=system, users=users)
        for system, users, name, value, unit in (
            ("liveness", 100_000, f"{EVENT}, batches", 100.0, "ns"),
            ("liveness", MILLION, f"{EVENT}, one-uid frames", 300.0, "ns"),
            ("liveness", MILLION, f"{EVENT}, batches", 120.0, "ns"),
            ("liveness", MILLION, "memory a user", 210.0, "B"),
            ("redis", MILLION, f"{EVENT}, one-uid frames", 1_500.0, "ns"),
            ("redis", MILLION, "memory a user", 140.0, "B"),
            ("liveness", FOUR, f"{EVENT}, batches", 150.0, "ns"),
        )
    ]
    found = compared(costs, full_options(MILLION))
    assert found[MILLION, SINGLES] == (5.0, True)
    assert found[MILLION, BATCHES] == (12.5, True)
    assert found[MILLION, MEMORY] == (140.0 / 210.0, False)
    assert found[FOUR, GROWTH] == (1.5, True)


def test_a_promise_that_was_not_measured_is_missed_unless_redis_was_left_out() -> None:
    options = replace(full_options(MILLION), sizes=(10_000,))
    found = compared([], options)
    of_redis = {(MILLION, name) for name in (SINGLES, BATCHES, MEMORY)}
    assert {*found} == of_redis | {(FOUR, GROWTH)}
    assert not any(met for _, met in found.values())
    assert {*compared([], replace(options, without=("redis",)))} == {(FOUR, GROWTH)}
