"""The wheel against a model too simple to be wrong: a dictionary of deadlines.

The model knows no layers, slots or buckets. It is exact about every user's entry. A user
may fire once its deadline has passed, and must be due once a bucket more has passed; in
between the wheel is free.
"""

from collections.abc import Sequence
from itertools import count, pairwise, product
from math import inf
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liveness.core.records import Uid
from liveness.core.wheel.table import EXACT_START, OWN_TIMEOUT, RENEWED, Entry
from liveness.core.wheel.wheel import BAD_UID, OTHER_CONN, OTHER_GATEWAY, UNKNOWN, Wheel
from liveness.core.wire.link_requests import ListedActivity
from liveness.core.wire.uids import is_uid
from tests.helpers.strategies import BOUNDED, HARD_UIDS, NO_UIDS, examples

TIMEOUTS: Final = (1, 3, 30, 3_600, 86_400)
SLOTS: Final = (2, 3, 30, 3_600)
GATEWAYS: Final = 3
ALL: Final = 10**9
DAY: Final = 86_400.0

# In buckets: a border is a product and a moment is a sum, and both are rounded.
ROUNDING: Final = 0.01

WheelClass = type[Wheel]


def plain(entry: Entry | None) -> Entry:
    """An entry without the marks that only say how it came to its deadline."""
    assert entry is not None
    return entry._replace(flags=entry.flags & ~RENEWED)


class Model:
    """A wheel, and what should be in it."""

    def __init__(
        self, wheel_class: WheelClass, *, timeout: float, slots: int, now: float = 0.0
    ) -> None:
        self.wheel = wheel_class(timeout=timeout, slots=slots, now=now)
        self.now = now
        self.timeouts = [timeout] * GATEWAYS
        self.entries: dict[str, Entry] = {}  # by the text of the uid
        self.bucket_s = self.wheel.bucket_s
        self.late = self.bucket_s * (1 + ROUNDING)
        self.slot_s, self.timeout = timeout / slots, timeout
        self.sessions = count(1)
        self.longest = 0.0  # the longest wait that any user was ever given
        for number in range(GATEWAYS):
            assert self.wheel.add_gateway() == number

    # --- operations on both -----------------------------------------------------

    def open(
        self,
        uid: Uid,
        *,
        gateway: int = 0,
        timeout: float | None = None,
        conn: int | None = None,
        exact: bool = False,
    ) -> None:
        flags = OWN_TIMEOUT * (timeout is not None) | EXACT_START * exact
        lasts = timeout or self.timeouts[gateway]
        entry = self.add(uid, gateway, lasts, lasts, conn=conn, event=1, flags=flags)
        times = {"start": entry.start, "now": self.now, "mono": entry.seen}
        of = {"gateway": gateway, "session": entry.session, "conn": conn, "event": 1}
        self.wheel.open(uid, timeout=timeout, exact=exact, **of, **times)  # type: ignore[arg-type]

    def put(self, uid: Uid, *, gateway: int, lasts: float, remaining: float) -> None:
        entry = self.add(uid, gateway, lasts, remaining, conn=None, event=0, flags=0)
        self.wheel.put(entry[:-1])

    def add(
        self, uid: Uid, gateway: int, lasts: float, remaining: float, **rest: Any
    ) -> Entry:
        """Make the entry that *uid* has from now on, in the model."""
        self.longest = max(self.longest, remaining)
        times = {"timeout": lasts, "deadline": self.now + remaining}
        times |= {"start": self.now - 5, "seen": self.now + 0.5}
        entry = Entry(uid, gateway, next(self.sessions), **times, **rest)
        self.entries[str(uid)] = entry
        return entry

    def touch(
        self, gateway: int, touches: Sequence[tuple[object, int | None, int]]
    ) -> None:
        left: list[tuple[int, int]] = []
        for position, (uid, conn, event) in enumerate(touches):
            entry = self.entries.get(str(uid)) if is_uid(uid) else None
            if not is_uid(uid):
                left.append((position, BAD_UID))
            elif entry is None:
                left.append((position, UNKNOWN))
            elif entry.gateway != gateway:
                left.append((position, OTHER_GATEWAY))
            elif None not in (conn, entry.conn) and conn != entry.conn:
                left.append((position, OTHER_CONN))
            else:
                own = entry.flags & OWN_TIMEOUT
                timeout = entry.timeout if own else self.timeouts[gateway]
                self.longest = max(self.longest, timeout)
                self.entries[str(uid)] = entry._replace(
                    timeout=timeout,
                    deadline=self.now + timeout,
                    seen=self.now + 0.5,
                    event=event,
                    flags=entry.flags & ~RENEWED,
                )
        columns: Any = [*zip(*touches, strict=True)] or [(), (), ()]
        signs = ListedActivity([*columns[0]], [*columns[1]], bytearray(columns[2]))
        assert left == self.wheel.touch(
            gateway, signs, now=self.now, mono=self.now + 0.5
        )

    def amend(
        self, uid: Uid, *, conn: int | None, timeout: float | None, start: float | None
    ) -> None:
        entry = self.entries[str(uid)]
        flags = entry.flags & ~OWN_TIMEOUT | OWN_TIMEOUT * (timeout is not None)
        self.entries[str(uid)] = entry._replace(
            conn=conn,
            timeout=entry.timeout if timeout is None else timeout,
            start=entry.start if start is None else start,
            flags=flags | EXACT_START * (start is not None),
        )
        self.wheel.amend(uid, conn=conn, timeout=timeout, start=start)

    def close(self, uid: Uid) -> None:
        assert plain(self.wheel.close(uid)) == self.entries.pop(str(uid))

    def set_timeout(self, gateway: int, timeout: float) -> None:
        self.timeouts[gateway] = timeout
        self.wheel.set_timeout(gateway, timeout)

    def fire(
        self, gateway: int, *, until: float, limit: int, renewed: bool = False
    ) -> list[Entry]:
        fired = self.wheel.fire(gateway, until=until, limit=limit, renewed=renewed)
        assert len(fired) <= limit
        for entry in fired:
            assert plain(entry) == self.entries.pop(str(entry.uid))
            assert bool(entry.flags & RENEWED) is renewed
            assert entry.gateway == gateway
            assert entry.deadline <= until
            assert entry.deadline < self.now, "fired before its deadline had passed"
        return fired

    def renew(
        self, gateway: int, *, until: float, limit: int, most: float = inf
    ) -> None:
        flags = {uid: self.flags(uid) for uid in self.entries}
        number = self.wheel.renew(gateway, until=until, limit=limit, most=most)
        assert number <= limit
        for uid, entry in self.entries.items():
            is_same = plain(self.wheel.find(uid)) == entry
            if is_same and flags[uid] == self.flags(uid):
                continue
            number -= 1
            assert not flags[uid] & RENEWED
            assert self.flags(uid) & RENEWED
            assert entry.gateway == gateway
            assert entry.deadline <= until
            assert entry.deadline < self.now
            self.longest = max(self.longest, entry.timeout)
            deadline = min(until + entry.timeout, entry.deadline + most)
            self.entries[uid] = entry._replace(deadline=deadline)
        assert number == 0

    def flags(self, uid: Uid) -> int:
        found = self.wheel.find(uid)
        assert found is not None
        return found.flags

    def advance(self, now: float, *, few: int = ALL) -> None:
        """Move the hand, at first by a few steps only, and check everything."""
        self.now = now
        self.wheel.advance(now, few)
        self.check_due(all_laid=False)
        if any(
            self.wheel.due(gateway) < len(self.passed(gateway, by=self.late))
            for gateway in range(GATEWAYS)
        ):
            wanted = self.wheel.next_due()
            assert wanted <= now + ROUNDING * self.bucket_s, "the rest is forgotten"
        self.wheel.advance(now, ALL)
        self.check()

    # --- invariants --------------------------------------------------------------

    def passed(self, gateway: int, *, by: float = 0.0) -> set[Uid]:
        """The users of *gateway* whose deadline has passed by more than *by* seconds."""
        return {
            entry.uid
            for entry in self.entries.values()
            if entry.gateway == gateway and entry.deadline + by < self.now
        }

    def check_due(self, *, all_laid: bool) -> None:
        for gateway in range(GATEWAYS):
            due = self.wheel.due(gateway)
            assert due <= len(self.passed(gateway)), "due before the deadline"
            if all_laid:
                assert due >= len(self.passed(gateway, by=self.late)), "a bucket late"

    def check(self) -> None:
        self.check_due(all_laid=True)
        assert len(self.wheel) == len(self.entries)
        for uid, entry in self.entries.items():
            found = plain(self.wheel.find(uid))
            assert found == entry
            assert type(found.uid) is type(entry.uid)
        due = sum(self.wheel.due(number) for number in range(GATEWAYS))
        users = self.wheel.slot_users()
        assert len(users) == self.wheel.slots
        assert min(users) >= 0
        assert sum(users) + due <= len(self.wheel)
        places = [self.wheel.slot_of(uid) for uid in self.entries]
        assert places.count(None) == due
        # A bucket less, because a sum may round to the next one.
        if self.longest <= self.timeout - self.bucket_s:
            assert sum(users) + due == len(self.wheel), "a user is in no slot"

    def check_copies(self) -> None:
        """`clocks` has all users' clocks, in order, and `owned` all users of a gateway."""
        *columns, _ = self.wheel.clocks(self.now, self.now + 0.1)
        entries = self.entries.values()
        assert [*columns[0]] == sorted(entry.session for entry in entries)
        left = [max(0.0, entry.deadline - self.now) for entry in entries]
        assert sorted(columns[2]) == sorted(left)
        for gateway in range(GATEWAYS):
            uids, place = self.wheel.owned([gateway], 0, ALL)
            owned = [entry.uid for entry in entries if entry.gateway == gateway]
            assert sorted(map(repr, uids)) == sorted(map(repr, owned))
            assert place == -1

    def check_next_due(self) -> None:
        """No user comes due before the moment at which the hand has to move next."""
        next_due = self.wheel.next_due()
        ahead = [e.deadline for e in self.entries.values() if e.deadline >= self.now]
        assert next_due <= min(ahead, default=next_due) + self.late


# --- the property ----------------------------------------------------------------


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


STEPS: Final = (
    *("open", "open", "put", "touch", "touch", "advance", "advance", "advance", "to"),
    *("amend", "close", "set_timeout", "fire", "fire", "renew", "renew"),
)


@settings(BOUNDED, max_examples=examples(100))
@given(data=st.data())
def test_the_wheel_agrees_with_a_plain_dictionary_of_deadlines(
    wheel_class: WheelClass, data: st.DataObject
) -> None:
    model = Model(
        wheel_class,
        timeout=data.draw(st.sampled_from(TIMEOUTS)),
        slots=data.draw(st.sampled_from(SLOTS)),
        now=data.draw(st.sampled_from([0.0, 0.1, 12_345.678, 1e7 / 3])),
    )
    wait = st.sampled_from(waits(model)) | st.floats(0, 3 * model.timeout)
    timeouts = wait.filter(lambda seconds: seconds >= 0.001)
    numbers, limits = st.integers(0, GATEWAYS - 1), st.sampled_from([0, 1, 2, ALL])
    pool = st.sampled_from(HARD_UIDS)
    conn = st.sampled_from([None, 1, 2**63 - 1])
    for step in data.draw(st.lists(st.sampled_from(STEPS), min_size=15, max_size=40)):
        # By the name of its login, and by its text.
        known: list[Uid | None] = [*model.entries]
        known += [entry.uid for entry in model.entries.values()] or [None]
        number, uid = data.draw(numbers), data.draw(st.sampled_from(known))
        if step in ("fire", "renew") and model.wheel.waiting():
            number = data.draw(st.sampled_from(model.wheel.waiting()))
        if step == "open":
            uid = data.draw(pool)
            if str(uid) not in model.entries:
                own, exact = data.draw(st.none() | timeouts), data.draw(st.booleans())
                model.open(
                    uid, gateway=number, timeout=own, conn=data.draw(conn), exact=exact
                )
        elif step == "put":
            uid = data.draw(pool)
            if str(uid) not in model.entries:
                lasts, remaining = data.draw(timeouts), data.draw(wait)
                model.put(uid, gateway=number, lasts=lasts, remaining=remaining)
        elif step == "touch":
            touch = st.tuples(pool | st.sampled_from(NO_UIDS), conn, st.integers(1, 3))
            model.touch(number, data.draw(st.lists(touch, max_size=6)))
        elif step == "advance":
            few = data.draw(st.sampled_from([1, 3, ALL]))
            model.check_next_due()
            model.advance(model.now + data.draw(wait), few=few)
        elif step == "set_timeout":
            model.set_timeout(number, data.draw(timeouts))
        elif step == "fire":
            ago = data.draw(st.sampled_from([0.0, model.bucket_s, model.slot_s]))
            renewed, limit = data.draw(st.booleans()), data.draw(limits)
            model.fire(number, until=model.now - ago, limit=limit, renewed=renewed)
        elif step == "renew":
            ago = data.draw(st.sampled_from([0.0, model.bucket_s, model.timeout]))
            # With less than a bucket a deadline would seem to be where it was.
            most = data.draw(st.sampled_from([inf, model.bucket_s, model.timeout]))
            limit = data.draw(limits)
            model.renew(number, until=model.now - ago, limit=limit, most=most)
        elif uid is None:
            continue
        elif step == "to":
            off = data.draw(st.sampled_from([-1, 0, 0.001, 1, 1 + ROUNDING]))
            deadline = model.entries[str(uid)].deadline + off * model.bucket_s
            model.advance(max(model.now, deadline))
        elif step == "amend":
            own = data.draw(st.none() | timeouts)
            start = data.draw(st.sampled_from([None, 3.25]))
            model.amend(uid, conn=data.draw(conn), timeout=own, start=start)
        elif step == "close":
            model.close(uid)
        model.check()

    model.check_copies()
    model.advance(max([model.now, *(e.deadline for e in model.entries.values())]) + 1)
    for number, renewed in product(range(GATEWAYS), (False, True)):
        model.fire(number, until=model.now, limit=ALL, renewed=renewed)
    assert (len(model.wheel), model.entries) == (0, {})
    assert sum(model.wheel.slot_users()) == 0


# --- the hand --------------------------------------------------------------------


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


def test_users_that_are_longest_due_fire_first(wheel_class: WheelClass) -> None:
    model = Model(wheel_class, timeout=3, slots=30)
    for number in range(500):
        model.open(number, timeout=1 + number * 7_919 % 5_000 / 1_000)
    while model.now < 7:
        model.now += 0.095
        model.wheel.advance(model.now, ALL)
    fired = []
    while model.entries:
        fired += model.fire(0, until=model.now, limit=64)
    for first, second in pairwise(fired):
        assert first.deadline < second.deadline + model.bucket_s


def test_users_fire_only_up_to_the_moment_named(wheel_class: WheelClass) -> None:
    model = Model(wheel_class, timeout=3, slots=30)
    model.open("early", timeout=1)
    model.open("late", timeout=2)
    assert model.wheel.longest_due(0) == inf
    model.advance(2.5)
    assert model.wheel.longest_due(0) == 1.0
    assert model.fire(0, until=0.9, limit=ALL) == []
    assert [entry.uid for entry in model.fire(0, until=1.0, limit=ALL)] == ["early"]
    assert model.wheel.longest_due(0) == 2.0
    assert [entry.uid for entry in model.fire(0, until=2.5, limit=ALL)] == ["late"]
    assert model.wheel.longest_due(0) == inf


def test_users_with_a_fresh_timeout_and_others_do_not_wait_for_each_other(
    wheel_class: WheelClass,
) -> None:
    model = Model(wheel_class, timeout=3, slots=30)
    model.open("renewed")
    model.advance(4)
    model.open("fresh", timeout=2)
    model.renew(0, until=4, limit=ALL, most=1)
    model.advance(7)
    assert (model.wheel.longest_due(0), model.wheel.due(0)) == (6, 2)
    assert model.wheel.longest_due(0, renewed=True) == 4
    assert [entry.uid for entry in model.fire(0, until=7, limit=ALL)] == ["fresh"]
    assert model.wheel.waiting() == [0]
    model.renew(0, until=7, limit=ALL)
    assert model.wheel.due(0) == 1
    (entry,) = model.fire(0, until=7, limit=ALL, renewed=True)
    assert entry.uid == "renewed"
    assert model.wheel.waiting() == []


# --- what it shows ---------------------------------------------------------------


def test_each_user_is_in_the_slot_of_its_deadline(wheel_class: WheelClass) -> None:
    model = Model(wheel_class, timeout=30, slots=30)
    for number in range(29):
        model.open(number, timeout=number + 1.996)  # just before the border of its slot
    model.open("beyond", timeout=35)
    assert model.wheel.slot_users() == [0, *[1] * 29]
    model.advance(5.25)
    assert model.wheel.slot_users() == [*[0] * 5, *[1] * 25]
    model.touch(0, [(20, None, 2)])  # from 21.996 to 27.246
    assert model.wheel.slot_users() == [*[0] * 5, *[1] * 16, 0, *[1] * 5, 2, 1, 1]


def test_slot_of_gives_the_layer_and_slot_of_a_user_until_it_is_due(
    wheel_class: WheelClass,
) -> None:
    model = Model(wheel_class, timeout=30, slots=30)
    for timeout in (1.5, 29.5, 95.5, 3_000.0):
        model.open(f"{timeout}", timeout=timeout)
    slot_of = model.wheel.slot_of
    assert [slot_of(uid) for uid in model.entries] == [(0, 1), (0, 29), (1, 3), (2, 3)]
    model.advance(5.0)
    assert [slot_of(uid) for uid in model.entries] == [None, (0, 29), (1, 3), (2, 3)]
    model.advance(91.0)
    assert slot_of("95.5") == (0, 5)
    model.wheel.advance(95.6, 0)  # its bucket has passed, and was not emptied yet
    assert slot_of("95.5") is None
    for uid in ("nobody", 1, "95"):
        with pytest.raises(KeyError):
            slot_of(uid)


# --- the table -------------------------------------------------------------------


def test_places_that_were_given_back_are_used_again(wheel_class: WheelClass) -> None:
    model = Model(wheel_class, timeout=3, slots=30)

    def table_size() -> int:
        place, looks = 0, 0
        while place >= 0:
            _, place = model.wheel.owned([0], place, 1_000)
            looks += 1
        return looks

    def come_and_go(users: int) -> None:
        for number in range(users):
            model.open(number)
        model.now += 4
        model.wheel.advance(model.now, ALL)
        assert len(model.fire(0, until=model.now, limit=ALL)) == users

    come_and_go(3_000)
    size = table_size()
    for _ in range(3):
        come_and_go(3_000)
    for _ in range(6_000):  # so that the sentinels of lists have to be given back, too
        come_and_go(1)
    assert table_size() == size


def test_a_deadline_past_all_layers_is_refused(wheel_class: WheelClass) -> None:
    model = Model(wheel_class, timeout=1, slots=2)
    with pytest.raises(ValueError, match="too far"):
        model.wheel.touch(0, ListedActivity(), now=1e9, mono=0)
