"""Figures beside their floors."""

import math

import pytest

from liveness.lab.common.figures import Figure, summary


@pytest.mark.parametrize(
    ("value", "is_met"), [(50.0, True), (50.1, False), (math.nan, False)]
)
def test_a_floor_may_be_reached_and_not_passed(value: float, *, is_met: bool) -> None:
    figure = Figure("steady", "decided p99", value, "ms", 50.0)
    assert figure.is_met is is_met
    without_floor = Figure("steady", "load CPU", value, "%")
    assert summary([figure, without_floor]) == f"{int(is_met)} of 1 floors met"
