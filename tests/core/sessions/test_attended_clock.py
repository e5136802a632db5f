"""Attended time: load counts, absence does not, and each moment of it counts once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.core.sessions.absences import MOST_ABSENCES, Absences
from liveness.core.sessions.attended_clock import (
    ABSENCE_S,
    LONG_ABSENCE_S,
    SLACK_S,
    AttendedClock,
    WindowedMax,
)
from tests.helpers.strategies import BOUNDED

SETTLE_S, PATIENCE_S = 2.0, 10.0


def clock_at(mono: float, cpu: float = 0.0) -> AttendedClock:
    return AttendedClock(
        mono=mono, cpu=cpu, reconnect_grace=SETTLE_S, patience=PATIENCE_S
    )


@pytest.fixture
def clock() -> AttendedClock:
    """A clock made at 100 s of monotonic and 5 s of CPU time."""
    return clock_at(100.0, 5.0)


@pytest.mark.parametrize(
    ("elapsed", "used", "asked", "attended", "stands"),
    [
        pytest.param(0.5, 0.0, 0.5, 0.5, False, id="sleep"),
        pytest.param(30.0, 30.0, 0.0, 30.0, False, id="load"),
        pytest.param(0.5 + SLACK_S, 0.0, 0.5, 0.5 + SLACK_S, False, id="scheduler"),
        pytest.param(0.5, 0.125, 0.125, 0.25 + SLACK_S, False, id="delay"),
        pytest.param(
            0.25 + ABSENCE_S, 0.0, 0.25, 0.25 + SLACK_S, False, id="longest delay"
        ),
        pytest.param(1.0, 0.125, 0.25, 0.125, False, id="absence"),
        pytest.param(60.0, 0.0, 0.5, 0.0, True, id="long absence"),
        pytest.param(LONG_ABSENCE_S + SLACK_S, 0.0, 0.0, 0.0, False, id="less long"),
        pytest.param(
            LONG_ABSENCE_S + SLACK_S + 0.01, 0.0, 0.0, 0.0, True, id="just long"
        ),
    ],
)
def test_load_and_sleep_are_attended_and_an_absence_is_not(
    elapsed: float, used: float, asked: float, attended: float, stands: bool
) -> None:
    clock = clock_at(0.0)
    now = clock.turn(mono=elapsed, cpu=used, asked=asked)
    assert now == clock.now == pytest.approx(attended)
    assert clock.unattended == pytest.approx(elapsed - attended)
    assert clock.is_paused == stands


def test_time_before_the_clock_began_is_not_attended(clock: AttendedClock) -> None:
    clock.begin(mono=107.0, cpu=11.0)
    assert (clock.now, clock.unattended, clock.is_paused) == (0.0, 7.0, False)
    assert clock.turn(mono=107.5, cpu=11.25, asked=0.25) == 0.5


def test_a_clock_that_stands_goes_on_when_all_are_read_and_settled(
    clock: AttendedClock,
) -> None:
    clock.turn(mono=160.0, cpu=5.0, asked=0.5)
    clock.turn(mono=161.75, cpu=5.0, asked=2.0)
    clock.resume_if_caught_up(mono=161.75, all_read=True)
    assert clock.is_paused, "gateways had no time yet to send what they collected"
    clock.turn(mono=162.0, cpu=5.0, asked=0.25)
    clock.resume_if_caught_up(mono=162.0, all_read=True)
    assert (clock.is_paused, clock.now, clock.unattended) == (False, 0.0, 62.0)
    assert clock.turn(mono=162.5, cpu=5.0, asked=0.5) == 0.5


def test_a_link_that_cannot_be_read_empty_stops_the_clock_no_longer_than_patience(
    clock: AttendedClock,
) -> None:
    clock.pause(100.0)
    clock.resume_if_caught_up(mono=100.0 + SETTLE_S, all_read=False)
    assert clock.is_paused
    clock.resume_if_caught_up(mono=99.875 + PATIENCE_S, all_read=False)
    assert clock.is_paused
    clock.resume_if_caught_up(mono=100.0 + PATIENCE_S, all_read=False)
    assert not clock.is_paused


def test_a_pause_in_which_gateways_were_not_away_lasts_until_all_is_read(
    clock: AttendedClock,
) -> None:
    clock.pause(100.0, reconnect_grace=0.0)
    clock.resume_if_caught_up(mono=101.0, all_read=False)
    assert clock.is_paused
    clock.resume_if_caught_up(mono=101.0, all_read=True)
    assert not clock.is_paused
    clock.pause(101.0)
    clock.resume_if_caught_up(mono=102.0, all_read=True)
    assert clock.is_paused


def test_a_clock_that_goes_is_not_stopped_by_having_caught_up(
    clock: AttendedClock,
) -> None:
    clock.resume_if_caught_up(mono=100.0, all_read=False)
    assert not clock.is_paused


def test_time_in_which_links_are_left_unread_is_not_attended(
    clock: AttendedClock,
) -> None:
    assert clock.turn(mono=100.5, cpu=5.0, asked=0.5, reading_paused=True) == 0.0
    assert not clock.is_paused
    assert clock.unattended == 0.5
    assert clock.turn(mono=101.0, cpu=5.0, asked=0.5) == 0.5


def test_between_turns_time_goes_on_and_never_back(clock: AttendedClock) -> None:
    clock.turn(mono=100.5, cpu=5.0, asked=0.5)
    assert clock.at(100.75) == 0.75
    assert clock.at(100.5) == 0.5
    assert clock.at(100.25) == 0.5


seconds = st.sampled_from([0.0, 0.01, 0.5, 1.0, 1.0625, 5.0, 3_600.0]) | st.floats(0, 9)


@BOUNDED
@given(
    st.lists(
        st.tuples(seconds, seconds, seconds, st.booleans(), st.booleans()), max_size=30
    )
)
def test_attended_time_is_a_part_of_monotonic_time_and_the_rest_is_counted(
    turns: list[tuple[float, float, float, bool, bool]],
) -> None:
    clock, mono, cpu = clock_at(0.0), 0.0, 0.0
    for elapsed, used, asked, deaf, all_read in turns:
        mono, cpu, before = mono + elapsed, cpu + used, clock.now
        latest = clock.at(mono)
        now = clock.turn(mono=mono, cpu=cpu, asked=asked, reading_paused=deaf)
        assert before <= now <= latest + 1e-9, "a deadline counted from `at` was early"
        assert now - before <= asked + used + SLACK_S + 1e-9
        assert now + clock.unattended == pytest.approx(mono)
        clock.resume_if_caught_up(mono=mono, all_read=all_read)


def test_the_highest_value_is_shown_for_one_to_two_spans() -> None:
    highest = WindowedMax(5.0)
    for value, mono in ((9.0, 1.0), (3.0, 4.0), (2.0, 7.0)):
        highest.note(value, mono)
    shown = [highest.recent(mono) for mono in (8.0, 14.0, 15.0)]
    assert shown == [9.0, 2.0, 0.0]


def absences(*spans: tuple[float, float, str | None]) -> Absences:
    """Since second 0."""
    noted = Absences(0.0)
    for since, until, gateway in spans:
        noted.add(since, until, gateway)
    return noted


def test_time_in_which_a_gateway_or_all_were_not_read_was_not_listened() -> None:
    noted = absences((10, 20, None), (30, 35, "g"), (40, 41, "h"))
    assert noted.listened_s("g", 5, 50) == 45 - 10 - 5
    assert noted.listened_s("h", 5, 50) == 45 - 10 - 1
    assert noted.listened_s("other", 15, 18) == 0


def test_nobody_was_listened_to_before_the_start() -> None:
    assert Absences(100.0).listened_s("g", 40, 110) == 10


def test_absences_that_overlap_count_once() -> None:
    noted = absences((1, 2, None), (10, 20, None), (15, 25, None), (25, 26, None))
    assert noted.listened_s("g", 0, 30) == 30 - 1 - 16


def test_an_absence_within_the_last_one_does_not_shorten_it() -> None:
    noted = absences((10, 20, None), (12, 13, None))
    assert noted.listened_s("g", 0, 30) == 20


def test_many_absences_are_kept_as_fewer_and_none_is_forgotten() -> None:
    many = 3 * MOST_ABSENCES
    noted = absences(*((2.0 * n, 2.0 * n + 1, "g") for n in range(many)))
    assert noted.listened_s("g", 0, 2.0 * many) == many
    # The latest are as they were; what was joined ends where the last of them did.
    assert noted.listened_s("g", 2.0 * many - 4, 2.0 * many) == 2
    until = 2.0 * (many - MOST_ABSENCES) + 1
    assert noted.listened_s("g", 0, until) == until - (many - MOST_ABSENCES + 1)
