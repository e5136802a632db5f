"""A wheel that lives through millions of operations, beside a dictionary of deadlines.

Crowds come, and go silent all at once or leave one by one: the chunks of the table and its
index grow and shrink, and their memory is given back.
"""

import gc
import os
import random
from pathlib import Path
from typing import Final

import pytest

from liveness.core.limits import Limits
from liveness.core.links.conversation import Conversation
from liveness.core.records import Uid
from liveness.core.wheel.table import Entry
from liveness.core.wheel.wheel import UNKNOWN, Wheel
from liveness.core.wire.framing import encode
from liveness.core.wire.link_requests import ActivityBatch, ListedActivity
from tests.core.conftest import READERS

ALL: Final = 10**9
TIMEOUT: Final = 30.0
BATCH: Final = 4_000
PIECE: Final = 2_000  # how many users come or leave between two batches


def uid_of(number: int) -> Uid:
    """A uid of each of the kinds that `_table` keeps in different ways."""
    kinds: tuple[Uid, ...] = (
        number,
        f"user-{number}",
        f"user-{number % 5_000}/device {number}",
        f"é{number}",
        f"{number:09}" + "x" * (number % 240),
    )
    return kinds[number % len(kinds)]


def open_user(wheel: Wheel, number: int, *, now: float) -> Uid:
    uid = uid_of(number)
    times = {"start": now, "now": now, "mono": now, "timeout": None}
    wheel.open(uid, gateway=0, session=number, conn=None, event=1, **times)  # type: ignore[arg-type]
    return uid


class Crowds:
    """A wheel, and the deadline of every user; all is drawn from one seed."""

    def __init__(self, wheel_class: type[Wheel], seed: int) -> None:
        self.wheel = wheel_class(timeout=TIMEOUT, slots=30, separator="/")
        self.wheel.add_gateway()
        self.deadlines: dict[Uid, float] = {}
        self.random = random.Random(seed)
        self.now = 0.0
        self.users = self.operations = 0
        self.link = Conversation(Limits(), READERS[-1].Reader)
        list(self.link.receive(encode(["hello", {"protocol": 1, "name": "g"}]), 0.0))

    def speak(self, batches: int) -> None:
        """Random users speak, and a few that never logged in."""
        online = [*self.deadlines]
        unknown: list[Uid] = [f"nobody-{n}" for n in range(3)]
        for n in range(batches):
            heard = self.random.choices(online, k=BATCH - len(unknown))
            signs = self.signs([*unknown, *heard], is_listed=bool(n % 2))
            left = self.wheel.touch(0, signs, now=self.now, mono=self.now)
            assert left == [(position, UNKNOWN) for position in range(len(unknown))]
            self.deadlines |= dict.fromkeys(heard, self.now + TIMEOUT)
            self.operations += BATCH

    def signs(self, uids: list[Uid], *, is_listed: bool) -> ActivityBatch:
        """Listed, or as the compiled reader packs them."""
        if is_listed:
            events = bytearray(b"\2" * len(uids))
            return ListedActivity(uids, [None] * len(uids), events)
        (run,) = self.link.receive(encode(["keepalive", uids]), 0.0)
        assert isinstance(run, ActivityBatch)
        return run

    def left(self, entry: Entry) -> None:
        assert entry.deadline == self.deadlines.pop(entry.uid)
        self.operations += 1

    def pass_time(self, seconds: float) -> None:
        """Exactly the users that are due by then go offline."""
        self.now += seconds
        self.wheel.advance(self.now, ALL)
        for entry in self.wheel.fire(0, until=self.now, limit=ALL):
            self.left(entry)
            assert entry.deadline < self.now
        soonest = min(self.deadlines.values(), default=self.now)
        assert soonest >= self.now - 1.01 * self.wheel.bucket_s

    def check(self) -> None:
        clocks = self.wheel.clocks(self.now, self.now)
        assert len(self.wheel) == len(clocks.sessions) == len(self.deadlines)
        assert sorted({*clocks.sessions}) == [*clocks.sessions]
        left = [max(0.0, at - self.now) for at in self.deadlines.values()]
        assert sorted(clocks.remaining) == sorted(left)
        uids = [*self.deadlines]
        for uid in self.random.sample(uids, min(100, len(uids))):
            entry = self.wheel.find(uid)
            assert entry is not None
            assert repr(entry.uid) == repr(uid)
            assert entry.deadline == self.deadlines[uid]

    # --- the life of a crowd -------------------------------------------------------------

    def swell(self, most: int, *, batches: int) -> None:
        while len(self.deadlines) < most:
            for number in range(self.users, self.users + PIECE):
                uid = open_user(self.wheel, number, now=self.now)
                self.deadlines[uid] = self.now + TIMEOUT
            self.users += PIECE
            self.operations += PIECE
            self.speak(batches)
            self.pass_time(0.4)
        self.check()

    def disperse(self, least: int, order: str, *, batches: int) -> None:
        online = [*self.deadlines]
        if order == "random":
            self.random.shuffle(online)
        elif order == "newest first":
            online.reverse()
        for first in range(0, len(online) - least, PIECE):
            for uid in online[first : first + PIECE]:
                if uid in self.deadlines:
                    self.left(self.wheel.close(uid))
            if self.deadlines:
                self.speak(batches)
            self.pass_time(0.05)
        self.check()

    def fall_silent(self) -> None:
        self.pass_time(TIMEOUT + 1)
        assert not self.deadlines
        self.check()

    def live(self, most: int, *, batches: int) -> None:
        self.swell(most, batches=batches)
        self.disperse(most // 3, "random", batches=batches)
        self.swell(most // 2, batches=batches)
        self.fall_silent()
        self.swell(most, batches=batches)
        self.disperse(0, "oldest first", batches=batches)
        self.swell(most // 2, batches=batches)
        self.disperse(most // 50, "newest first", batches=batches)
        self.fall_silent()


def test_a_wheel_keeps_every_clock_while_crowds_come_and_go(
    wheel_class: type[Wheel],
) -> None:
    # Enough for several chunks and a large index; the reference grows every 4,096 users.
    most = 10_000 if wheel_class is Wheel else 70_000
    Crowds(wheel_class, seed=1).live(most, batches=1)


# --- the compiled wheel only --------------------------------------------------------


@pytest.fixture
def compiled_wheel() -> type[Wheel]:
    compiled = pytest.importorskip("liveness.core.wheel._wheel", exc_type=ImportError)
    implementation: type[Wheel] = compiled.Wheel
    return implementation


@pytest.mark.slow
def test_a_wheel_keeps_every_clock_through_ten_million_operations(
    compiled_wheel: type[Wheel],
) -> None:
    crowds = Crowds(compiled_wheel, seed=2)
    while crowds.operations < 10_000_000:
        crowds.live(200_000, batches=5)


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.parametrize("separator", ["", "/"], ids=["uids", "devices"])
def test_the_memory_of_a_million_users_is_given_back_when_they_go(
    compiled_wheel: type[Wheel], separator: str
) -> None:
    users, at_once = 1_000_000, 10_000
    wheel = compiled_wheel(timeout=TIMEOUT, slots=30, separator=separator)
    wheel.add_gateway()
    before = resident_bytes()
    for number in range(users):
        open_user(wheel, number, now=0.0)
    took = resident_bytes() - before
    assert took > 88 * users
    wheel.advance(TIMEOUT + 1, ALL)
    while wheel.fire(0, until=TIMEOUT, limit=at_once):
        pass
    assert len(wheel) == 0
    # The rest belongs to malloc and the interpreter.
    assert resident_bytes() - before < took / 6
