"""The wheel against a model too simple to be wrong: a dictionary of deadlines.

The model knows no layers, slots or buckets. A user may fire once its deadline has passed,
and must be due once a bucket more has passed; in between the wheel is free. What there is
beside deadlines is shown by the tests of presence, and both wheels answer it alike:
`test_differential`.
"""

from math import inf
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liveness.core.records import Uid
from liveness.core.wheel.table import Entry
from liveness.core.wheel.wheel import UNKNOWN, Wheel
from liveness.core.wire.link_requests import ListedActivity
from tests.helpers.strategies import BOUNDED, HARD_USERS, examples

TIMEOUTS: Final = (1, 3, 30, 3_600, 86_400)
SLOTS: Final = (2, 3, 30, 3_600)
ALL: Final = 10**9
DAY: Final = 86_400.0

# In buckets: a border is a product and a moment is a sum, and both are rounded.
ROUNDING: Final = 0.01

WheelClass = type[Wheel]


class Model:
    """A wheel with one gateway, and the deadline of each user."""

    def __init__(
        self, wheel_class: WheelClass, *, timeout: float, slots: int, now: float = 0.0
    ) -> None:
        self.wheel = wheel_class(timeout=timeout, slots=slots, now=now)
        self.wheel.add_gateway()
        self.now, self.timeout = now, timeout
        self.deadlines: dict[Uid, float] = {}
        self.own: dict[Uid, float | None] = {}  # the timeouts that logins named
        self.bucket_s, self.slot_s = self.wheel.bucket_s, timeout / slots
        self.late = self.bucket_s * (1 + ROUNDING)

    def open(self, uid: Uid, *, timeout: float | None = None) -> None:
        self.own[uid] = timeout
        self.deadlines[uid] = self.now + (timeout or self.timeout)
        self.wheel.open(
            uid, gateway=0, session=len(self.own), conn=None, start=self.now,
            timeout=timeout, event=1, now=self.now, mono=self.now,
        )  # fmt: skip

    def touch(self, *uids: Uid) -> None:
        offline = [n for n, uid in enumerate(uids) if uid not in self.deadlines]
        signs = ListedActivity([*uids], [None] * len(uids), bytearray(len(uids)))
        left = self.wheel.touch(0, signs, now=self.now, mono=self.now)
        assert left == [(position, UNKNOWN) for position in offline]
        for uid in {*uids} & self.deadlines.keys():
            self.deadlines[uid] = self.now + (self.own[uid] or self.timeout)

    def close(self, uid: Uid) -> None:
        assert self.wheel.close(uid).deadline == self.deadlines.pop(uid)

    def fire(self, *, until: float, limit: int = ALL) -> list[Entry]:
        fired = self.wheel.fire(0, until=until, limit=limit)
        assert len(fired) <= limit
        for entry in fired:
            assert entry.deadline == self.deadlines.pop(entry.uid)
            assert entry.deadline <= until
            assert entry.deadline < self.now, "fired before its deadline had passed"
        return fired

    def advance(self, now: float, *, few: int = ALL) -> None:
        """Move the hand, at first by a few steps only, and check everything."""
        ahead = (it for it in self.deadlines.values() if it >= self.now)
        assert self.wheel.next_due() <= min(ahead, default=inf) + self.late
        self.now = now
        self.wheel.advance(now, few)
        assert self.wheel.due(0) <= self.passed(), "due before the deadline"
        if self.wheel.due(0) < self.passed(by=self.late):
            wanted = self.wheel.next_due()
            assert wanted <= now + ROUNDING * self.bucket_s, "the rest is forgotten"
        self.wheel.advance(now, ALL)
        self.check()

    def passed(self, *, by: float = 0.0) -> int:
        """The number of users whose deadline has passed by more than *by* seconds."""
        return sum(deadline + by < self.now for deadline in self.deadlines.values())

    def check(self) -> None:
        due = self.wheel.due(0)
        assert self.passed(by=self.late) <= due <= self.passed(), "a bucket late"
        assert len(self.wheel) == len(self.deadlines)
        for uid, deadline in self.deadlines.items():
            entry = self.wheel.find(uid)
            assert entry is not None
            assert (repr(entry.uid), entry.deadline) == (repr(uid), deadline)
        places = [self.wheel.slot_of(uid) for uid in self.deadlines]
        assert places.count(None) == due
        users = self.wheel.slot_users()
        assert (len(users), min(users) >= 0) == (self.wheel.slots, True)
        assert sum(users) + due <= len(self.wheel)


def waits(model: Model) -> list[float]:
    """Timeouts and gaps around everything that this wheel divides time by."""
    bucket, slot, ring = model.bucket_s, model.slot_s, model.timeout
    slots = model.wheel.slots
    borders = [bucket, 2 * bucket, slot, 2 * slot, ring - slot, ring, ring + slot]
    layer = ring
    while layer * slots < 300 * DAY:
        layer *= slots
        borders += [layer - ring, layer, 2 * layer]
    around = [b + d for b in borders for d in (-slot, -bucket, 0, bucket, slot)]
    around += [border + part * bucket for border in borders for part in (-0.5, 0.01)]
    return sorted({w for w in [0.0, bucket / 3, *around] if 0 <= w < 300 * DAY})


@settings(BOUNDED, max_examples=examples(100))
@given(data=st.data())
def test_the_wheel_agrees_with_a_plain_dictionary_of_deadlines(
    wheel_class: WheelClass, data: st.DataObject
) -> None:
    timeout, slots = data.draw(st.sampled_from(TIMEOUTS)), st.sampled_from(SLOTS)
    now = data.draw(st.sampled_from([0.0, 0.1, 12_345.678, 1e7 / 3]))
    model = Model(wheel_class, timeout=timeout, slots=data.draw(slots), now=now)
    wait = st.sampled_from(waits(model)) | st.floats(0, 3 * model.timeout)
    steps = ("open", "open", "touch", "touch", "advance", "advance", "to", "close")
    for step in data.draw(st.lists(st.sampled_from((*steps, "fire")), max_size=40)):
        if step == "open":
            uid = data.draw(st.sampled_from(HARD_USERS))
            if uid not in model.deadlines:
                own = data.draw(st.none() | wait.filter(lambda it: it >= 0.001))
                model.open(uid, timeout=own)
        elif step == "touch":
            model.touch(*data.draw(st.lists(st.sampled_from(HARD_USERS), max_size=6)))
        elif step == "advance":
            few = data.draw(st.sampled_from([1, 3, ALL]))
            model.advance(model.now + data.draw(wait), few=few)
        elif step == "fire":
            ago = data.draw(st.sampled_from([0.0, model.bucket_s, model.slot_s]))
            limit = data.draw(st.sampled_from([0, 1, 2, ALL]))
            model.fire(until=model.now - ago, limit=limit)
        elif model.deadlines:
            uid = data.draw(st.sampled_from([*model.deadlines]))
            if step == "close":
                model.close(uid)
                continue
            off = data.draw(st.sampled_from([-1, 0, 0.001, 1, 1 + ROUNDING]))
            deadline = model.deadlines[uid] + off * model.bucket_s
            model.advance(max(model.now, deadline))
        model.check()
    model.advance(max([model.now, *model.deadlines.values()]) + 1)
    model.fire(until=model.now)
    assert (len(model.wheel), model.deadlines) == (0, {})
    assert sum(model.wheel.slot_users()) == 0


# The longer the sidecar has run, the coarser a float of seconds is.
@pytest.mark.parametrize("days", [0, 100, 4_000])
@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("timeout", [1, 3, 30])
def test_the_hand_that_moves_when_it_wants_to_arrives_on_time(
    wheel_class: WheelClass, timeout: float, slots: int, days: int
) -> None:
    model = Model(wheel_class, timeout=timeout, slots=slots)
    model.advance(days * DAY + 0.29)  # 29 buckets of 0.01 s, but 0.29 * 100 is less
    model.open("u")
    deadline, moves = model.now + timeout, 0
    while not model.wheel.due(0):
        wanted = model.wheel.next_due()
        assert wanted > model.now, "it would turn for ever"
        model.now, moves = wanted, moves + 1
        model.wheel.advance(wanted, ALL)
    assert deadline < model.now <= deadline + model.late
    assert moves <= max(slots, 30) + 2, "woken for empty buckets"


@pytest.mark.parametrize("steps", [1, 10, 300])
@pytest.mark.parametrize("ahead", [0.5, 30, 1_000, 40_000])
def test_one_call_lays_no_more_than_its_steps(
    wheel_class: WheelClass, steps: int, ahead: float
) -> None:
    model = Model(wheel_class, timeout=30, slots=30)
    for number in range(300):
        model.open(number, timeout=ahead)
    calls = 0
    while model.wheel.due(0) < 300:
        before = model.wheel.due(0)
        model.wheel.advance(ahead + 1, steps)
        assert model.wheel.due(0) - before <= steps
        assert model.wheel.due(0) > before
        calls += 1
        if model.wheel.due(0) < 300:
            slack = model.bucket_s * ROUNDING
            assert model.wheel.next_due() <= ahead + 1 + slack, "the rest is forgotten"
    assert calls == 300 // steps


def test_users_fire_only_up_to_the_moment_named(wheel_class: WheelClass) -> None:
    model = Model(wheel_class, timeout=3, slots=30)
    model.open("early", timeout=1)
    model.open("late", timeout=2)
    assert model.wheel.longest_due(0) == inf
    model.advance(2.5)
    assert model.wheel.longest_due(0) == 1.0
    assert model.fire(until=0.9) == []
    assert [entry.uid for entry in model.fire(until=1.0)] == ["early"]
    assert model.wheel.longest_due(0) == 2.0
    assert [entry.uid for entry in model.fire(until=2.5)] == ["late"]
    assert model.wheel.longest_due(0) == inf


def test_users_with_a_fresh_timeout_and_others_do_not_wait_for_each_other(
    wheel_class: WheelClass,
) -> None:
    model = Model(wheel_class, timeout=3, slots=30)
    wheel = model.wheel
    model.open("renewed")
    model.advance(4)
    model.open("fresh", timeout=2)
    assert wheel.renew(0, until=4, limit=ALL, most=1) == 1
    model.deadlines["renewed"] = 4
    model.advance(7)
    assert (wheel.longest_due(0), wheel.due(0)) == (6, 2)
    assert wheel.longest_due(0, renewed=True) == 4
    assert [entry.uid for entry in model.fire(until=7)] == ["fresh"]
    assert wheel.waiting() == [0]
    assert wheel.renew(0, until=7, limit=ALL, most=inf) == 0
    (entry,) = wheel.fire(0, until=7, limit=ALL, renewed=True)
    assert entry.uid == "renewed"
    assert wheel.waiting() == []


def test_each_user_is_in_the_slot_of_its_deadline(wheel_class: WheelClass) -> None:
    model = Model(wheel_class, timeout=30, slots=30)
    for number in range(29):
        model.open(number, timeout=number + 1.996)  # just before the border of its slot
    model.open("beyond", timeout=35)
    assert model.wheel.slot_users() == [0, *[1] * 29]
    model.advance(5.25)
    assert model.wheel.slot_users() == [*[0] * 5, *[1] * 25]
    model.touch(20)  # from 21.996 to 27.246
    assert model.wheel.slot_users() == [*[0] * 5, *[1] * 16, 0, *[1] * 5, 2, 1, 1]


def test_slot_of_gives_the_layer_and_slot_of_a_user_until_it_is_due(
    wheel_class: WheelClass,
) -> None:
    model = Model(wheel_class, timeout=30, slots=30)
    for timeout in (1.5, 29.5, 95.5, 3_000.0):
        model.open(f"{timeout}", timeout=timeout)
    slot_of = model.wheel.slot_of
    assert [slot_of(uid) for uid in model.deadlines] == [
        (0, 1),
        (0, 29),
        (1, 3),
        (2, 3),
    ]
    model.advance(5.0)
    assert [slot_of(uid) for uid in model.deadlines] == [None, (0, 29), (1, 3), (2, 3)]
    model.advance(91.0)
    assert slot_of("95.5") == (0, 5)
    model.wheel.advance(95.6, 0)  # its bucket has passed, and was not emptied yet
    assert slot_of("95.5") is None
    for uid in ("nobody", 1, "95"):
        with pytest.raises(KeyError):
            slot_of(uid)


def test_a_deadline_past_all_layers_is_refused(wheel_class: WheelClass) -> None:
    model = Model(wheel_class, timeout=1, slots=2)
    with pytest.raises(ValueError, match="too far"):
        model.wheel.touch(0, ListedActivity(), now=1e9, mono=0)
