"""The bench, tiny: that it measures everything promised, never how fast this is."""

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from liveness.bench.figures import Figure, as_table
from liveness.bench.load import Moment, Notices
from liveness.bench.scenarios import SCENARIOS
from liveness.bench.verdict import judge, quantile

# What is promised: which figure of which scenario may reach how much of what.
PROMISED = {
    ("idle", "ready after exec"): "≤ 1 s",
    ("idle", "memory"): "≤ 80 MB",
    ("idle", "server CPU"): "≤ 1 %",
    ("logins", "all on disk"): "≤ 4 s",
    ("steady", "decided p99"): "≤ 50 ms",
    ("steady", "early offlines"): "≤ 0",
    ("steady", "server CPU"): "≤ 10 %",
    ("silence", "all decided"): "≤ 8 s",
    ("silence", "all delivered"): "≤ 8 s",
    ("silence", "all acknowledged"): "≤ 8 s",
    ("silence", "early offlines"): "≤ 0",
    ("silence", "memory growth"): "≤ 100 MB",
    ("restart", "ready after a planned stop"): "≤ 1 s",
    ("restart", "ready after kill -9"): "≤ 1 s",
    ("restart", "stopped after SIGTERM"): "≤ 5 s",
}
MISTAKES = {"early offlines", "false offlines", "missing"}


@dataclass
class Run:
    """What one run of the bench left behind."""

    code: int
    table: str
    report: dict[str, Any]
    temporary: Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("bench")
    temporary = folder / "t"
    temporary.mkdir()
    command = [sys.executable, "-m", "liveness.bench"]
    command += ["--json", str(folder / "report")]
    command += ["--users", "500", "--rate", "500", "--seconds", "2", "--timeout", "3"]
    ran = subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(temporary), "LIVENESS_TIMEOUT_S": "oops"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode in (0, 1), ran.stderr
    report = json.loads((folder / "report").read_text())
    return Run(ran.returncode, ran.stdout, report, temporary)


@pytest.mark.slow
def test_every_scenario_gives_its_figures_and_each_is_a_finite_number(run: Run) -> None:
    figures = run.report["figures"]
    assert [*dict.fromkeys(figure["scenario"] for figure in figures)] == [*SCENARIOS]
    assert all(math.isfinite(figure["value"]) for figure in figures)


@pytest.mark.slow
def test_nobody_is_early_false_or_missing(run: Run) -> None:
    mistakes = [it for it in run.report["figures"] if it["name"] in MISTAKES]
    assert {it["name"] for it in mistakes} == MISTAKES
    assert [it for it in mistakes if it["value"]] == []


@pytest.mark.slow
def test_the_table_names_every_promised_floor_and_whether_it_was_met(run: Run) -> None:
    found, scenario = {}, ""
    for line in run.table.splitlines()[2:]:
        scenario = line.split()[0] if not line.startswith(" ") else scenario
        cells = [cell.strip() for cell in line.removeprefix(scenario).split("  ")]
        name, _value, *rest = [cell for cell in cells if cell]
        if rest:
            floor, verdict = rest
            assert verdict in ("met", "MISSED")
            found[scenario, name] = floor
    assert found.items() >= PROMISED.items()


@pytest.mark.slow
def test_the_exit_code_says_whether_a_floor_was_missed(run: Run) -> None:
    assert run.code == (0 if all(it["met"] for it in run.report["figures"]) else 1)


@pytest.mark.slow
def test_the_report_tells_the_machine(run: Run) -> None:
    facts = run.report["machine"]
    assert {"cores", "cpu", "memory_mb", "kernel", "python", "wheel", "date"} <= {
        *facts
    }
    assert all(facts.values())


@pytest.mark.slow
def test_nothing_is_left_in_the_temporary_folder(run: Run) -> None:
    assert [*run.temporary.iterdir()] == []


TIMEOUT_S = 10.0
LAST = Moment(mono=100.0, wall_ms=5_000_000.0)
DUE_MS = 5_010_000


def offline(uid: str, *, at_ms: int = DUE_MS, reason: str = "silence") -> Notices:
    record = {"kind": "offline", "uid": uid, "reason": reason, "at": at_ms}
    return Notices(110.0 + (at_ms - DUE_MS) / 1000, [record])


def test_lateness_counts_from_the_last_sign_of_life_and_the_timeout() -> None:
    verdict = judge([offline("a", at_ms=DUE_MS + 20)], {"a": LAST}, timeout_s=TIMEOUT_S)
    assert verdict.decided_s == [pytest.approx(0.02)]
    assert verdict.delivered_s == [pytest.approx(0.02)]
    assert (verdict.early, verdict.false, verdict.missing) == (0, 0, 0)


def test_an_offline_more_than_the_stamps_millisecond_too_soon_is_early() -> None:
    notices = [offline("a", at_ms=DUE_MS), offline("b", at_ms=DUE_MS - 2)]
    silent = {"a": LAST, "b": LAST}
    assert judge(notices, silent, timeout_s=TIMEOUT_S).early == 1


def test_whoever_was_not_silent_is_false_and_so_is_a_second_offline() -> None:
    notices = [
        offline("a"),
        offline("a"),
        offline("speaks"),
        offline("b", reason="logout"),
    ]
    assert judge(notices, {"a": LAST, "b": LAST}, timeout_s=TIMEOUT_S).false == 3


def test_whoever_was_silent_and_is_not_reported_is_missing() -> None:
    silent = {"a": LAST, "b": LAST}
    assert judge([offline("a")], silent, timeout_s=TIMEOUT_S).missing == 1


def test_a_quantile_is_a_value_that_occurred_and_none_of_nothing() -> None:
    assert quantile([*range(1, 101)], 0.99) == 99
    assert quantile([7.0], 0.99) == 7.0
    assert math.isnan(quantile([], 0.5))


@pytest.mark.parametrize(
    ("value", "verdict"), [(50.0, "met"), (50.1, "MISSED"), (math.nan, "MISSED")]
)
def test_a_floor_may_be_reached_and_not_passed(value: float, verdict: str) -> None:
    figure = Figure("steady", "decided p99", value, "ms", 50.0)
    assert as_table([figure]).splitlines()[1].endswith(verdict)


def test_a_figure_without_a_floor_has_no_verdict() -> None:
    figure = Figure("steady", "load CPU", 9.0, "%")
    assert figure.is_met
    assert as_table([figure]).splitlines()[1].endswith("9 %")
