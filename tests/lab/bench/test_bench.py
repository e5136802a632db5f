"""The bench's parts, in process: options, floors, progress, verdicts, comparisons."""

import io
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from liveness.cli import main
from liveness.console.progress import progress_bar, time_share
from liveness.lab.bench import (
    COMPARED_SYSTEMS,
    QUICK,
    SCENARIOS,
    BenchOptions,
    full_options,
    system_kinds,
    virtual_day,
)
from liveness.lab.bench.cost import ratios
from liveness.lab.bench.floors import Floors, floors, promised
from liveness.lab.bench.suite import MEASURED
from liveness.lab.bench.system_kinds import KINDS, plan
from liveness.lab.common.figures import Figure, as_table, summary
from liveness.service.engine import engine

OURS_ONLY = [f"--without={name}" for name in COMPARED_SYSTEMS]

# --- what is asked for --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "steady --quick --rate 10",
            "liveness: 10 frames a second are too few for 100 users who send every "
            "1.5 s; use --rate 68 or more\n",
        ),
        ("cost --without memcached", "memcached"),
        *(("cost --without memcached", name) for name in COMPARED_SYSTEMS),
        *(
            (f"cost --sizes {sizes}", "is not numbers from 100 to 10000000")
            for sizes in ("many", "99", "1000,", "10000001")
        ),
    ],
)
def test_bad_options_are_refused_with_the_remedy(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["bench", *options.split()]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert message in shown.err


def test_a_million_users_have_floors_of_their_own_and_more_have_none() -> None:
    assert floors(100) is floors(100_000)
    assert (
        floors(100_001)
        == floors(1_000_000)
        == Floors(
            logins_s=8.0,
            delivered_ms=100.0,
            silence_s=20.0,
            silence_mb=250.0,
            ready_s=2.5,
            patience_s=40.0,
        )
    )
    assert floors(1_000_001) == Floors()


@pytest.mark.parametrize("other", [{"rate": 1}, {"seconds": 1.0}, {"timeout_s": 5.0}])
def test_what_depends_on_the_load_is_promised_of_the_usual_one_only(
    other: dict[str, Any],
) -> None:
    usual = full_options(100_000)
    assert promised(usual) is floors(100_000)
    assert promised(usual).speaking_cpu_percent == 3.0
    assert promised(usual).steady_cpu_percent == 10.0
    assert promised(replace(usual, **other)) == replace(
        floors(100_000), speaking_cpu_percent=None, steady_cpu_percent=None
    )
    assert promised(replace(full_options(1_000_000), **other)).delivered_ms is None
    assert promised(usual).login_ns == 3_000.0
    assert promised(full_options(500)).login_ns is None


def test_the_run_of_a_million_has_their_rate_and_their_sizes() -> None:
    run = full_options(1_000_000)
    assert (run.users, run.rate) == (1_000_000, 33_000)
    assert run.sizes == (10_000, 100_000, 1_000_000, 4_000_000)
    assert full_options(100_000).rate == 3_000


def test_every_scenario_of_the_help_can_be_measured() -> None:
    assert [*MEASURED] == [*SCENARIOS]


def test_the_virtual_day_sleeps_as_the_engine_does() -> None:
    assert virtual_day.LEAST_SLEEP_S == engine.LEAST_SLEEP_S


# --- progress -----------------------------------------------------------------------------


def test_on_a_terminal_a_bar_shows_how_far_it_is_and_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as out, progress_bar(out) as stage:
        stage("everyone logs in", None)
        stage("everyone is silent", lambda: 0.5)
    drawn = b"".join(read_to_end(ours)).decode()
    assert "everyone logs in" in drawn
    assert re.search("everyone is silent .*━", drawn)
    assert drawn.endswith("\x1b[2K")  # the line is wiped


def read_to_end(terminal: int) -> Iterator[bytes]:
    """What was written to a terminal whose other end is closed; a read gives a part."""
    with os.fdopen(terminal, "rb", buffering=0) as ours, suppress(OSError):
        while data := ours.read(65_536):
            yield data


def test_in_a_file_each_stage_is_a_line() -> None:
    out = io.StringIO()
    with progress_bar(out) as stage:
        stage("everyone logs in", None)
        stage("everyone is silent", lambda: 0.5)
    assert out.getvalue() == "everyone logs in\neveryone is silent\n"


def test_time_passes_as_a_share_of_a_window() -> None:
    share = time_share(1e9)
    assert share is not None
    assert 0 <= share() < 1e-6


# --- floors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "verdict"), [(50.0, "met"), (50.1, "MISSED"), (math.nan, "MISSED")]
)
def test_a_floor_may_be_reached_and_not_passed(value: float, verdict: str) -> None:
    figure = Figure("steady", "decided p99", value, "ms", 50.0)
    assert as_table([figure]).splitlines()[1].endswith(verdict)


def test_a_figure_without_a_floor_has_no_verdict() -> None:
    figure = Figure("steady", "load CPU", 9.0, "%")
    assert figure.is_met is None
    assert as_table([figure]).splitlines()[1].endswith("9 %")


def test_a_floor_of_what_was_not_measured_is_missed_and_says_why() -> None:
    figure = Figure("cost", "growth", math.nan, "x", 2.5)
    assert figure.is_met is False
    assert (figure.amount, figure.as_map()["value"]) == ("not measured", None)


def test_the_last_line_counts_the_floors_that_were_met() -> None:
    values = (1.0, 3.0)
    figures = [Figure("idle", "ready", value, "s", 2.0) for value in values]
    assert summary([*figures, Figure("idle", "load", 9.0, "%")]) == "1 of 2 floors met"


@pytest.mark.parametrize("name", ["redis", "zset"])
def test_a_missing_program_is_named_with_its_package(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    without = [flag for flag in OURS_ONLY if not flag.endswith(f"={name}")]
    assert main.main(["bench", "cost", "--quick", *without]) == 2
    assert capsys.readouterr().err == (
        f"liveness: {name} is measured too, and redis-server is not installed: "
        f"apt install redis-server, or leave it out with --without {name}\n"
    )


def test_cluster_names_the_program_that_it_misses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main.main(["bench", "cluster", "--quick"]) == 2
    assert capsys.readouterr().err == (
        "liveness: cluster cannot be measured: redis-server is not installed: "
        "apt install redis-server\n"
    )


def test_what_does_not_fit_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system_kinds, "available_bytes", lambda: 4_000_000_000)
    sizes = (100, 2_000_000, 5_000_000)
    it = plan(replace(QUICK, sizes=sizes, without=("redis", "zset", "valkey")))
    assert it.runs == [
        (100, "liveness"),
        (100, "reference"),
        (100, "asyncio"),
        (2_000_000, "liveness"),
        (2_000_000, "asyncio"),
    ]
    assert it.left_out == [
        "redis: by --without",
        "zset: by --without",
        "valkey: by --without",
        "reference, 2,000,000 users: measured with at most 1,000,000",
        "5,000,000 users: there is memory for 4,000,000",
    ]


def test_valkey_is_measured_only_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    others = tuple(name for name in COMPARED_SYSTEMS if name != "valkey")
    options = replace(QUICK, sizes=(100,), without=others)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert plan(options).runs == [(100, "liveness")]
    assert plan(options).left_out[-1] == "valkey: valkey-server is not installed"
    assert system_kinds.missing_program(options) == ""
    server = tmp_path / "valkey-server"
    server.touch(mode=0o700)
    assert plan(options).runs == [(100, "liveness"), (100, "valkey")]


def test_the_systems_of_the_help_are_those_that_can_be_measured() -> None:
    assert [*KINDS] == ["liveness", *COMPARED_SYSTEMS]


# --- how they compare ---------------------------------------------------------------------

MILLION, FOUR = 1_000_000, 4_000_000
COSTS = [
    Figure("cost", name, value, unit, system=system, users=users)
    for system, users, singles_ns, batches_ns, memory_bytes in (
        ("liveness", 100_000, 250.0, 100.0, 200.0),
        ("liveness", MILLION, 300.0, 120.0, 210.0),
        ("redis", MILLION, 1_500.0, math.nan, 140.0),
        ("liveness", FOUR, 400.0, 150.0, 220.0),
        ("redis", FOUR, 1_600.0, math.nan, 110.0),
    )
    for name, value, unit in (
        ("server CPU an event, one-uid frames", singles_ns, "ns"),
        ("server CPU an event, batches", batches_ns, "ns"),
        ("memory a user", memory_bytes, "B"),
    )
    if math.isfinite(value)
]
SINGLES = "SETEX's server CPU an event / ours, one-uid frames"
BATCHES = "SETEX's server CPU an event / ours, batches"
MEMORY = "memory a user / redis-server's"
GROWTH = "server CPU an event / that with 100,000, batches"
GROWTH_TO_TEN = "server CPU an event / that with 1,000,000, batches"


def compared(
    figures: Sequence[Figure], options: BenchOptions
) -> dict[tuple[int | None, str], tuple[float, bool | None]]:
    return {
        (it.users, it.name): (it.value, it.is_met) for it in ratios(figures, options)
    }


def test_a_ratio_is_how_many_times_ours_redis_costs_and_its_memory_in_ours() -> None:
    assert compared(COSTS, full_options(MILLION)) == {
        (MILLION, SINGLES): (5.0, True),
        (MILLION, BATCHES): (12.5, True),
        (MILLION, MEMORY): (1.5, False),
        (FOUR, SINGLES): (4.0, None),
        (FOUR, BATCHES): (1_600.0 / 150.0, None),
        (FOUR, MEMORY): (2.0, None),
        (FOUR, GROWTH): (1.5, True),
    }


def test_a_promise_that_was_not_measured_is_missed_unless_redis_was_left_out() -> None:
    options = replace(full_options(MILLION), sizes=(10_000,))
    found = compared([], options)
    assert {*found} == {
        *((MILLION, name) for name in (SINGLES, BATCHES, MEMORY)),
        (FOUR, GROWTH),
    }
    assert all(math.isnan(value) and met is False for value, met in found.values())
    assert {*compared([], replace(options, without=("redis",)))} == {(FOUR, GROWTH)}
    assert compared([], full_options(100_000)) == {}
    assert (10 * MILLION, GROWTH_TO_TEN) in compared([], full_options(10 * MILLION))
    assert (MILLION, SINGLES) in compared(
        [], replace(full_options(100), sizes=(MILLION,))
    )
