"""When a request that failed is sent again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.service.outlets.webhooks.retry_ladder import asked_wait_s, next_try
from tests.helpers.strategies import BOUNDED

WAITS = (10.0, 20.0, 40.0)
NOW_MS = 1_795_668_168_000


@pytest.mark.parametrize(
    ("rung", "asked_s", "expected"),
    [
        (0, None, (10.0, 1)),
        (2, None, (40.0, 3)),
        (3, None, None),
        (3, 5.0, None),
        (0, 3.0, (10.0, 1)),
        (0, 10.0, (10.0, 1)),
        (0, 11.0, (11.0, 2)),
        (0, 31.0, (31.0, 3)),
        (0, 1e9, (70.0, 3)),
    ],
)
def test_a_wait_uses_up_as_many_rungs_as_last_that_long(
    rung: int, asked_s: float | None, expected: tuple[float, int] | None
) -> None:
    assert next_try(WAITS, rung, asked_s=asked_s, drawn=0) == expected


def test_a_wait_is_lengthened_by_up_to_a_tenth() -> None:
    found = next_try(WAITS, 1, asked_s=None, drawn=1)
    assert found is not None
    assert found.wait_s == pytest.approx(22.0)


@BOUNDED
@given(
    st.lists(st.floats(0.1, 86_400), max_size=20),
    st.lists(st.none() | st.floats(0, 1e9), min_size=21),
    st.floats(0, 1),
)
def test_no_receiver_makes_a_ladder_longer(
    waits_s: list[float], asked: list[float | None], drawn: float
) -> None:
    rung, waited_s, attempts = 0, 0.0, 1
    while found := next_try(waits_s, rung, asked_s=asked[attempts], drawn=drawn):
        assert found.rung > rung
        waited_s, rung, attempts = waited_s + found.wait_s, found.rung, attempts + 1
    assert rung == len(waits_s)
    assert waited_s <= sum(waits_s) * 1.1 + 1e-6


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Thu, 26 Nov 2026 04:43:48 GMT", 60.0),
        ("Thu, 26 Nov 2026 04:40:00 GMT", 0.0),
        ("-1", None),
        ("soon", None),
        ("1.5", None),
        ("²", None),
        ("Thu, 99 Nov 2026 04:40:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, expected: float | None) -> None:
    assert asked_wait_s(header, NOW_MS) == expected
