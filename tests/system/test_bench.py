"""The bench, tiny, with real processes: that it measures everything promised."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from liveness.lab.bench import QUICK
from liveness.lab.bench.suite import SCENARIOS
from liveness.lab.bench.systems import COMPARED_SYSTEMS
from liveness.lab.common.figures import OURS
from tests.helpers.tree import ROOT

SCHEMA = json.loads((ROOT / "liveness/lab/bench/report.schema.json").read_text())
END_S = 60  # long after everything here has happened

MISTAKES = {"early offlines", "false offlines", "missing"}
MISTAKES |= {"sessions lost", "logouts lost"}
pytestmark = pytest.mark.slow


# --- as a process -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of the bench left behind."""

    code: int
    out: str
    err: str
    report: dict[str, Any]
    temporary: Path


def started(temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "liveness", "bench", "--quick", *arguments],
        env={**os.environ, "TMPDIR": str(temporary), "LIVENESS_TIMEOUT_S": "oops"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(bench: subprocess.Popen[str], text: str) -> str:
    """Its output up to a line with *text*."""
    assert bench.stderr
    said = ""
    while text not in said and (line := bench.stderr.readline()):
        said += line
    assert text in said
    return said


def running_in(folder: Path) -> list[int]:
    """The processes that work in *folder*."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):  # ended by now
            if str(folder) in path.read_text(errors="replace"):
                found.append(int(path.parent.name))
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("bench")
    report = folder / "report"
    with started(folder / "t", "--json", str(report)) as bench:
        out, err = bench.communicate(timeout=3 * END_S)
    assert bench.returncode in (0, 1), err
    return Run(bench.returncode, out, err, json.loads(report.read_text()), folder / "t")


def test_the_report_has_finite_figures_of_every_scenario_and_keeps_its_schema(
    run: Run,
) -> None:
    jsonschema.validate(run.report, SCHEMA)
    assert run.report["parameters"]["users"] == QUICK.users
    assert run.report["parameters"]["scenarios"] == [*SCENARIOS]
    figures = run.report["figures"]
    systems = {one["system"] for one in figures}
    assert systems >= {OURS, *COMPARED_SYSTEMS} - {"valkey"}
    assert [*dict.fromkeys(figure["scenario"] for figure in figures)] == [*SCENARIOS]
    assert all(math.isfinite(figure["value"]) for figure in figures)
    early = {one["value"] for one in figures if one["name"] == "reported too early"}
    assert early == {0}
    met = all(figure["met"] is not False for figure in figures)
    assert (run.code, run.report["met"]) == ((0, True) if met else (1, False))


def test_nobody_is_early_false_or_missing(run: Run) -> None:
    figures = [(row["name"], row["value"]) for row in run.report["figures"]]
    mistakes = {figure for figure in figures if figure[0] in MISTAKES}
    assert mistakes == {(name, 0) for name in MISTAKES}


def test_without_a_terminal_progress_is_lines_and_nothing_is_left_behind(
    run: Run,
) -> None:
    said = [line.split(":")[0] for line in run.err.splitlines()]
    places = [f"{n}/{len(SCENARIOS)} {name}" for n, name in enumerate(SCENARIOS, 1)]
    assert [*dict.fromkeys(said)] == places
    assert [*run.temporary.iterdir()] == []
    assert running_in(run.temporary) == []


def test_a_signal_ends_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    with started(temporary, "logins", "idle") as bench:
        until(bench, "2/2 idle: nothing happens")
        assert running_in(temporary)
        bench.send_signal(signal.SIGTERM)
        out, err = bench.communicate(timeout=END_S)
    assert (bench.returncode, err) == (143, "")
    assert re.search(r"^logins +all durable ", out, re.M)  # what there was is shown
    assert [*temporary.iterdir()] == []
    assert running_in(temporary) == []


# --- other systems
