"""The ring of the coming hour, and what an attempt has of its time."""

import pytest

from liveness.core.sessions.absences import MOST_ABSENCES
from liveness.core.wheel.wheel import Wheel
from tests.core.timers_rig import TAKEN_AT_ONCE, Rig

WheelClass = type[Wheel]


@pytest.fixture
def rig(wheel_class: WheelClass) -> Rig:
    """No timers yet, with the default retry policy."""
    return Rig(wheel_class)


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
