"""The compiled wheel and reader against their references in Python.

Both are given the same, and must answer the same, to the last bit and in the same order;
that the reference is right is for the other tests. Two things are free: where in its table
the wheel keeps a user, so the order of a snapshot and of `owned`; and how a link's signs of
life are cut into runs.
"""

import random
from collections.abc import Collection, Sequence
from itertools import chain, product
from math import inf
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liveness.core.limits import Limits
from liveness.core.links.conversation import Conversation
from liveness.core.records import GATEWAY_LOST, SILENCE, Instant, Uid
from liveness.core.wheel.devices import user_of
from liveness.core.wheel.record_batch import Endings, Logins, RecordBatch
from liveness.core.wheel.table import EXACT_START, OWN_TIMEOUT, RENEWED, Entry
from liveness.core.wheel.wheel import Wheel
from liveness.core.wire.framing import Reader, encode
from liveness.core.wire.link_requests import ActivityBatch, ListedActivity
from tests.core.link_trace import told
from tests.helpers.strategies import BOUNDED, HARD_UIDS, NO_UIDS, conns, examples, uids

_records: Any = pytest.importorskip(
    "liveness.core.wheel._records", exc_type=ImportError
)
_wheel: Any = pytest.importorskip("liveness.core.wheel._wheel", exc_type=ImportError)
_wire: Any = pytest.importorskip("liveness.core.wire._wire", exc_type=ImportError)

ALL: Final = 10**9
DAY: Final = 86_400.0
EVENT_NAMES: Final = {2: "keepalive", 3: "message"}
HELLO: Final = ["hello", {"protocol": 1, "name": "g"}]
Touch = tuple[Any, int | None, int]  # uid, conn, event


class Pair:
    """Both wheels, which must answer every question alike."""

    def __init__(
        self, *, timeout: float, slots: int, now: float, separator: str = ""
    ) -> None:
        given = {"timeout": timeout, "slots": slots, "now": now}
        self.reference = Wheel(**given, separator=separator)  # type: ignore[arg-type]
        self.compiled: Wheel = _wheel.Wheel(**given, separator=separator)
        self.separator = separator
        self.link = Conversation(Limits(), _wire.Reader)
        list(self.link.receive(encode(HELLO), 0.0))
        self.now = now
        self.gateways = 0
        self.met: dict[Uid, None] = {}  # every user there ever was
        self.online: dict[Uid, None] = {}

    def same(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of both."""
        answer = getattr(self.reference, method)(*args, **options)
        # As text: it tells 7 from "7" and 1 from True, and one float from the next.
        assert repr(getattr(self.compiled, method)(*args, **options)) == repr(answer)
        return answer

    def add_gateway(self) -> None:
        assert self.same("add_gateway") == self.gateways
        self.gateways += 1

    def open(
        self,
        uid: Uid,
        gateway: int,
        conn: int | None,
        timeout: float | None,
        *,
        exact: bool,
    ) -> None:
        session = len(self.met) + 1
        self.met[uid] = self.online[uid] = None
        clocks = {"start": self.now - 5, "now": self.now, "mono": self.now + 0.5}
        of = {"gateway": gateway, "session": session, "conn": conn, "event": 1}
        self.same("open", uid, timeout=timeout, exact=exact, **of, **clocks)

    def put(self, entry: Entry) -> None:
        self.met[entry.uid] = self.online[entry.uid] = None
        self.same("put", entry[:-1])

    def touch(self, gateway: int, signs: ActivityBatch) -> None:
        self.same("touch", gateway, signs, now=self.now, mono=self.now + 0.25)

    def touch_packed(self, gateway: int, touches: Sequence[Touch]) -> None:
        """Touch by runs as the compiled reader gives them, listed where it must."""
        frames = [
            [EVENT_NAMES[event], uid, {"conn": conn}] for uid, conn, event in touches
        ]
        data = b"".join(map(encode, frames))
        for run in self.link.receive(data, 0.0):
            if isinstance(run, ActivityBatch):  # and not the refusal of a bad uid
                self.touch(gateway, run)

    def close(self, uid: Uid) -> None:
        del self.online[self.same("close", uid).uid]

    def fire(self, gateway: int, *, until: float, limit: int, renewed: bool) -> None:
        which = {"until": until, "limit": limit, "renewed": renewed}
        for entry in self.same("fire", gateway, **which):
            del self.online[entry.uid]

    def begin(self, logins: Logins, first: int, limit: int) -> None:
        for record in self.same_records("begin", logins, first, limit=limit):
            self.met[record.uid] = self.online[record.uid] = None

    def end(self, endings: Endings) -> None:
        for record in self.same_records("end", endings):
            del self.online[record.uid]

    def same_records(self, method: str, *args: Any, **options: Any) -> list[Any]:
        """Call a method that fills a batch; the records must be the same, too."""
        at = Instant(self.now, self.now + 0.5, 1_700_000_000_000, 1_700_000_000.25)
        answers = []
        for wheel, batch in (
            (self.reference, RecordBatch()),
            (self.compiled, _records.RecordBatch()),
        ):
            options |= {"seq": len(self.met) + 1, "at": at}
            answer = getattr(wheel, method)(batch, *args, **options)
            answers.append((answer, [*batch], batch.due, batch.opened(), batch.closed))
        assert repr(answers[1]) == repr(answers[0])
        return [*answers[0][1]]

    def check(self) -> None:
        for method in ("__len__", "waiting", "next_due", "slot_users"):
            self.same(method)
        for attribute in ("slots", "bucket_s", "hand", "users"):
            self.same("__getattribute__", attribute)
        for uid in self.met:
            self.same("find", uid)
            self.same("devices_of", user_of(uid, self.separator or "/"), 1_000)
        for uid in self.online:
            self.same("slot_of", uid)
        for gateway in range(self.gateways):
            for method in ("due", "longest_due", "timeout_of", "silences"):
                self.same(method, gateway)
            self.same("longest_due", gateway, renewed=True)
        assert self.clocks(self.compiled) == self.clocks(self.reference)
        assert len(self.reference) == len(self.online)

    def clocks(self, wheel: Wheel) -> list[str]:
        columns = wheel.clocks(self.now, self.now + 0.25).columns
        assert [column.typecode for column in columns] == ["q", "d", "d", "d", "b"]
        assert sorted(columns[0]) == [*columns[0]]
        # Only here do users share a session; their order among themselves is open.
        return sorted(map(repr, zip(*columns, strict=True)))

    def check_owned(self, stretch: int) -> None:
        gateways = range(self.gateways)
        for some in (*([gateway] for gateway in gateways), gateways[1:]):
            found = owned(self.reference, some, stretch)
            assert owned(self.compiled, some, stretch) == found


def owned(wheel: Wheel, gateways: Collection[int], stretch: int) -> list[str]:
    found: list[Uid] = []
    place = 0
    while place >= 0:
        some, place = wheel.owned(gateways, place, stretch)
        assert len(some) <= stretch
        found += some
    return sorted(map(repr, found))


def gaps(pair: Pair, timeout: float) -> st.SearchStrategy[float]:
    """Seconds around all that time is divided by, and any others."""
    bucket, slots = pair.compiled.bucket_s, pair.compiled.slots
    borders = [bucket, timeout / slots, timeout, timeout * slots, timeout * slots**2]
    around = [border + off * bucket for border in borders for off in (-1, 0, 0.01, 1)]
    soon = [0.0, bucket / 3, 2.5 * timeout]
    near = [gap for gap in (*soon, *around) if 0 <= gap < 200 * DAY]
    return st.sampled_from(near) | st.floats(0, 3 * timeout)


# Of each size in bytes that a uid may have.
long_uids = st.integers(1, 255).map(lambda size: "é" * (size // 2) + "x" * (size % 2))
users = st.sampled_from(["a", "é", "a" * 30, "/", "", "a/", "b//", "7", "07"])
devices = st.builds(
    "{}{}{}".format, users, st.sampled_from(["/", "::"]), st.integers(0, 9)
)
numbers = st.integers(0, 40) | st.integers(0, 40).map(str)
pool = st.sampled_from(HARD_UIDS) | numbers | long_uids | uids | devices
STEPS: Final = (
    *("open", "open", "put", "put", "begin", "begin", "listed", "listed", "packed"),
    *("packed", "advance", "advance", "advance", "advance", "amend", "close", "fire"),
    *("fire", "end", "end", "renew"),
    *("add_gateway", "set_timeout", "owned"),
)


@settings(BOUNDED, max_examples=examples(60))
@given(data=st.data())
def test_the_compiled_wheel_does_to_the_bit_what_the_reference_does(
    data: st.DataObject,
) -> None:
    timeout = data.draw(st.sampled_from([1.0, 3.0, 30.0, 3_600.0, DAY]))
    pair = Pair(
        timeout=timeout,
        slots=data.draw(st.sampled_from([2, 3, 30, 30, 30, 500])),
        now=data.draw(st.sampled_from([0.0, 0.1, 12_345.678, 1e7 / 3])),
        separator=data.draw(st.sampled_from(["", "/", "/", "::", "é"])),
    )
    pair.add_gateway()
    for step in data.draw(st.lists(st.sampled_from(STEPS), min_size=10, max_size=40)):
        take_step(data, pair, step, gaps(pair, timeout))
        pair.check()
    pair.check_owned(1_000)


def test_a_held_user_who_was_seen_before_0_has_no_deadline_in_either() -> None:
    pair = Pair(timeout=1.0, slots=3, now=0.0)
    pair.add_gateway()
    pair.put(Entry("u", 0, 1, None, -9.0, 1.0, 0.5, -5.0, 1, 0))
    pair.now = 2.0
    pair.same("advance", 2.0, ALL)
    held = {"held_above": 0.0, "held_until": 1.0, "counted_above": 0.0}
    pair.end(Endings(0, "g", SILENCE, until=2.0, limit=ALL, renewed=False, **held))
    assert not pair.online


def take_step(
    data: st.DataObject, pair: Pair, step: str, gap: st.SearchStrategy[float]
) -> None:
    timeouts = gap.filter(lambda seconds: seconds >= 0.001)
    gateway = data.draw(st.integers(0, pair.gateways - 1))
    known = st.sampled_from([*pair.online]) if pair.online else None
    until = pair.now - data.draw(st.sampled_from([0.0, pair.compiled.bucket_s]) | gap)
    limit = data.draw(st.sampled_from([0, 1, 2, ALL]))
    match step:
        case "open" | "put":
            uid, conn = data.draw(pool), data.draw(conns)
            if str(uid) in map(str, pair.online):
                return
            if step == "open":
                own, exact = data.draw(st.none() | timeouts), data.draw(st.booleans())
                pair.open(uid, gateway, conn, own, exact=exact)
                return
            lasts, deadline = data.draw(timeouts), pair.now + data.draw(gap)
            flags = data.draw(st.integers(0, OWN_TIMEOUT | RENEWED | EXACT_START))
            clocks = (pair.now - 9, lasts, deadline, pair.now - 1)
            event = data.draw(st.integers(0, 3))
            pair.put(Entry(uid, gateway, 2**62, conn, *clocks, event, flags))
        case "listed" | "packed":
            # `one_of` would give each of the strategies in `pool` the weight of `known`.
            kinds = [pool if known is None else known] * 3
            kinds += [pool, st.sampled_from(NO_UIDS)]
            who = st.sampled_from(kinds).flatmap(lambda kind: kind)
            if pair.online:  # also by the other name of a number
                kinds += [st.sampled_from([*map(str, pair.online)])]
            touch = st.tuples(who, conns, st.sampled_from([*EVENT_NAMES]))
            touches = data.draw(st.lists(touch, max_size=80))
            if step == "packed":
                pair.touch_packed(gateway, touches)
                return
            columns = [*zip(*touches, strict=True)] or [(), (), ()]
            signs = ListedActivity([*columns[0]], [*columns[1]], bytearray(columns[2]))
            pair.touch(gateway, signs)
        case "advance":
            pair.now += data.draw(gap)
            pair.same(
                "advance", pair.now, data.draw(st.sampled_from([0, 1, 3, 100, ALL]))
            )
        case "amend" | "close" if known is None:
            return
        case "amend":
            uid, conn = data.draw(known), data.draw(conns)  # type: ignore[arg-type]  # not None: see above
            own, start = data.draw(st.none() | timeouts), data.draw(st.none() | gap)
            pair.same("amend", uid, conn=conn, timeout=own, start=start)
        case "close":
            pair.close(data.draw(known))  # type: ignore[arg-type]  # not None: see above
        case "fire":
            renewed = data.draw(st.booleans())
            pair.fire(gateway, until=until, limit=limit, renewed=renewed)
        case "begin":
            login = st.tuples(pool, conns, st.none() | gap)
            rows = data.draw(st.lists(login, min_size=1, max_size=40))
            logins = Logins(
                gateway, f"g{gateway}", *columns_of(rows), pair.now - data.draw(gap),
                data.draw(st.none() | timeouts), data.draw(st.integers(1, 3)),
            )  # fmt: skip
            pair.begin(logins, data.draw(st.sampled_from([0, 0, len(rows)])), limit)
        case "end":
            reason = data.draw(st.sampled_from([SILENCE, GATEWAY_LOST]))
            above, until_held, counted = (data.draw(gap) for _ in range(3))
            pair.end(
                Endings(
                    gateway, f"g{gateway}", reason, until, limit,
                    data.draw(st.booleans()), pair.now - above, pair.now - until_held,
                    pair.now - counted,
                )
            )  # fmt: skip
        case "renew":
            most = data.draw(st.just(inf) | gap)
            pair.same("renew", gateway, until=until, limit=limit, most=most)
        case "add_gateway":
            pair.add_gateway()
        case "set_timeout":
            pair.same("set_timeout", gateway, data.draw(timeouts))
        case "owned":
            pair.check_owned(data.draw(st.sampled_from([1_000, 3_000, ALL])))
        case _:
            raise AssertionError(step)


def columns_of(
    rows: Sequence[tuple[Uid, int | None, float | None]],
) -> tuple[list[Uid], list[int | None], list[float | None]]:
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def test_a_touch_changes_every_kind_of_entry_as_the_reference_does() -> None:
    pair = Pair(timeout=30.0, slots=30, now=12.3)
    for _ in range(2):
        pair.add_gateway()
    kinds = product(
        range(2), [None, 1], range((OWN_TIMEOUT | RENEWED | EXACT_START) + 1), [2, 3]
    )
    for (n, kind), conn in product(enumerate(kinds), [None, 1, 2]):
        gateway, own_conn, flags, event = kind
        uid = f"{n} heard with {conn}"
        clocks = (pair.now - 9, 5.0, pair.now + 5, pair.now - 1)
        pair.put(Entry(uid, gateway, n, own_conn, *clocks, n % 4, flags))
        pair.touch(0, ListedActivity([uid], [conn], bytearray([event])))
        pair.touch_packed(1, [(uid, conn, event)])
        pair.check()
        for timeout in (7.0, None):
            pair.same("amend", uid, conn=conn, timeout=timeout)
            pair.touch_packed(0, [(uid, own_conn, event)])
            pair.check()


def kept_in_different_ways(number: int) -> Uid:
    kinds: tuple[Uid, ...] = (
        number,
        f"user-{number}",
        f"user-{number % 5_000}/device {number}",
        f"é{number}",
        f"{number:09}" + "x" * (number % 240),
    )
    return kinds[number % len(kinds)]


@pytest.mark.long
def test_crowds_that_come_and_go_and_fall_silent_leave_both_alike() -> None:
    """Enough for several chunks and a large index, which grow and shrink."""
    pair = Pair(timeout=30.0, slots=30, now=0.0, separator="/")
    pair.add_gateway()
    uids = [kept_in_different_ways(number) for number in range(70_000)]
    dice = random.Random(1)
    for online, order in ((70_000, "random"), (60_000, "oldest")):
        for first in range(0, online, 4_000):
            for uid in uids[first : min(first + 4_000, online)]:
                if uid not in pair.online:
                    pair.open(uid, 0, None, None, exact=False)
            heard: list[Touch] = [(it, None, 2) for it in dice.sample(uids, 4_000)]
            pair.touch_packed(0, heard)
            pair.now += 0.4
            pair.same("advance", pair.now, ALL)
        assert pair.clocks(pair.compiled) == pair.clocks(pair.reference)
        leaving = [*pair.online]
        if order == "random":
            dice.shuffle(leaving)
        for uid in leaving[1_000:]:
            pair.close(uid)
        assert pair.clocks(pair.compiled) == pair.clocks(pair.reference)
        pair.now += 31.0
        pair.same("advance", pair.now, ALL)
        pair.fire(0, until=pair.now, limit=ALL, renewed=False)
        assert not pair.online


LIMITS: Final = Limits(max_frame_bytes=4_500, max_batch=5, max_refused=100)

# Around every border that a uid, a conn or a header of theirs has.
BORDERS: Final[list[Any]] = [
    *[2**bits + off for bits in (5, 7, 8, 15, 16, 31, 32, 63) for off in (-1, 0)],
    *[0, 2**64 - 1, -1, -32, -33, -(2**63), None, True, 1.0, b"7", {}, [], [1]],
    *["", " ", "\x1f", "a\x7f", "\x80", "\ud7ff", "é" * 127 + "x", "é" * 128],
    *["a" * size for size in (31, 32, 255, 256)],
]  # fmt: skip


def test_a_link_says_the_same_at_every_border_of_a_sign_of_life() -> None:
    for one, other in product(BORDERS, BORDERS):
        batches: list[tuple[Any, Any]] = [
            *((one, other), ([7, one], [1, other]), ([one, 7, other], None)),
            *(([7, one], other), (one, [other]), ([7], [one, other])),
        ]
        if one is other:
            batches += [([7] * 5, [1] * 4 + [one]), ([7, 8], [one])]
            batches += [([one] * 6, [1] * 6)]  # at the end: it may be too large
        signs = [["message", uid, {"conn": conn}] for uid, conn in batches]
        frames = chain.from_iterable((sign, ["keepalive", 7]) for sign in signs)
        data = b"".join(map(encode, (HELLO, ["keepalive", "u"], *frames)))
        assert told(_wire.Reader, [data], LIMITS) == told(Reader, [data], LIMITS)
