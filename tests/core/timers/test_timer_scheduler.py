"""When timers fire: named examples, and a machine against a model too simple to be wrong.

The model is written from the protocol alone: a dictionary of timers that believes
whatever is said at once, in the order in which it is said. The rig is late with
everything: transactions, readings, and what they tell. In the end both must agree.
"""

from collections import Counter, deque
from itertools import count
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from liveness.core.sessions.absences import MOST_ABSENCES
from liveness.core.timer_states import (
    RETRY_POLICY,
    Fire,
    GiveUp,
    LookLater,
    RetryPolicy,
)
from liveness.core.timers.timer_scheduler import SLEPT_S
from liveness.core.wheel.wheel import Wheel
from tests.core.timers_rig import Rig
from tests.helpers.strategies import BOUNDED, examples

WheelClass = type[Wheel]

# A run of two seconds, and four attempts.
SHORT: Final = RetryPolicy(2_000, (500, 1_000, 70_000))
# A bucket of the ring passes before it is looked at; what is said of a timer just then
# has it looked at once more.
PROMPT_MS: Final = 100


class Expected(NamedTuple):
    """What ought to be kept of one timer."""

    gateway: str
    key: str
    ext: str | None
    payload: str | None
    due: int
    not_before: float  # exactly, in seconds
    state: str = "pending"
    attempts: int = 0
    runs: tuple[int, ...] = ()  # their records
    ends: int = 0  # the run, in ms
    fired: int = 0
    message: str | None = None

    @property
    def is_live(self) -> bool:
        return self.state in ("pending", "fired")


class Modelled(Rig):
    """A rig, and beside it what ought to be in its table."""

    def __init__(self, wheel_class: WheelClass, **limits: int) -> None:
        self.model: dict[int, Expected] = {}
        self.results: Counter[str] = Counter()
        self.on_disk: dict[int, Expected] = {}
        self.snapshots: deque[dict[int, Expected]] = deque()
        # A ring of a minute: the reference is slow to make a large one.
        super().__init__(wheel_class, retry_policy=SHORT, slots=60, **limits)

    # --- the model ----------------------------------------------------------------

    def live_of(self, gateway: str, key: str) -> int | None:
        """The number of the live timer of a key."""
        found = [
            number
            for number, it in self.model.items()
            if it.is_live and (it.gateway, it.key) == (gateway, key)
        ]
        assert len(found) <= 1
        return found[0] if found else None

    def change(self, number: int, **changes: Any) -> None:
        self.model[number] = self.model[number]._replace(**changes)

    def asked(
        self,
        key: str,
        seconds: float,
        payload: str | None,
        ext: str | None,
        gateway: str,
    ) -> None:
        former = self.live_of(gateway, key)
        if former is not None:
            self.change(former, state="replaced")
        until = self.state_s + seconds
        # The first millisecond that does not begin before.
        due = next(it for it in count(int(until * 1000)) if it / 1000 >= until)
        self.model[len(self.model) + 1] = Expected(
            gateway, key, ext, payload, due, until
        )
        assert self.after(key, seconds, payload, ext=ext, gateway=gateway)

    def cancelled(self, key: str | None, ext: str | None, gateway: str) -> None:
        for number, it in self.model.items():
            if (
                it.is_live
                and it.gateway == gateway
                and (key == it.key or (ext and ext == it.ext))
            ):
                self.change(number, state="cancelled")
        self.cancel(key, ext=ext, gateway=gateway)

    def answered(self, key: str, how: str, seq: int | None, gateway: str) -> None:
        number = self.live_of(gateway, key)
        it = None if number is None else self.model[number]
        if number is None or it is None or not it.runs:
            self.results["late"] += 1
        elif how == "done" and (seq is None or seq in it.runs):
            self.results["done"] += 1
            self.change(number, state="done", message=None)
        elif how != "done" and it.state == "fired" and seq in (None, it.runs[-1]):
            self.results["fail"] += 1
            self.failed(number, "no", is_final=how == "final")
        else:
            self.results["late"] += 1
        if how == "done":
            self.done(key, seq=seq, gateway=gateway)
        else:
            self.fail(key, final=how == "final", seq=seq, gateway=gateway)

    def failed(self, number: int, message: str, *, is_final: bool) -> None:
        attempts = self.model[number].attempts
        if is_final or attempts > len(SHORT.waits_ms):
            self.change(number, state="failed", message=message)
        else:
            due = int(self.ms) + SHORT.waits_ms[attempts - 1]
            self.change(
                number, state="pending", due=due, not_before=0.0, message=message
            )

    def retried(self, key: str, gateway: str) -> None:
        of_key = [
            n for n, it in self.model.items() if (it.gateway, it.key) == (gateway, key)
        ]
        if of_key and self.model[of_key[-1]].state in ("pending", "failed"):
            self.change(
                of_key[-1],
                state="pending",
                due=int(self.ms),
                not_before=0.0,
                attempts=0,
            )
        self.try_again(key, gateway=gateway)

    def hand_in(self) -> list[float]:
        """Hand in a read; check the timers that fired, and the attempts that ended."""
        orders, records = (
            len(self.decided.changes.commands),
            len(self.decided.changes.records),
        )
        lateness = super().hand_in()
        new = iter(self.decided.changes.records[records:])
        for order in self.decided.changes.commands[orders:]:
            assert isinstance(order, Fire | GiveUp | LookLater)
            named = (order.gateway, order.key)
            number = max(
                number
                for number, it in self.model.items()
                if (it.gateway, it.key) == named
            )
            it = self.model[number]
            if isinstance(order, Fire):
                assert it.state == "pending"
                assert self.state_s >= max(it.not_before, it.due / 1000), "early"
                record, now = next(new), max(int(self.ms), it.due)
                self.change(
                    number,
                    state="fired",
                    attempts=it.attempts + 1,
                    runs=(*it.runs, order.seq),
                    ends=now + SHORT.attempt_ms,
                    fired=now,
                )
                assert record._asdict() == {
                    "seq": order.seq,
                    "kind": "timer",
                    "gateway": it.gateway,
                    "key": it.key,
                    "payload": it.payload,
                    "ext": it.ext,
                    "attempt": it.attempts + 1,
                    "due": self.wall_ms - (now - it.due),
                    "at": self.wall_ms,
                }
                continue
            assert it.state == "fired"
            assert self.ms >= it.ends, "the run was over too soon"
            left_ms = SHORT.attempt_ms - self.listened_ms(it.fired)
            was_handed = self.was_handed(it.gateway) >= it.runs[-1]
            if isinstance(order, LookLater):
                assert left_ms > 0 or not was_handed
                wait_ms = order.until - int(self.ms)
                if wait_ms != SHORT.away_ms or was_handed:
                    assert wait_ms == pytest.approx(left_ms, abs=2)
                self.change(number, ends=order.until)
            else:
                assert was_handed
                assert left_ms <= 2
                self.results["unanswered"] += 1
                self.failed(number, "no answer within 2 s", is_final=False)
        assert next(new, None) is None
        assert len(lateness) == len(self.decided.changes.records) - records
        assert all(seconds >= 0 for seconds in lateness)
        return lateness

    # --- what is on disk ----------------------------------------------------------

    def give(self) -> bool:
        was_given = super().give()
        if was_given:
            self.snapshots.append(dict(self.model))
        return was_given

    def write(self, most: int = 10**9) -> bool:
        waiting = len(self.given)
        was_written = super().write(most)
        for _ in range(waiting - len(self.given)):
            self.on_disk = self.snapshots.popleft()
        return was_written

    def crash(self, *, away_s: float = 0.0) -> None:
        """End the process; nothing that was not written had been sent."""
        self.model = dict(self.on_disk)
        self.results.clear()
        self.snapshots.clear()
        self.to(self.state_s + away_s)
        self.start()

    def listened_ms(self, fired_ms: int) -> float:
        """How long everyone was listened to since."""
        listened = self.ms - fired_ms
        for since, until in self.absences:
            listened -= max(0.0, until * 1000 - max(since * 1000, fired_ms))
        return listened

    def check(self) -> None:
        """What holds at any time; and once all is settled, that both agree."""
        keys = Counter((it.gateway, it.key) for it in self.live)
        assert all(count == 1 for count in keys.values()), "two of a key are live"
        most = max(self.max_loaded, self.max_loaded // 2 + self.rows_at_once)
        assert self.timetable.loaded <= most + self.taken_at_once
        if self.written is None:
            assert +self.timetable.states == self.states
        if self.written is not None or self.given or self.decided.changes:
            return
        assert self.table.keys() == self.model.keys()
        for number, (timer, payload) in self.table.items():
            it = self.model[number]
            assert (timer.gateway, timer.key, timer.ext, payload) == it[:4]
            assert (timer.state, timer.attempts, timer.message) == (
                it.state,
                it.attempts,
                it.message,
            )
            assert timer.due == it.due
            assert timer.seq == (it.runs[-1] if it.runs else None)
            assert timer.is_live == it.is_live
        assert +self.timetable.results == self.results

    def check_prompt(self) -> None:
        """All due timers have fired, and attempts without an answer are over."""
        for it in self.model.values():
            if it.state == "pending":
                assert it.due > self.ms - PROMPT_MS, it
            elif it.state == "fired":
                assert it.ends > self.ms - PROMPT_MS, it


SAID: Final = ("after", "cancel", "cancel ext", "done", "fail", "final", "retry")
names = st.sampled_from(("g", "h"))
keys = st.sampled_from("abcd")
exts = st.sampled_from("xy")
waits = st.sampled_from((0.1, 0.11, 0.5, 1, 2, 5, 61, 600, 3_599.99, 3_661, 10_000))
whiles = st.sampled_from((0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 30.0, 61.0, 3_600.0))
steps_ms = st.sampled_from((0, 0, 0, 1, -1, 7_000, -7_000, 86_400_000, -86_400_000))


class Timers(RuleBasedStateMachine):
    implementation: WheelClass
    limits: dict[str, int]

    def __init__(self) -> None:
        super().__init__()
        self.rig = Modelled(self.implementation, **self.limits)

    # --- what is asked ------------------------------------------------------------

    @rule(
        gateway=names,
        key=keys,
        seconds=waits,
        ext=st.none() | exts,
        payload=st.sampled_from((None, "p", "q")),
    )
    def after(
        self,
        gateway: str,
        key: str,
        seconds: float,
        ext: str | None,
        payload: str | None,
    ) -> None:
        self.rig.asked(key, seconds, payload, ext, gateway)

    @rule(what=st.sampled_from(SAID), gateway=names, key=keys, ext=exts)
    def say(self, what: str, gateway: str, key: str, ext: str | None) -> None:
        """Whatever may be said of a timer that there is, or is not."""
        match what:
            case "after":
                self.rig.asked(key, 0.5, "again", ext, gateway)
            case "cancel ext" if ext is not None:
                self.rig.cancelled(None, ext, gateway)
            case "done" | "fail" | "final":
                self.rig.answered(key, what, None, gateway)
            case "retry":
                self.rig.retried(key, gateway)
            case _:
                self.rig.cancelled(key, None, gateway)

    @rule(how=st.sampled_from(("done", "fail", "final")), data=st.data())
    def answer_a_record(self, how: str, data: st.DataObject) -> None:
        """With its seq or without, be it the latest of its key or not."""
        if self.rig.log:
            record = data.draw(st.sampled_from(self.rig.log[-8:]))
            seq = data.draw(st.sampled_from((None, record.seq)))
            self.rig.answered(record.key, how, seq, record.gateway)

    # --- what the service does, one thing at a time ---------------------------------

    @rule(
        step=st.sampled_from(
            ("give", "write", "tell", "begin", "begin", "read", "hand in", "fail")
        ),
        of_due=st.booleans(),
        most=st.integers(1, 3),
    )
    def serve(self, step: str, of_due: bool, most: int) -> None:
        rig = self.rig
        match step:
            case "give":
                rig.give()
            case "write":
                rig.write(most)
            case "tell":
                rig.tell()
            case "begin":
                rig.begin_reading(of_due=of_due)
            case "read":
                rig.read()
            case "hand in":
                self.hand_in()
            case _:
                rig.fail_reading()

    def hand_in(self) -> None:
        self.rig.read()
        self.rig.hand_in()

    @rule(
        of_due=st.booleans(),
        said=st.lists(st.sampled_from(SAID), min_size=1, max_size=2),
        steps=st.sampled_from((0, 1, 2, 3, 3)),
    )
    def say_something_after_it_was_read(
        self, of_due: bool, said: list[str], steps: int
    ) -> None:
        """Of just the timer that a reading is about."""
        rig = self.rig
        self.hand_in()
        rig.asked("e", 0.5, None, "x", "g")
        rig.commit()
        if of_due:
            rig.wait(0.3)
            rig.to(rig.state_s + 0.3)
            rig.timetable.advance(rig.now)
        else:
            rig.crash()
        rig.begin_reading(of_due=of_due)
        rig.read()
        for what in said:
            self.say(what, "g", "e", "x")
        for step in (rig.give, rig.write, rig.tell)[:steps]:
            step()
        self.hand_in()

    # --- time -----------------------------------------------------------------------

    @rule(seconds=whiles, step_ms=steps_ms)
    def pass_time(self, seconds: float, step_ms: int) -> None:
        self.rig.to(self.rig.state_s + seconds)
        self.rig.wall_ms += step_ms
        self.rig.timetable.advance(self.rig.now)

    @rule(seconds=whiles)
    def live_on(self, seconds: float) -> None:
        self.rig.read()
        self.rig.hand_in()
        self.rig.wait(seconds)

    @rule(gateway=names, is_behind=st.booleans())
    def gateway_falls_behind_or_catches_up(self, gateway: str, is_behind: bool) -> None:
        if is_behind:
            self.rig.handed[gateway] = len(self.rig.log)
        else:
            self.rig.handed.pop(gateway, None)

    @rule(seconds=whiles)
    def is_absent(self, seconds: float) -> None:
        since = self.rig.state_s
        absent(self.rig, seconds)
        self.rig.absences.append((since, self.rig.state_s))
        self.rig.timetable.advance(self.rig.now)

    @rule(seconds=whiles)
    def host_sleeps(self, seconds: float) -> None:
        since = self.rig.state_s
        self.rig.sleep(seconds)
        self.rig.timetable.turned(self.rig.now)
        if seconds > SLEPT_S:
            self.rig.absences.append((since, self.rig.state_s))
        self.rig.timetable.advance(self.rig.now)

    @rule(away_s=st.sampled_from((0, 0.001, 5, 70, 3_700)))
    def crash(self, away_s: float) -> None:
        self.rig.crash(away_s=away_s)

    @invariant()
    def agrees(self) -> None:
        self.rig.check()

    def teardown(self) -> None:
        """Everything that is due fires, and what nobody answers fails in the end."""
        rig = self.rig
        rig.handed.clear()
        rig.read()
        rig.hand_in()
        # The runs that were not handed are looked at.
        rig.wait(SHORT.away_ms / 1000)
        while rig.live:
            rig.wait(PROMPT_MS / 1000)
            rig.check_prompt()
            nearest = min(it.next for it in rig.live if it.next) if rig.live else rig.ms
            rig.wait(max(0.0, (nearest - rig.ms) / 1000))
            rig.check()


PLENTY: Final[dict[str, int]] = {}
SMALL_PIECES: Final = {"rows_at_once": 2, "taken_at_once": 3}
SMALL_RING: Final = {"max_loaded": 4, "rows_at_once": 2, "taken_at_once": 1}


@pytest.mark.parametrize(
    "limits",
    [PLENTY, SMALL_PIECES, SMALL_RING],
    ids=["in plenty", "in small pieces", "on a small ring"],
)
def test_timers_agree_with_a_model_that_believes_everything_at_once(
    wheel_class: WheelClass, limits: dict[str, int]
) -> None:
    class OnThisWheel(Timers):
        implementation = wheel_class

    OnThisWheel.limits = limits
    run_state_machine_as_test(
        OnThisWheel,
        settings=settings(BOUNDED, max_examples=examples(50), stateful_step_count=60),
    )


# --- the ring -------------------------------------------------------------------------


def test_timers_beyond_the_next_hour_are_not_in_memory(wheel_class: WheelClass) -> None:
    rig = Rig(wheel_class)
    rig.wait(1)
    rig.after("soon", 3_000)
    rig.after("far", 5_000)
    rig.wait(1)
    assert rig.timetable.loaded == 1
    rig.wait(2_000)
    assert rig.timetable.loaded == 2
    assert [it.key for it in rig.wait(1_010)] == ["soon"]
    rig.done("soon")
    assert [it.key for it in rig.wait(2_000)] == ["far"]


def test_a_start_loads_in_pieces_and_fires_in_order(wheel_class: WheelClass) -> None:
    rig = Rig(wheel_class)
    for number in range(4_500):
        rig.after(f"k{number}", 10 + number // 500)
    rig.commit()
    rig.start()
    rig.turn()
    assert rig.timetable.loaded == 4_500
    records = rig.wait(20)
    assert [it.key for it in records] == [f"k{number}" for number in range(4_500)]


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


def test_those_in_hand_while_the_ring_is_begun_anew_fire_once(
    wheel_class: WheelClass,
) -> None:
    rig = Rig(wheel_class, max_loaded=4)
    for number in range(3):
        rig.after(f"due{number}", 1)
    rig.wait(0.5)
    rig.to(rig.state_s + 1)
    rig.timetable.advance(rig.now)
    assert rig.begin_reading(of_due=True)
    rig.read()
    for number in range(5):
        rig.after(f"new{number}", 1)
    rig.commit()
    rig.hand_in()
    assert Counter(it.key for it in rig.wait(2)) == Counter(
        {
            f"{name}{n}": 1
            for name, count in (("due", 3), ("new", 5))
            for n in range(count)
        }
    )


def test_a_reading_that_fails_leaves_everything_due(wheel_class: WheelClass) -> None:
    rig = Rig(wheel_class)
    rig.after("k", 1)
    rig.after("l", 1)
    rig.wait(0.5)
    rig.to(rig.state_s + 1)
    rig.timetable.advance(rig.now)
    for _ in range(3):
        assert rig.begin_reading(of_due=True)
        rig.fail_reading()
        rig.to(rig.state_s + 0.1)
        rig.timetable.advance(rig.now)
    rig.cancel("l")
    assert [it.key for it in rig.wait(0.1)] == ["k"]


def test_many_timers_of_one_gateway_do_not_delay_the_one_of_another(
    wheel_class: WheelClass,
) -> None:
    rig = Rig(wheel_class)
    for number in range(3 * rig.taken_at_once):
        rig.after(f"k{number}", 10, gateway="many")
    rig.after("k", 10, gateway="one")
    rig.commit()
    rig.turn()
    rig.to(rig.state_s + 11)
    for _ in range(100):  # as the ring is swept in bounded steps
        rig.timetable.advance(rig.now)
    assert rig.begin_reading(of_due=True)
    rig.read()
    assert len(rig.hand_in()) == rig.taken_at_once
    rig.commit()
    assert [record.gateway for record in rig.log].count("one") == 1


def test_undelivered_runs_do_not_keep_other_timers_from_the_ring(
    wheel_class: WheelClass,
) -> None:
    rig = Rig(wheel_class, retry_policy=SHORT, max_loaded=10, rows_at_once=3)
    rig.handed["away"] = 0
    for number in range(30):
        rig.after(f"k{number}", 1, gateway="away")
    rig.wait(20)
    assert len(rig.log) == 30
    rig.after("k", 5, gateway="here")
    (record,) = rig.wait(5.1)
    assert record.gateway == "here"
    del rig.handed["away"]
    rig.done("k", gateway="here")
    again = rig.wait((SHORT.away_ms + SHORT.waits_ms[0]) / 1000 + 0.5)
    assert Counter(it.attempt for it in again) == {2: 30}


def absent(rig: Rig, seconds: float) -> None:
    rig.timetable.turned(rig.now)
    rig.to(rig.state_s + seconds)
    rig.timetable.turned(rig.now, is_absent=True)


def test_time_in_which_the_gateway_was_not_read_does_not_count_for_a_run(
    wheel_class: WheelClass,
) -> None:
    rig = Rig(wheel_class, retry_policy=RETRY_POLICY)
    rig.after("k", 1)
    rig.wait(1.1)
    assert len(rig.log) == 1
    rig.wait(10)
    absent(rig, 100)
    rig.wait(49)
    assert rig.timer("k").state == "fired"
    rig.wait(1.2)
    assert (rig.timer("k").state, rig.timer("k").attempts) == ("pending", 1)
    # A timer fired later has no more time than any other.
    rig.wait(15)
    assert len(rig.log) == 2
    rig.wait(60.2)
    assert (rig.timer("k").state, rig.timer("k").attempts) == ("pending", 2)


def test_a_run_gets_all_of_its_time_again_after_a_restart(
    wheel_class: WheelClass,
) -> None:
    rig = Rig(wheel_class, retry_policy=RETRY_POLICY)
    rig.after("k", 1)
    rig.wait(1.1)
    rig.to(rig.state_s + 3_600)
    rig.start()
    rig.wait(59)
    rig.done("k")
    rig.wait(1.2)
    assert (rig.timer("k").state, rig.timer("k").attempts) == ("done", 1)


def test_a_run_ends_however_often_the_gateway_was_not_read(
    wheel_class: WheelClass,
) -> None:
    rig = Rig(wheel_class, retry_policy=RETRY_POLICY)
    rig.after("k", 1)
    rig.wait(1.1)
    for _ in range(3 * MOST_ABSENCES):
        rig.wait(0.5)
        absent(rig, 0.5)
    assert rig.timer("k").attempts == 2


@pytest.mark.parametrize(
    ("run_s", "again_s"), [(6, 60), (60, 600), (300, 600), (900, 900)]
)
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
    next_ms = 1_000 * (run_s + times * again_s)
    assert (timer.next or 0) - fired_ms == pytest.approx(next_ms, abs=times * PROMPT_MS)
