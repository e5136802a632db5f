"""Whether two processes have the same clock, by which connections are compared."""

import pytest

from liveness.core.records import SAME_CLOCK_S, HostReading, HostTime

OURS = HostReading(HostTime(monotonic_s=1_000.0, unix_s=50_000.0), offset=400.0)


@pytest.mark.parametrize(
    ("shift_s", "offset"),
    [
        (0.0, -400.0),
        (SAME_CLOCK_S - 0.001, -400.0),
        (SAME_CLOCK_S + 0.001, None),
        (-3_600.0, None),
    ],
)
def test_a_moment_on_another_clock_is_not_one_on_ours(
    shift_s: float, offset: float | None
) -> None:
    theirs = HostTime(monotonic_s=1_007.0 + shift_s, unix_s=50_007.0)
    assert OURS.offset_of(theirs) == offset
