"""Figures beside their floors, as text and in a report."""

import math

import pytest

from liveness.lab.common.figures import Figure, as_table, summary


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
