"""The figures in `docs/performance.md`: it says what the reports say, and no more."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from liveness.lab.bench import SCENARIOS, BenchOptions, full_options
from liveness.lab.bench.performance import (
    BEGIN,
    END,
    NOTHING,
    PAGE,
    PLOTS,
    RESULTS,
    PerformanceReport,
    command,
    digest,
    has_others,
    reports,
    section,
)
from liveness.lab.common.figures import Figure

MACHINE = {
    "cpu": "a processor",
    "cores": 2,
    "memory_mb": 16_000,
    "load_before": [0.1, 0.2, 0.3],
    "disk": "ext4 on /dev/sda",
    "kernel": "6.1",
    "python": "3.11.7",
    "wheel": "reference",
    "trio": "0.35.0",
    "msgpack": "1.2.4",
    "sqlite": "3.40.1",
    "redis": "7.0.15",
    "huge_pages": "madvise",
}
FIGURES = [
    Figure("silence", "all decided", 21.5, "s", 20.0),
    Figure("silence", "early offlines", 0, "", 0.0),
    Figure("silence", "missing", 2, "", 0.0),
    *(
        Figure("cost", name, value, unit, system=system, users=1_000_000)
        for system, value in (("liveness", 250.0), ("redis", 1_250.0))
        for name, unit in (
            ("server CPU an event, one-uid frames", "ns"),
            ("memory a user", "B"),
        )
    ),
    Figure("cost", "a ratio", 5.0, "x", least=4.0, users=1_000_000),
    *(
        Figure("lateness", name, value, unit, system="redis", users=1_000_000)
        for name, value, unit in (
            ("fell silent", 10_000, ""),
            ("told within 60 s", 105, ""),
            ("told p99", 59_000.0, "ms"),
        )
    ),
]


def report(
    figures: list[Figure], options: BenchOptions, *scenarios: str
) -> PerformanceReport:
    parameters: dict[str, Any] = {"scenarios": list(scenarios or SCENARIOS)}
    content = {
        "liveness": "0.1.0",
        "date": "2026-11-20T10:00:00Z",
        "machine": MACHINE,
        "parameters": parameters | asdict(options),
        "left_out": ["10,000,000 users: there is memory for 9"],
    }
    return PerformanceReport(content, figures)


def cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_says_what_the_reports_committed_say() -> None:
    _, _, rest = PAGE.read_text().partition(BEGIN)
    written, end, _ = rest.partition(END)
    assert end
    assert written == section(reports())


def test_the_plots_are_of_the_reports_committed() -> None:
    figures = [figure for run in reports() for figure in run.figures]
    drawn = {path.name for path in RESULTS.glob("*.svg")}
    assert drawn == ({*PLOTS} if has_others(figures) else set())
    for name in drawn:
        assert digest() in (RESULTS / name).read_text()


def test_without_a_report_it_says_so() -> None:
    assert section([]) == NOTHING


def test_each_promise_is_beside_what_was_measured_and_a_miss_is_told() -> None:
    rows = cells(section([report(FIGURES, full_options(1_000_000))]))
    assert ["1,000,000", "silence: all decided", "≤ 20 s", "21.5 s", "MISSED"] in rows
    assert ["1,000,000", "cost: a ratio", "≥ 4 x", "5 x", "met"] in rows
    told = "silence: early, false or missing"
    assert ["1,000,000", told, "≤ 0", "2", "MISSED"] in rows


def test_each_system_has_a_row_and_what_was_not_measured_is_left_empty() -> None:
    rows = cells(section([report(FIGURES, full_options(1_000_000))]))
    (ours,) = (row for row in rows if row[1] == "the sidecar")
    (redis,) = (row for row in rows if row[1].startswith("redis-server, a key"))
    assert ours[2:] == ["250 ns", "", "", "250 B", "", "", "", ""]
    assert redis[-3:] == ["59,000 ms", "105", "10,000"]


def test_the_figures_of_etcd_stay_with_the_date_of_their_report() -> None:
    figure = Figure("cost", "memory a user", 3_088.0, "B", system="etcd", users=10_000)
    text = section([report([*FIGURES, figure], full_options(1_000_000))])
    assert "etcd was measured on 2026-11-20;" in text
    (etcd,) = (row for row in cells(text) if row[1].startswith("etcd"))
    assert etcd[5] == "3,088 B"


def test_the_machine_and_what_was_left_out_are_told() -> None:
    text = section([report(FIGURES, full_options(1_000_000))])
    assert "2 cores (a processor), 16,000 MB, ext4 on /dev/sda, Linux 6.1" in text
    assert "redis 7.0.15" in text
    assert "etcd" not in text
    assert "Left out: 10,000,000 users: there is memory for 9." in text


def test_of_a_run_of_a_part_only_that_is_said() -> None:
    idle = [Figure("idle", "memory", 50.0, "MB", 80.0)]
    text = section([report(idle, full_options(100_000), "idle")])
    assert cells(text)[2:] == [
        ["100,000", "idle: memory", "≤ 80 MB", "50 MB", "met"],
    ]
    assert "![" not in text


@pytest.mark.parametrize(
    ("scenarios", "options", "words"),
    [
        ([*SCENARIOS], full_options(1_000_000), "--users 1000000"),
        (["idle"], full_options(100_000), "idle --users 100000"),
        (
            ["cost"],
            BenchOptions(
                rate=5, timeout_s=2.5, sizes=(100, 200), without=("zset", "redis")
            ),
            "cost --users 100000 --rate 5 --timeout 2.5 --sizes 100,200"
            " --without zset --without redis",
        ),
    ],
)
def test_the_command_gives_the_same_run_again(
    scenarios: list[str], options: BenchOptions, words: str
) -> None:
    told = command({"scenarios": scenarios, **asdict(options)})
    assert shlex.split(told) == [
        *("liveness", "bench"),
        *words.split(),
        *("--json", "report.json"),
    ]


def test_a_report_as_it_was_written_becomes_its_figures_again(tmp_path: Path) -> None:
    run = report(FIGURES, full_options(1_000_000))
    figures = [figure.as_map() for figure in run.figures]
    content = {**run.content, "figures": figures}
    (tmp_path / "a.json").write_text(json.dumps(content))
    (found,) = reports(tmp_path)
    assert found.figures == FIGURES
    before = digest(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(content, indent=1))
    assert digest(tmp_path) != before


@pytest.mark.slow
def test_a_plot_is_the_same_bytes_again_and_names_its_reports(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="make setup LEVEL=dev brings it")
    from liveness.lab.bench.performance import draw

    drawn = []
    for place in (tmp_path / "1", tmp_path / "2"):
        place.mkdir()
        draw(FIGURES, place, "abc123")
        drawn.append({path.name: path.read_bytes() for path in place.iterdir()})
    assert drawn[0] == drawn[1]
    assert {*drawn[0]} == {*PLOTS}
    assert all(b"abc123" in plot for plot in drawn[0].values())
    assert b"105 of 10,000" in drawn[0]["lateness.svg"]
