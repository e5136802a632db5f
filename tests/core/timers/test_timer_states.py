"""Rules of timers: when they fire, and what answers and cancels do."""

from itertools import pairwise
from math import nextafter, ulp
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.core.sessions.absences import MOST_ABSENCES
from liveness.core.timer_states import (
    CANCELLED,
    DONE,
    FAIL,
    FAILED,
    FIRED,
    LATE,
    PENDING,
    RETRY_POLICY,
    UNANSWERED,
    CancelTimer,
    RetryPolicy,
)
from liveness.core.timers.timer_commands import TimerTransaction
from liveness.core.wheel.wheel import Wheel
from tests.core.timers_rig import TAKEN_AT_ONCE, Rig
from tests.helpers.strategies import BOUNDED

WheelClass = type[Wheel]

RUN_S: Final = RETRY_POLICY.attempt_ms / 1000
WAITS_S: Final = [wait_ms / 1000 for wait_ms in RETRY_POLICY.waits_ms]
DAY_S: Final = 86_400.0
# A bucket of the ring, and a turn after it.
SOON_S: Final = 0.03


@pytest.fixture
def rig(wheel_class: WheelClass) -> Rig:
    """No timers yet, with the default retry policy."""
    return Rig(wheel_class)


def fired(rig: Rig, key: str = "k", *, ext: str | None = None) -> int:
    """A timer that has just come due; the seq of its record."""
    rig.after(key, 1, ext=ext)
    (record,) = rig.wait(1 + SOON_S)
    return record.seq


def fires_at(rig: Rig, state_s: float) -> int:
    """How many fire at just this moment, with the ring laid ahead of it."""
    rig.to(state_s)
    rig.timetable.advance(rig.now, ahead_s=SOON_S)
    while rig.begin_reading(of_due=False):
        rig.read()
        rig.hand_in()
    rig.begin_reading(of_due=True)
    rig.read()
    return len(rig.hand_in())


def state(rig: Rig, key: str = "k", gateway: str = "g") -> str:
    rig.commit()
    return rig.timer(key, gateway).state


def test_a_timer_fires_once_when_its_time_has_come_and_not_before(rig: Rig) -> None:
    asked_ms = rig.wall_ms
    rig.after("k", 5, "what to do", ext="order-7")
    assert rig.wait(4.999) == []
    (record,) = rig.wait(SOON_S)
    assert record.as_map() == {
        "seq": 1, "kind": "timer", "gateway": "g", "key": "k", "payload": "what to do",
        "ext": "order-7", "due": asked_ms + 5_000, "attempt": 1, "at": record.at,
    }  # fmt: skip
    assert 0 <= record.at - record.due <= SOON_S * 1000
    assert state(rig) == FIRED
    assert rig.wait(RUN_S - 1) == []


@pytest.mark.parametrize(("passed", "seconds"), [(0.357, 0.344), (0.196, 1.13)])
def test_a_timer_is_not_early_by_the_rounding_of_its_due_time(
    rig: Rig, passed: float, seconds: float
) -> None:
    rig.to(rig.state_s + passed)
    until = rig.state_s + seconds
    rig.after("k", seconds)
    rig.turn()
    assert fires_at(rig, nextafter(until, 0)) == 0
    assert fires_at(rig, until + 0.001) == 1


@BOUNDED
@given(
    began=st.floats(0, 4e9),
    passed=st.floats(0, 1e7),
    seconds=st.floats(0.1, 366 * DAY_S),
)
def test_none_is_early_nor_a_millisecond_late_however_old_the_state_is(
    wheel_class: WheelClass, began: float, passed: float, seconds: float
) -> None:
    rig = Rig(wheel_class)
    rig.state_s = began
    rig.start()
    rig.to(began + passed)
    until = rig.state_s + seconds
    rig.after("k", seconds)
    rig.turn()
    assert fires_at(rig, nextafter(until, 0)) == 0
    assert fires_at(rig, until + 0.001 + 2 * ulp(until)) == 1


def test_the_same_key_again_replaces_a_fired_one_and_its_answer_comes_to_nothing(
    rig: Rig,
) -> None:
    former = fired(rig)
    rig.after("k", 5)
    rig.commit()
    for seq in (None, former):
        rig.done("k", seq=seq)
        rig.fail("k", final=True, seq=seq)
    rig.commit()
    assert state(rig) == PENDING
    assert rig.timetable.results["late"] == 4
    (record,) = rig.wait(5 + SOON_S)
    rig.done("k", seq=former)
    rig.fail("k", final=True, seq=former)
    assert state(rig) == FIRED, "the answer to a run of the one that was replaced"
    rig.done("k", seq=record.seq)
    assert state(rig) == DONE


@pytest.mark.parametrize("said", [{"key": "k"}, {"ext": "x"}])
@pytest.mark.parametrize("is_settled", [False, True])
def test_a_cancel_that_comes_while_the_timer_is_read_wins(
    rig: Rig, said: dict[str, str], *, is_settled: bool
) -> None:
    rig.after("k", 5, ext="x")
    rig.wait(4)
    rig.to(rig.state_s + 2)
    rig.timetable.advance(rig.now)
    assert rig.begin_reading(of_due=True)
    rig.read()
    rig.cancel(**said)
    if is_settled:
        rig.commit()
    assert rig.hand_in() == []
    assert rig.wait(1) == []
    assert state(rig) == CANCELLED


def test_a_cancel_by_ext_that_is_given_again_leaves_those_asked_for_since(
    rig: Rig,
) -> None:
    rig.after("before", 50, ext="x")
    rig.cancel(ext="x")
    rig.after("since", 50, ext="x")
    rig.commit()
    drop = CancelTimer("g", None, "x", below=2, at=7)
    timers = [row.timer._replace(state=PENDING, next=1) for row in rig.table.values()]
    (changed,) = TimerTransaction([drop], timers, RETRY_POLICY).changed
    assert (changed.key, changed.state) == ("before", CANCELLED)


def test_a_run_without_an_answer_in_time_is_tried_again(rig: Rig) -> None:
    fired(rig)
    fired_s = rig.state_s
    rig.wait(RUN_S - 0.1)
    assert state(rig) == FIRED
    rig.wait(0.1 + SOON_S)
    assert state(rig) == PENDING
    assert rig.timer("k").message == "no answer within 60 s"
    (record,) = rig.wait(15)
    assert rig.state_s - fired_s >= RUN_S + 15 - SOON_S
    assert record.attempt == 2


def test_a_late_fail_changes_nothing_and_a_late_done_ends_the_timer(rig: Rig) -> None:
    seq = fired(rig)
    rig.wait(RUN_S + SOON_S)
    rig.fail("k", final=True)
    assert state(rig) == PENDING
    rig.wait(WAITS_S[0] + SOON_S)
    rig.fail("k", final=True, seq=seq)
    assert (state(rig), rig.timer("k").attempts) == (FIRED, 2)
    rig.done("k", seq=seq)
    assert state(rig) == DONE
    assert rig.timetable.results == {"done": 1, "fail": 0, "unanswered": 1, "late": 2}


def test_an_undelivered_run_begins_anew_and_takes_no_attempt(
    wheel_class: WheelClass,
) -> None:
    rig = Rig(wheel_class, retry_policy=RETRY_POLICY._replace(waits_ms=()))
    rig.after("k", 1, "payload")
    (first,) = rig.wait(1 + SOON_S)
    rig.wait(5)
    rig.timetable.fire_again("g", "k", first.seq, rig.now)
    (again,) = rig.wait(SOON_S)
    assert (again.attempt, again.payload) == (1, "payload")
    assert abs(again.due - first.due) <= 1
    assert again.seq > first.seq
    # It is about that run alone, and only as long as that is under way.
    rig.timetable.fire_again("g", "k", first.seq, rig.now)
    rig.done("k")
    rig.timetable.fire_again("g", "k", again.seq, rig.now)
    assert rig.wait(2 * RUN_S) == []
    assert state(rig) == DONE
    assert rig.timetable.results == {DONE: 1, FAIL: 0, UNANSWERED: 0, LATE: 0}


def test_the_ladder_goes_on_for_a_day_and_ends(rig: Rig) -> None:
    rig.after("k", 1)
    records = rig.wait(2 * DAY_S)
    assert [it.attempt for it in records] == [*range(1, 17)]
    between_s = [(later.at - earlier.at) / 1000 for earlier, later in pairwise(records)]
    assert between_s == pytest.approx([RUN_S + wait for wait in WAITS_S], abs=0.05)
    assert sum(between_s) > DAY_S
    timer = rig.timer("k")
    assert (timer.state, timer.attempts, timer.next) == (FAILED, 16, None)


@pytest.mark.parametrize("before", [PENDING, FAILED, DONE])
def test_an_operator_has_a_timer_fire_now_as_if_for_the_first_time(
    rig: Rig, before: str
) -> None:
    fired(rig)
    if before == DONE:
        rig.done("k")
    else:
        rig.fail("k", final=before == FAILED)
    assert state(rig) == before
    rig.try_again("k")
    rig.try_again("unknown")
    records = rig.wait(SOON_S)
    assert [it.attempt for it in records] == ([] if before == DONE else [1])


def test_a_seq_that_no_record_of_its_timer_has_had_answers_nothing(rig: Rig) -> None:
    seq = fired(rig)
    for answer in (rig.done, rig.fail):
        answer("k", seq=seq + 1)
    rig.commit()
    assert state(rig) == FIRED
    assert rig.timetable.results["late"] == 2
    rig.done("k", seq=seq)
    assert state(rig) == DONE


def test_above_max_live_none_is_taken_until_some_have_ended(
    wheel_class: WheelClass,
) -> None:
    rig = Rig(wheel_class, max_live=3)
    assert all(rig.after(f"k{number}", 5) for number in range(3))
    assert not rig.after("one more", 5), "those that are not on disk yet count too"
    rig.commit()
    assert not rig.after("one more", 5)
    rig.wait(6)
    assert not rig.after("one more", 5), "those that run count"
    rig.done("k0")
    rig.cancel("k1")
    rig.fail("k2", final=True)
    rig.commit()
    assert rig.timetable.results == {DONE: 1, FAIL: 1, UNANSWERED: 0, LATE: 0}
    assert all(rig.after(f"next{number}", 5) for number in range(3))
    assert not rig.after("one more", 5)


def test_a_ring_that_holds_too_much_is_begun_anew_and_nothing_is_lost(
    wheel_class: WheelClass,
) -> None:
    rig = Rig(wheel_class, max_loaded=10, rows_at_once=3)
    rig.turn()
    for number in range(40):
        rig.after(f"k{number}", 100 - number)
        rig.turn()
        assert rig.timetable.loaded <= 10
    records = rig.wait(101)
    assert [it.key for it in records] == [f"k{number}" for number in range(39, -1, -1)]


def test_a_ring_begun_anew_takes_nothing_from_the_reading_that_was_under_way(
    wheel_class: WheelClass,
) -> None:
    rig = Rig(wheel_class, max_loaded=4)
    for number in range(2):
        rig.after(f"early{number}", 50)
    rig.commit()
    rig.start()
    assert rig.begin_reading(of_due=False)
    rig.read()
    for number in range(5):  # too many, while rows wait to be handed in
        rig.after(f"late{number}", 60)
    rig.cancel("early0")
    rig.commit()
    assert rig.timetable.loaded == 0
    rig.hand_in()
    assert rig.timetable.loaded == 0
    keys = sorted(it.key for it in rig.wait(61))
    assert keys == ["early1", *(f"late{number}" for number in range(5))]


def test_a_reading_that_fails_leaves_everything_due(rig: Rig) -> None:
    rig.after("k", 1)
    rig.after("l", 1)
    rig.wait(0.5)
    rig.to(rig.state_s + 1)
    rig.timetable.advance(rig.now)
    for _ in range(3):
        assert rig.timetable.has_due
        assert rig.begin_reading(of_due=True)
        assert not rig.timetable.has_due
        rig.fail_reading()
        rig.to(rig.state_s + 0.1)
        rig.timetable.advance(rig.now)
    rig.cancel("l")
    assert [it.key for it in rig.wait(0.1)] == ["k"]


def test_a_timer_that_is_changed_while_it_is_read_fires_by_the_change(rig: Rig) -> None:
    rig.after("k", 1)
    rig.wait(0.5)
    rig.to(rig.state_s + 1)
    rig.timetable.advance(rig.now)
    assert rig.begin_reading(of_due=True)
    rig.read()
    rig.try_again("k")
    rig.commit()
    assert rig.hand_in() == []
    assert [it.key for it in rig.wait(0.1)] == ["k"]


def test_a_timer_that_is_changed_while_it_is_read_for_the_ring_is_on_it_once(
    wheel_class: WheelClass,
) -> None:
    rig = Rig(wheel_class, max_loaded=4)
    rig.after("k", 1)
    rig.wait(1.1)
    rig.start()
    assert rig.begin_reading(of_due=False)
    rig.read()
    rig.fail("k")
    rig.commit()
    rig.hand_in()
    assert rig.timetable.loaded == 1
    for number in range(5):  # too many: the ring is begun anew
        rig.after(f"late{number}", 60)
    assert [it.key for it in rig.wait(16)] == ["k"]


def test_many_timers_of_one_gateway_do_not_delay_the_one_of_another(rig: Rig) -> None:
    for number in range(3 * TAKEN_AT_ONCE):
        rig.after(f"k{number}", 10, gateway="many")
    rig.after("k", 10, gateway="one")
    rig.commit()
    rig.turn()
    rig.to(rig.state_s + 11)
    for _ in range(100):  # as the ring is swept in bounded steps
        rig.timetable.advance(rig.now)
    assert rig.begin_reading(of_due=True)
    rig.read()
    assert len(rig.hand_in()) == TAKEN_AT_ONCE
    rig.commit()
    assert [record.gateway for record in rig.log].count("one") == 1


def absent(rig: Rig, seconds: float) -> None:
    rig.timetable.turned(rig.now)
    rig.to(rig.state_s + seconds)
    rig.timetable.turned(rig.now, is_absent=True)


@pytest.mark.parametrize("why", ["all unread", "it is unread", "planned", "asleep"])
def test_time_in_which_the_gateway_was_not_read_does_not_count_for_a_run(
    rig: Rig, why: str
) -> None:
    rig.after("k", 1)
    rig.wait(1.1)
    assert len(rig.log) == 1
    rig.wait(10)
    rig.timetable.turned(rig.now)
    match why:
        case "all unread":
            absent(rig, 100)
        case "it is unread":
            rig.to(rig.state_s + 100)
            rig.timetable.turned(rig.now, absent=["g"])
        case "planned":
            rig.timetable.will_be_absent(rig.now, 100)
            rig.to(rig.state_s + 100)
        case _:  # its monotonic clock stops
            mono = rig.mono
            rig.to(rig.state_s + 100)
            rig.mono = mono
    rig.wait(49)
    assert rig.timer("k").state == "fired"
    rig.wait(1.2)
    assert (rig.timer("k").state, rig.timer("k").attempts) == ("pending", 1)
    # A timer fired later has no more time than any other.
    rig.wait(15)
    assert len(rig.log) == 2
    rig.wait(60.2)
    assert (rig.timer("k").state, rig.timer("k").attempts) == ("pending", 2)


def test_a_run_ends_however_often_the_gateway_was_not_read(rig: Rig) -> None:
    rig.after("k", 1)
    rig.wait(1.1)
    for _ in range(3 * MOST_ABSENCES):
        rig.wait(0.5)
        absent(rig, 0.5)
    assert rig.timer("k").attempts == 2


@pytest.mark.parametrize(("run_s", "again_s"), [(6, 60), (60, 600), (900, 900)])
def test_a_run_that_its_gateway_was_not_handed_is_seldom_looked_at(
    wheel_class: WheelClass, run_s: int, again_s: int
) -> None:
    rig = Rig(
        wheel_class, retry_policy=RetryPolicy(run_s * 1_000, RETRY_POLICY.waits_ms)
    )
    rig.handed["g"] = 0
    rig.after("k", 1)
    rig.wait(1.1)
    fired_ms = rig.timer("k").fired
    assert fired_ms is not None
    rig.wait(3_000)
    timer = rig.timer("k")
    assert (timer.state, timer.attempts, len(rig.log)) == ("fired", 1, 1)
    times = (3_000 - run_s) // again_s + 1
    # A bucket of the ring passes before it is looked at.
    next_ms = 1_000 * (run_s + times * again_s)
    assert (timer.next or 0) - fired_ms == pytest.approx(next_ms, abs=times * 100)


def test_states_follow_what_is_forgotten(rig: Rig) -> None:
    rig.done("k", seq=fired(rig))
    rig.commit()
    assert rig.timetable.states["done"] == 1
    rig.timetable.deleted({"done": 1})
    assert +rig.timetable.states == {}
