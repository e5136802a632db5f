"""A wheel that lives through millions of operations, beside a dictionary of deadlines.

Crowds come and go, silent all at once or one by one: the table's chunks and its index
grow and shrink under way, and what they were is given back.
"""

import gc
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from liveness.core.link import Link, LinkLimits
from liveness.core.records import ListedSigns, SignsOfLife, Uid
from liveness.core.wheel import UNKNOWN, Wheel
from liveness.core.wire import Reader, encode
from tests.core.conftest import READERS

ALL: Final = 10**9
TIMEOUT: Final = 30.0
OWN_TIMEOUT: Final = 45.0
BATCH: Final = 4_000
PIECE: Final = 2_000  # who comes, or leaves, between two batches


def uid_of(number: int) -> Uid:
    """Users of every kind there is to keep: see what `_table` does with their names."""
    kinds: tuple[Uid, ...] = (
        number,
        f"user-{number}",
        f"the fourth device of user {number}",
        f"é{number}",
        f"{number:09}" + "x" * (number % 240),
    )
    return kinds[number % len(kinds)]


class Crowds:
    """A wheel and, beside it, who is due when; everything is drawn from one seed."""

    def __init__(self, wheel_class: type[Wheel], seed: int) -> None:
        self.wheel = wheel_class(timeout=TIMEOUT, slots=30)
        self.gateway = self.wheel.add_gateway()
        self.deadlines: dict[Uid, float] = {}
        self.own: set[Uid] = set()
        self.random = random.Random(seed)
        self.now = 0.0
        self.operations = 0
        self.most = 0
        self._numbers = 0
        reader: type[Reader] = READERS[-1].Reader
        self._link = Link(LinkLimits(), reader)
        hello = ["hello", {"protocol": 1, "name": "g"}]
        list(self._link.receive(encode(hello), 0.0))

    # --- who comes, speaks, and goes -------------------------------------------------

    def come(self, count: int) -> None:
        for number in range(self._numbers, self._numbers + count):
            uid, own = uid_of(number), None
            if number % 16 == 0:
                own = OWN_TIMEOUT
                self.own.add(uid)
            self.deadlines[uid] = self.now + (own or TIMEOUT)
            self.wheel.open(
                uid,
                gateway=self.gateway,
                session=number,
                conn=None,
                start=self.now,
                timeout=own,
                event=1,
                now=self.now,
                mono=self.now,
            )
        self._numbers += count
        self.operations += count
        self.most = max(self.most, len(self.deadlines))

    def speak(self, batches: int) -> None:
        """Some of those online, by chance, and a few who never were."""
        online = [*self.deadlines]
        for n in range(batches):
            strangers: list[Uid] = [f"nobody-{n}" for n in range(3)]
            uids = strangers + self.random.choices(online, k=BATCH - 3)
            left = self.wheel.touch(
                self.gateway, self.signs(uids, n), now=self.now, mono=self.now
            )
            assert left == [(position, UNKNOWN) for position in range(3)]
            heard = uids[3:]
            self.deadlines |= dict.fromkeys(heard, self.now + TIMEOUT)
            own = self.own.intersection(heard)
            self.deadlines |= dict.fromkeys(own, self.now + OWN_TIMEOUT)
            self.operations += BATCH

    def signs(self, uids: list[Uid], n: int) -> SignsOfLife:
        """Listed, or as the link's reader gives them: packed, where it is compiled."""
        if n % 2:
            return ListedSigns(uids, [None] * len(uids), bytearray(b"\2" * len(uids)))
        (run,) = self._link.receive(encode(["keepalive", uids]), 0.0)
        assert isinstance(run, SignsOfLife)
        return run

    def leave(self, uids: Sequence[Uid]) -> None:
        for uid in uids:
            assert self.wheel.close(uid).deadline == self.deadlines.pop(uid)
        self.own.difference_update(uids)
        self.operations += len(uids)

    def pass_time(self, seconds: float) -> None:
        """Whoever is due by then goes; nobody else, and nobody is left behind."""
        self.now += seconds
        self.wheel.advance(self.now, ALL)
        fired = self.wheel.fire(self.gateway, until=self.now, limit=ALL)
        for entry in fired:
            assert entry.deadline == self.deadlines.pop(entry.uid)
            assert entry.deadline < self.now
        self.own.difference_update(entry.uid for entry in fired)
        self.operations += len(fired)
        soonest = min(self.deadlines.values(), default=self.now)
        assert soonest >= self.now - 1.01 * self.wheel.bucket_s

    # --- what must hold ---------------------------------------------------------------

    def check(self) -> None:
        shot = self.wheel.snapshot(self.now)
        assert len(self.wheel) == len(shot.sessions) == len(self.deadlines)
        assert len(set(shot.sessions)) == len(shot.sessions)
        left = [max(0.0, at - self.now) for at in self.deadlines.values()]
        assert sorted(shot.remaining) == sorted(left)
        uids = [*self.deadlines]
        for uid in self.random.sample(uids, min(100, len(uids))):
            entry = self.wheel.find(uid)
            assert entry is not None
            assert (entry.uid, entry.deadline) == (uid, self.deadlines[uid])
            assert type(entry.uid) is type(uid)

    # --- a crowd's life ------------------------------------------------------------------

    def swell(self, most: int, *, batches: int) -> None:
        while len(self.deadlines) < most:
            self.come(PIECE)
            self.speak(batches)
            self.pass_time(0.4)
        self.check()

    def disperse(self, least: int, order: str, *, batches: int) -> None:
        online = [*self.deadlines]
        if order == "by chance":
            self.random.shuffle(online)
        elif order == "the newest first":
            online.reverse()
        for first in range(0, len(online) - least, PIECE):
            self.leave(
                [u for u in online[first : first + PIECE] if u in self.deadlines]
            )
            if self.deadlines:
                self.speak(batches)
            self.pass_time(0.05)
        self.check()

    def fall_silent(self) -> None:
        self.pass_time(OWN_TIMEOUT + 1)
        assert not self.deadlines
        self.check()

    def live(self, operations: int, most: int, *, batches: int) -> None:
        """Come and go, in every order, at least so many times."""
        while self.operations < operations:
            self.swell(most, batches=batches)
            self.disperse(most // 3, "by chance", batches=batches)
            self.swell(most // 2, batches=batches)
            self.fall_silent()
            self.swell(most, batches=batches)
            self.disperse(0, "the oldest first", batches=batches)
            self.fall_silent()
            self.swell(most // 2, batches=batches)
            self.disperse(most // 50, "the newest first", batches=batches)
            self.fall_silent()


def test_a_wheel_keeps_every_clock_while_crowds_come_and_go(
    wheel_class: type[Wheel],
) -> None:
    crowds = Crowds(wheel_class, seed=1)
    crowds.live(1, 70_000, batches=1)
    assert crowds.most >= 70_000


# --- only where it is compiled --------------------------------------------------------


@pytest.fixture
def compiled_wheel() -> type[Wheel]:
    compiled = pytest.importorskip("liveness.core._wheel", exc_type=ImportError)
    implementation: type[Wheel] = compiled.Wheel
    return implementation


@pytest.mark.slow
def test_a_wheel_keeps_every_clock_through_ten_million_operations(
    compiled_wheel: type[Wheel],
) -> None:
    crowds = Crowds(compiled_wheel, seed=2)
    crowds.live(10_000_000, 200_000, batches=5)
    assert crowds.operations >= 10_000_000
    assert crowds.most >= 200_000


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_what_a_million_users_took_is_given_back_when_they_go(
    compiled_wheel: type[Wheel],
) -> None:
    users, at_once = 1_000_000, 10_000
    wheel = compiled_wheel(timeout=TIMEOUT, slots=30)
    gateway = wheel.add_gateway()
    before = resident_bytes()
    for n in range(users):
        wheel.open(
            uid_of(n),
            gateway=gateway,
            session=n,
            conn=n,
            start=0.0,
            timeout=None,
            event=1,
            now=0.0,
            mono=0.0,
        )
    took = resident_bytes() - before
    assert took > 88 * users
    wheel.advance(TIMEOUT + 1, ALL)
    while wheel.fire(gateway, until=TIMEOUT, limit=at_once):
        pass
    assert len(wheel) == 0
    # What is left is malloc's and the interpreter's.
    assert resident_bytes() - before < took / 8
