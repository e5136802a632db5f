"""`liveness bench guard`: what is compared, and what counts as worse."""

import json
import math
from pathlib import Path

import pytest

from liveness.cli import main
from liveness.lab.bench.cost import MORE_IS_BETTER
from liveness.lab.bench.regression import REPORT, USERS, GuardError, earlier, verdict
from liveness.lab.common.figures import Figure

SINGLES, BATCHES, MEMORY = MORE_IS_BETTER
BEFORE = {SINGLES: 8.0, BATCHES: 10.0, MEMORY: 1.0}


def ratios(*values: float, users: int = USERS) -> list[Figure]:
    return [
        Figure("cost", name, value, "x", users=users)
        for name, value in zip(MORE_IS_BETTER, values, strict=True)
    ]


def report_of(path: Path, figures: list[Figure]) -> Path:
    path.write_text(json.dumps({"figures": [figure.as_map() for figure in figures]}))
    return path


def test_ratios_within_the_tolerance_are_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    others = ratios(0.1, 0.1, 9.0, users=10 * USERS)
    assert verdict(BEFORE, [*others, *ratios(16.0, 8.5, 1.19)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{SINGLES}: 8 x before, 16 x now, 50% better: kept",
        f"{BATCHES}: 10 x before, 8.5 x now, 18% worse: kept",
        f"{MEMORY}: 1 x before, 1.19 x now, 19% worse: kept",
        "3 of 3 ratios kept, within 25%",
    ]


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        ((6.0, 10.0, 1.0), [f"{SINGLES}: 8 x before, 6 x now, 33% worse: FELL BEHIND"]),
        (
            (8.0, 10.0, 1.3),
            [f"{MEMORY}: 1 x before, 1.3 x now, 30% worse: FELL BEHIND"],
        ),
        ((8.0, math.nan, 1.0), [f"{BATCHES}: 10 x before, not measured: FELL BEHIND"]),
    ],
    ids=["cpu", "memory", "not-measured"],
)
def test_a_ratio_beyond_the_tolerance_fell_behind(
    now: tuple[float, float, float],
    lines: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert verdict(BEFORE, ratios(*now)) == 1
    *printed, last = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.endswith("FELL BEHIND")] == lines
    assert last == "2 of 3 ratios kept, within 25%"


def test_the_committed_report_has_all_ratios() -> None:
    assert earlier(REPORT).keys() == MORE_IS_BETTER.keys()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        ("text", "is no report"),
        ("[]", "is no report"),
        ('{"figures": []}', f"lacks {SINGLES!r} for 100,000 users"),
    ],
    ids=["missing", "text", "list", "empty"],
)
def test_a_report_that_cannot_be_compared_with_is_refused(
    content: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(GuardError, match=message) as caught:
        earlier(path)
    assert "`liveness bench cost --json FILE`" in str(caught.value)


def test_a_missing_report_or_program_is_a_wrong_call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["bench", "guard", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    report = report_of(tmp_path / "report.json", ratios(8.0, 10.0, 1.0))
    assert main.main(["bench", "guard", str(report)]) == 2
    assert "redis-server is not installed" in capsys.readouterr().err
