"""The bench, tiny, with real processes: that it measures everything promised."""

import json
import math
import os
import sys
from pathlib import Path

import jsonschema
import pytest

from liveness.lab.bench import QUICK
from liveness.lab.bench.suite import SCENARIOS
from liveness.lab.bench.systems import COMPARED_SYSTEMS
from liveness.lab.common.figures import OURS
from tests.helpers.processes import ran
from tests.helpers.tree import ROOT

SCHEMA = json.loads((ROOT / "liveness/lab/bench/report.schema.json").read_text())
MISTAKES = {
    *("early offlines", "false offlines", "missing", "reported too early"),
    *("sessions lost", "logouts lost"),
}


@pytest.mark.slow
def test_each_scenario_has_finite_figures_nobody_is_missed_and_nothing_is_left_behind(
    tmp_path: Path,
) -> None:
    place, temporary = tmp_path / "report", tmp_path / "t"
    temporary.mkdir()
    bench = ran(
        *(sys.executable, "-m", "liveness", "bench", "--quick", "--json", place),
        env={**os.environ, "TMPDIR": str(temporary), "LIVENESS_TIMEOUT_S": "oops"},
        timeout=300,
    )
    report = json.loads(place.read_text())
    jsonschema.validate(report, SCHEMA)
    assert report["parameters"]["users"] == QUICK.users
    figures = report["figures"]
    systems = {figure["system"] for figure in figures}
    assert systems >= {OURS, *COMPARED_SYSTEMS} - {"valkey"}
    assert [*dict.fromkeys(figure["scenario"] for figure in figures)] == [*SCENARIOS]
    assert all(math.isfinite(figure["value"]) for figure in figures)
    mistakes = {(it["name"], it["value"]) for it in figures if it["name"] in MISTAKES}
    assert mistakes == {(name, 0) for name in MISTAKES}
    is_met = all(figure["met"] is not False for figure in figures)
    assert (bench.returncode, report["met"]) == ((0, True) if is_met else (1, False))
    said = [line.split(":")[0] for line in bench.stderr.splitlines()]
    places = [f"{n}/{len(SCENARIOS)} {name}" for n, name in enumerate(SCENARIOS, 1)]
    assert [*dict.fromkeys(said)] == places
    assert [*temporary.iterdir()] == []
