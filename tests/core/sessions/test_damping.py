"""The damper: who is left out, and that no reader is wrong about who is online."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.core.records import GAP, MOVED, OFFLINE, ONLINE, Record
from liveness.core.sessions.damping import (
    DampedRecord,
    Damper,
    DampingCounts,
    damped_record,
    moved,
)
from tests.helpers.strategies import BOUNDED

SETTLE_MS = 100
FOR_EVER = 10**9


class Item(NamedTuple):
    """A record, as a reader has it."""

    seq: int
    kind: str
    user: str
    gateway: str
    at: int


def move(offline: Item, online: Item) -> Item:
    return online._replace(kind=MOVED)


@st.composite
def histories(draw: st.DrawFn) -> list[Item]:
    """A log: sessions of a few users that begin, move and end, with rising times."""
    online: dict[str, str] = {}
    log, at = list[Item](), 0
    for seq in range(1, draw(st.integers(0, 25)) + 1):
        user = draw(st.sampled_from("abc"))
        at += draw(st.sampled_from((0, 1, 40, 99, 100, 300)))
        gateway = draw(st.sampled_from(("g1", "g2")))
        if user not in online:
            kind = ONLINE
        elif draw(st.booleans()) or gateway == online[user]:
            kind, gateway = OFFLINE, online[user]
        else:
            kind = MOVED
        log.append(Item(seq, kind, user, gateway, at))
        if kind == OFFLINE:
            del online[user]
        else:
            online[user] = gateway
    return log


def damper(
    *, counts: DampingCounts | None = None, doubtful_until: int = 0
) -> Damper[Item]:
    return Damper(
        SETTLE_MS,
        counts=counts or DampingCounts(1_000),
        move=move,
        wants=lambda _: True,
        doubtful_until=doubtful_until,
    )


def taken(damping: Damper[Item]) -> list[Item]:
    return [it.item for it in damping.take()]


def settled(damping: Damper[Item], now_ms: int) -> list[Item]:
    """Take all that has settled by then, at the end of the log."""
    damping.complete(now_ms)
    return taken(damping)


def add(damping: Damper[Item], item: Item) -> list[Item]:
    damping.put(item, DampedRecord(*item))
    return taken(damping)


@pytest.mark.parametrize(("after_ms", "is_back"), [(99, True), (100, False)])
def test_a_user_who_is_back_in_time_is_left_out(after_ms: int, is_back: bool) -> None:
    counts = DampingCounts(9)
    damping = damper(counts=counts)
    off = Item(1, OFFLINE, "ada", "g1", 0)
    back = Item(2, ONLINE, "ada", "g1", after_ms)
    passed = [*add(damping, off), *settled(damping, 99), *add(damping, back)]
    assert passed == ([] if is_back else [off, back])
    assert (counts.left_out, len(damping)) == (2 if is_back else 0, 0)


def test_a_user_who_is_back_at_another_gateway_has_moved() -> None:
    damping = damper()
    add(damping, Item(1, OFFLINE, "ada", "g1", 0))
    back = Item(9, ONLINE, "ada", "g2", 50)
    damping.put(back, DampedRecord(*back))
    # Until it is delivered its offline must be read again.
    assert damping.take() == [(back._replace(kind=MOVED), 1)]


def fold(items: Iterator[Item] | Sequence[Item]) -> dict[str, str]:
    """The gateway of each online user, as a receiver of these records has it."""
    online = dict[str, str]()
    for item in items:
        if item.kind == OFFLINE:
            online.pop(item.user, None)
        else:
            online[item.user] = item.gateway
    return online


@BOUNDED
@given(
    histories(),
    st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=6),
    st.integers(1, 3),
)
def test_a_receiver_knows_who_is_online_after_restarts_and_overflows(
    log: list[Item], runs: list[tuple[int, bool]], most: int
) -> None:
    """A restarted reader goes on before the oldest offline that waited, or earlier."""
    received, position, reached = list[Item](), 0, 0
    for steps, is_stored in [*runs, (len(log), True)]:
        damping = damper(counts=DampingCounts(most), doubtful_until=reached)
        read = position
        for item in log[position : position + steps]:
            received += add(damping, item)
            read = item.seq
        assert len(damping) <= most
        if is_stored:  # the cursor reached the disk
            position = read if damping.position is None else damping.position
        reached = max(reached, read)
    for item in log[position:]:
        received += add(damping, item)
    received += settled(damping, FOR_EVER)
    assert fold(received) == fold(log)


def test_above_the_bound_the_oldest_is_passed_on_early_and_counted() -> None:
    counts = DampingCounts(1)
    damping = damper(counts=counts)
    first, second = (Item(n, OFFLINE, f"u{n}", "g1", 0) for n in (1, 2))
    assert add(damping, first) == []
    assert add(damping, second) == [first]
    assert (len(damping), counts.hurried) == (1, 1)
    assert [it.item for it in damping.flush()] == [second]


def test_after_the_wall_clock_was_set_back_no_offline_waits_longer() -> None:
    damping = damper()
    for seq, at in ((1, 10_000), (2, 10_050), (3, 0)):
        add(damping, Item(seq, OFFLINE, f"u{seq}", "g1", at))
    assert settled(damping, 20) == []
    assert [item.seq for item in settled(damping, 120)] == [1, 2, 3]


def test_after_a_doubtful_offline_only_the_online_is_passed_on() -> None:
    damping = damper(doubtful_until=1)
    assert add(damping, Item(1, OFFLINE, "ada", "g1", 0)) == []
    back = Item(2, ONLINE, "ada", "g1", 50)
    assert add(damping, back) == [back]


def test_a_reader_of_some_gateways_without_moves_gets_both_records() -> None:
    damping = Damper(
        SETTLE_MS,
        counts=DampingCounts(9),
        move=move,
        wants=lambda _: True,
        wants_moves=False,
        has_gateways=True,
    )
    off, back = (
        Item(n, k, "ada", g, 0) for n, k, g in ((1, OFFLINE, "g1"), (2, ONLINE, "g2"))
    )
    assert add(damping, off) == []
    assert add(damping, back) == [off, back]


def test_a_clock_that_was_set_back_is_noticed_by_the_records_too() -> None:
    damping = damper()
    add(damping, Item(1, OFFLINE, "ada", "g1", 10_000))
    others = [Item(n, ONLINE, f"u{n}", "g1", 30 * n) for n in range(2, 6)]
    assert [it.seq for other in others for it in add(damping, other)] == [2, 3, 4, 5]
    assert [it.seq for it in add(damping, Item(6, ONLINE, "u6", "g1", 160))] == [1, 6]


def test_dampers_may_share_their_room_and_give_it_back() -> None:
    room = DampingCounts(2)
    first, second = damper(counts=room), damper(counts=room)
    for damping, seq in ((first, 1), (second, 2)):
        assert add(damping, Item(seq, OFFLINE, f"u{seq}", "g1", 0)) == []
    third = Item(3, OFFLINE, "u3", "g1", 0)
    assert [it.seq for it in add(second, third)] == [2]
    first.close()
    assert (room.waiting, len(first), len(second)) == (1, 0, 1)


def test_records_that_were_lost_between_change_no_order() -> None:
    damping = damper()
    first, again = (Item(n, OFFLINE, "ada", "g1", 0) for n in (1, 9))
    assert [*add(damping, first), *add(damping, again)] == [first]
    move_of_her = Item(12, MOVED, "ada", "g2", 50)
    assert add(damping, move_of_her) == [again, move_of_her]


def test_a_gap_may_hide_returns_so_all_that_waits_comes_before_it() -> None:
    damping = damper()
    first, second = (Item(n, OFFLINE, f"u{n}", "g1", 0) for n in (1, 2))
    gap = Item(5, GAP, "", "", 0)
    assert [*add(damping, first), *add(damping, second)] == []
    assert add(damping, gap) == [first, second, gap]


def test_one_call_takes_no_more_than_it_may_however_many_have_settled() -> None:
    damping = damper()
    offlines = [Item(n, OFFLINE, f"u{n}", "g1", 0) for n in range(1, 10)]
    assert [it for off in offlines for it in add(damping, off)] == []
    damping.complete(SETTLE_MS)
    for first in (1, 4, 7):
        assert damping.has_more
        assert [it.item.seq for it in damping.take(3)] == [first, first + 1, first + 2]
    assert not damping.has_more


def record(kind: str, seq: int, uid: str, gateway: str, devices: int) -> Record:
    return Record(
        seq,
        kind,
        uid,
        gateway,
        seq,
        seq + 100,
        "login",
        5,
        user_size=3,
        devices=devices,
    )


@pytest.mark.parametrize("users", [False, True])
def test_a_record_is_of_a_device_or_of_its_user(users: bool) -> None:
    offline = record(OFFLINE, 7, "ada/phone", "g1", 0)
    user = "ada" if users else "ada/phone"
    found = damped_record(offline, users=users, at=2)
    assert found == DampedRecord(7, OFFLINE, user, "g1", 2)


def test_a_move_in_place_of_both_names_both_connections() -> None:
    offline = record(OFFLINE, 3, "ada/phone", "g1", 0)
    online = record(ONLINE, 4, "ada/phone", "g2", 1)
    assert moved(offline, online).as_map() == {
        "seq": 4, "kind": "moved", "uid": "ada/phone", "gateway": "g2", "session": 4,
        "reason": "login", "at": 5, "conn": 104, "from": "g1", "from_session": 3,
        "from_conn": 103, "user": "ada", "devices": 1,
    }  # fmt: skip
