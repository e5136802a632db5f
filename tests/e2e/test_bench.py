"""The bench, tiny: that it measures everything promised, never how fast this is."""

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from liveness import cli
from liveness.bench import OTHERS, QUICK, SCENARIOS, full
from liveness.bench.figures import Figure, as_table, summary
from liveness.bench.floors import Floors, floors, promised
from liveness.bench.load import Moment, Notices
from liveness.bench.progress import passing, shown
from liveness.bench.run import MEASURED
from liveness.bench.verdict import judge, quantile

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "liveness/bench/report.schema.json").read_text())
END_S = 60  # long after everything here has happened

# What is promised of up to 100,000 users at any load: which figure of which scenario may
# reach how much of what.
PROMISED = {
    ("idle", "ready after exec"): "≤ 1 s",
    ("idle", "memory"): "≤ 80 MB",
    ("idle", "server CPU"): "≤ 1 %",
    ("logins", "all on disk"): "≤ 4 s",
    ("steady", "decided p99"): "≤ 50 ms",
    ("steady", "early offlines"): "≤ 0",
    ("silence", "all decided"): "≤ 8 s",
    ("silence", "all delivered"): "≤ 8 s",
    ("silence", "all acknowledged"): "≤ 8 s",
    ("silence", "early offlines"): "≤ 0",
    ("silence", "memory growth"): "≤ 100 MB",
    ("silence", "others decided p99"): "≤ 200 ms",
    ("silence", "others delivered p99"): "≤ 500 ms",
    ("day", "others decided p99"): "≤ 50 ms",
    ("day", "others decided p99 while all are listed"): "≤ 100 ms",
    ("day", "others delivered p99 while all are listed"): "≤ 100 ms",
    ("day", "missing in that list"): "≤ 0",
    ("day", "core: others decided p99 at a border"): "≤ 50 ms",
    ("restart", "ready after a planned stop"): "≤ 1 s",
    ("restart", "ready after kill -9"): "≤ 1 s",
    ("restart", "stopped after SIGTERM"): "≤ 5 s",
    ("restart", "late beyond that p99"): "≤ 0.1 s",
    ("restart", "late beyond that, if due at once"): "≤ 2.5 s",
    ("restart", "late beyond that and a timeout p99"): "≤ 0.1 s",
    ("restart", "logins lost under load"): "≤ 0",
    ("restart", "logouts lost under load"): "≤ 0",
    ("timers", "ready with them"): "≤ 5 s",
    ("timers", "memory growth with them"): "≤ 300 MB",
    ("timers", "asked for a second"): "≥ 10,000",
    ("timers", "and cancelled a second"): "≥ 10,000",
    ("timers", "cancelled that fired"): "≤ 0",
    ("timers", "others decided p99"): "≤ 50 ms",
    ("timers", "fired p99, 1,000 a second"): "≤ 50 ms",
    ("timers", "early, of a steady flow"): "≤ 0",
    ("timers", "500 due together"): "≤ 8 s",
    ("timers", "missing, due together"): "≤ 0",
    ("client", "asyncio: keepalive"): "≤ 400 ns",
    ("client", "trio: message"): "≤ 400 ns",
    ("client", "asyncio: library CPU"): "≤ 2 %",
    ("client", "trio: library CPU"): "≤ 2 %",
}
MISTAKES = {"early offlines", "false offlines", "missing"}
MISTAKES |= {f"{it} under load" for it in ("early", "false", "missing")}
MISTAKES |= {"logins lost under load", "logouts lost under load"}
MILLION = Floors(
    logins_s=15.0,
    delivered_ms=100.0,
    silence_s=20.0,
    silence_mb=250.0,
    ready_s=5.0,
    patience_s=40.0,
)

# The same command line, with a floor that nothing can keep.
IMPATIENT = """
import sys
from liveness import cli
from liveness.bench import scenarios

scenarios.IDLE_READY_S = 0.0
sys.exit(cli.main(sys.argv[1:]))
"""


# --- as a process -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of the bench left behind."""

    code: int
    out: str
    err: str
    report: dict[str, Any]
    temporary: Path


def started(
    temporary: Path, *arguments: str, program: tuple[str, ...] = ("-m", "liveness")
) -> subprocess.Popen[str]:
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, *program, "bench", "--quick", *arguments],
        env={**os.environ, "TMPDIR": str(temporary), "LIVENESS_TIMEOUT_S": "oops"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(bench: subprocess.Popen[str], told: str) -> str:
    """What it said until it told of *told*."""
    assert bench.stderr
    said = ""
    while told not in said and (line := bench.stderr.readline()):
        said += line
    assert told in said
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
    # One other system: each of the rest has its own run in test_bench_others.py.
    without = [f"--without={name}" for name in OTHERS if name != "redis"]
    with started(folder / "t", "--json", str(report), *without) as bench:
        out, err = bench.communicate(timeout=3 * END_S)
    assert bench.returncode in (0, 1), err
    return Run(bench.returncode, out, err, json.loads(report.read_text()), folder / "t")


@pytest.mark.slow
def test_every_scenario_gives_its_figures_and_each_is_a_finite_number(run: Run) -> None:
    figures = run.report["figures"]
    assert run.report["left_out"] == [
        f"{name}: by --without" for name in OTHERS if name != "redis"
    ]
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
    lines = run.out.split("\n\n")[0].splitlines()
    (head,) = (at for at, line in enumerate(lines) if line.startswith("scenario "))
    for line in lines[head + 1 :]:
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
    met = all(it["met"] is not False for it in run.report["figures"])
    assert (run.code, run.report["met"]) == ((0, True) if met else (1, False))


@pytest.mark.slow
def test_the_report_is_as_its_schema_says(run: Run) -> None:
    jsonschema.validate(run.report, SCHEMA)
    assert run.report["parameters"]["users"] == QUICK.users
    assert run.report["parameters"]["scenarios"] == [*SCENARIOS]
    assert all(run.report["machine"].values())


@pytest.mark.slow
def test_what_it_does_is_told_line_by_line_where_there_is_no_terminal(run: Run) -> None:
    told = [line.split(":")[0] for line in run.err.splitlines()]
    places = [f"{n}/{len(SCENARIOS)} {name}" for n, name in enumerate(SCENARIOS, 1)]
    assert [*dict.fromkeys(told)] == places


@pytest.mark.slow
def test_nothing_is_left_in_the_temporary_folder_and_no_process(run: Run) -> None:
    assert [*run.temporary.iterdir()] == []
    assert running_in(run.temporary) == []


@pytest.mark.slow
def test_a_missed_floor_is_shown_and_ends_it_with_1(tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    program = ("-c", IMPATIENT)
    with started(tmp_path / "t", "idle", "--json", "-", program=program) as bench:
        out, err = bench.communicate(timeout=END_S)
    assert bench.returncode == 1
    assert re.search(r"^idle +ready after exec .* ≤ 0 s +MISSED$", err, re.M)
    report = json.loads(out)
    jsonschema.validate(report, SCHEMA)
    assert report["met"] is report["figures"][0]["met"] is False
    assert before <= datetime.fromisoformat(report["date"]) <= datetime.now(UTC)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143)],
)
def test_a_signal_ends_it_and_leaves_nothing_behind(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    temporary = tmp_path / "t"
    with started(temporary, "logins", "idle") as bench:
        until(bench, "2/2 idle: nothing happens")
        assert running_in(temporary)
        bench.send_signal(number)
        out, err = bench.communicate(timeout=END_S)
    assert (bench.returncode, err) == (code, "")
    assert re.search(r"^logins +all on disk ", out, re.M)  # what there was is shown
    assert [*temporary.iterdir()] == []
    assert running_in(temporary) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "stage"),
    [
        ("silence", "everyone is silent"),
        ("client", "trio: users chat, with the library"),
    ],
)
def test_a_sidecar_that_is_lost_ends_it_with_its_last_lines(
    scenario: str, stage: str, tmp_path: Path
) -> None:
    temporary = tmp_path / "t"
    with started(temporary, scenario) as bench:
        until(bench, stage)
        (sidecar,) = (
            pid
            for pid in running_in(temporary)
            if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(sidecar, signal.SIGKILL)
        _, err = bench.communicate(timeout=END_S)
    assert bench.returncode == 1
    *log, last = err.splitlines()
    assert last == (
        f"liveness: {scenario} could not be measured: it ended with code -9"
    )
    assert '"event": "ready"' in "".join(log)
    assert [*temporary.iterdir()] == []


def test_options_that_do_not_go_together_are_a_line_that_says_what_would(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["bench", "steady", "--quick", "--rate", "10"]) == 2
    assert capsys.readouterr() == (
        "",
        "liveness: 10 frames a second are too few for 100 users who speak every 1.5 s; "
        "use --rate 68 or more\n",
    )


def test_a_million_users_have_floors_of_their_own_and_more_have_none() -> None:
    assert floors(100) is floors(100_000)
    assert floors(100_001) == floors(1_000_000) == MILLION
    assert floors(1_000_001) == Floors()


@pytest.mark.parametrize("other", [{"rate": 1}, {"seconds": 1.0}, {"timeout_s": 5.0}])
def test_what_depends_on_the_load_is_promised_of_the_usual_one_only(
    other: dict[str, Any],
) -> None:
    usual = full(100_000)
    assert promised(usual) is floors(100_000)
    assert promised(usual).speaking_cpu_percent == 3.0
    assert promised(usual).steady_cpu_percent == 10.0
    assert promised(replace(usual, **other)) == replace(
        floors(100_000), speaking_cpu_percent=None, steady_cpu_percent=None
    )
    assert promised(replace(full(1_000_000), **other)).delivered_ms is None


def test_the_run_of_a_million_has_their_rate_and_their_sizes() -> None:
    run = full(1_000_000)
    assert (run.users, run.rate) == (1_000_000, 33_000)
    assert run.sizes == (10_000, 100_000, 1_000_000, 4_000_000)
    assert full(100_000).rate == 3_000


def test_every_scenario_of_the_help_can_be_measured() -> None:
    assert [*MEASURED] == [*SCENARIOS]


# --- progress -----------------------------------------------------------------------------


def test_on_a_terminal_a_bar_shows_how_far_it_is_and_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as out, shown(out) as stage:
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
    with shown(out) as stage:
        stage("everyone logs in", None)
        stage("everyone is silent", lambda: 0.5)
    assert out.getvalue() == "everyone logs in\neveryone is silent\n"


def test_time_passes_as_a_share_of_a_window() -> None:
    share = passing(1e9)
    assert share is not None
    assert 0 <= share() < 1e-6


# --- verdicts -----------------------------------------------------------------------------


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
