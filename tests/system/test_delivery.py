"""Records from the log to its readers: in order, at least once, until acknowledged.

The scripted sidecar runs these tests too (`tests/testing/test_scripted.py`). Windows, pongs and
what waits for the disk: `tests/service/links/test_links.py`.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from liveness.core.cursors import CursorRow
from liveness.core.records import Logged
from liveness.core.records import Record as Decided
from liveness.service.storage.database import PUT_META
from liveness.service.storage.log_store import DATABASE, Batch, LogStore
from tests.helpers.record_batches import batch_of
from tests.helpers.strategies import HARD_USERS
from tests.helpers.wire import Record
from tests.system.client import Client, Uid
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually


def seqs(records: list[Record]) -> list[int]:
    return [record["seq"] for record in records]


def come_and_go(link: Client, *uids: Uid) -> None:
    """One offline for each, on disk."""
    link.send("login", list(uids))
    link.apply("logout", list(uids))


def nothing_more(link: Client) -> bool:
    """Whether no record is left to be sent.

    The first pong comes once all records are on disk, the second once they were sent.
    """
    link.sync()
    link.sync()
    return not link.records


# --- cursors and acks ---------------------------------------------------------------------


def test_what_was_not_acknowledged_comes_again_after_a_reconnect(
    sidecar: Sidecar,
) -> None:
    link = sidecar.gateway("again")
    come_and_go(link, "a", "b", "c", "d")
    first = link.take(4)
    assert nothing_more(link)
    link.close()
    link = sidecar.gateway("again")
    assert link.take(4) == first
    link.send("ack", first[2]["seq"])
    link.apply("ack", first[0]["seq"])  # never back
    link.close()
    link = sidecar.gateway("again")
    assert link.take(1) == first[3:]
    link.apply("ack", first[3]["seq"])
    link.close()
    assert nothing_more(sidecar.gateway("again"))


def test_a_gateway_without_acks_gets_what_came_while_it_was_away(
    sidecar: Sidecar,
) -> None:
    other = sidecar.gateway("taker")
    link = sidecar.gateway("away", ack=False)
    link.send("login", ["m", "n"])
    link.apply("logout", "m")
    assert [r["uid"] for r in link.take(1)] == ["m"]
    link.close()
    sidecar.line("link down", name="away")
    other.apply("login", "n")
    link = sidecar.gateway("away", ack=False)
    assert [(r["kind"], r["uid"], r["gateway"]) for r in link.take(1)] == [
        ("moved", "n", "taker")
    ]
    link.send("ack", 1)
    assert link.refusal()["code"] == "bad-frame"


def test_a_hello_may_name_where_to_read_on(sidecar: Sidecar) -> None:
    link = sidecar.gateway("source")
    come_and_go(link, "p", "q")
    (first, second), log = link.take(2), link.log
    for after, of_log, told in (
        (0, None, [first, second]),
        (0, "another log", [first, second]),
        (first["seq"] - 1, log, [first, second]),
        (first["seq"], log, [second]),
        (second["seq"], log, []),
        (second["seq"] + 1, log, [first, second]),  # a log that has lost its end
        (2**62, log, [first, second]),
        (second["seq"], "another log", [first, second]),
    ):
        reader = sidecar.gateway(
            "source",
            role="watcher",
            scope="own",
            kinds=["offline"],
            ack=False,
            after=after,
            log=of_log,
        )
        assert (after, of_log, reader.take(len(told))) == (after, of_log, told)
        assert nothing_more(reader)


def test_reading_on_from_a_named_place_leaves_the_stored_cursor_alone(
    sidecar: Sidecar,
) -> None:
    link = sidecar.gateway("stays")
    come_and_go(link, "s", "t")
    told = link.take(2)
    link.apply("ack", told[1]["seq"])
    link.close()
    reader = sidecar.gateway("stays", after=0)
    assert reader.take(2) == told
    reader.close()
    assert nothing_more(sidecar.gateway("stays"))


def test_a_new_name_begins_at_now_and_a_crash_right_after_welcome_does_not_lose_that(
    start: Start,
) -> None:
    sidecar = start()
    other = sidecar.gateway("other")
    come_and_go(other, "before")
    for role in ("gateway", "watcher"):
        assert sidecar.gateway("new", role=role, scope="all").next == 3
    sidecar.kill()
    sidecar.start()
    come_and_go(sidecar.gateway("other"), "after")
    as_watcher = sidecar.gateway("new", role="watcher", scope="all")
    assert seqs(as_watcher.take(2)) == [3, 4]
    as_gateway = sidecar.gateway("new", scope="all")
    assert seqs(as_gateway.take(1)) == [4]


def test_a_reader_with_a_cursor_learns_whether_its_name_was_known(
    sidecar: Sidecar,
) -> None:
    for role in ("gateway", "watcher"):
        assert sidecar.gateway("newcomer", role=role).welcome["known"] is False
        assert sidecar.gateway("newcomer", role=role).welcome["known"] is True
    reader = sidecar.gateway("reader", role="watcher", ack=False)
    assert "known" not in reader.welcome


# --- watchers -----------------------------------------------------------------------------


def test_watchers_see_what_they_asked_for(sidecar: Sidecar) -> None:
    a, b = sidecar.gateway("left"), sidecar.gateway("right")
    watch: dict[str, Any] = {"role": "watcher", "ack": False}
    everything = sidecar.gateway("w-all", **watch)
    own = sidecar.gateway("left", scope="own", **watch)
    moves = sidecar.gateway("w-moved", scope="all", kinds=["moved"], **watch)
    nobodys = sidecar.gateway("w-own", scope="own", **watch)
    a.apply("login", "x")
    b.send("login", ["x", "y"])
    b.apply("logout", "y")
    kinds = ["online", "moved", "online", "offline"]
    told = everything.take(4)
    assert [r["kind"] for r in told] == kinds
    assert seqs(told) == list(range(told[0]["seq"], told[0]["seq"] + 4))
    assert own.take(2) == told[:2]
    assert moves.take(1) == told[1:2]
    assert a.take(1) == told[1:2]
    assert b.take(2) == [told[1], told[3]]
    for link in (everything, own, moves, nobodys, a, b):
        assert nothing_more(link)


def test_a_watcher_without_acks_has_no_cursor_and_one_with_them_has(
    sidecar: Sidecar,
) -> None:
    link = sidecar.gateway("watched")
    for ack, told in (
        (False, []),
        (False, []),
        (True, []),  # a new name, for all that was seen under it without acks
        (True, ["online", "offline"]),
    ):
        come_and_go(link, "while away")
        reader = sidecar.watcher("reader", ack=ack)
        assert [r["kind"] for r in reader.take(len(told))] == told
        assert nothing_more(reader)
        come_and_go(link, "while here")
        (_, last) = reader.take(2)
        if ack:
            reader.apply("ack", last["seq"])
        reader.close()


# --- list and where -----------------------------------------------------------------------


def test_list_gives_a_gateway_its_own_and_a_watcher_everyone(start: Start) -> None:
    sidecar = start()
    many, few = sidecar.gateway("many"), sidecar.gateway("few")
    users = [f"user-{n}" for n in range(2_500)]
    many.send("login", users, {"conn": list(range(2_500))})
    few.apply("login", ["last", "gone"])
    many.sync()
    few.send("logout", "gone")
    own, seq = few.listed()
    assert set(own) == {"last"}
    assert seq == 2_503
    watcher = sidecar.watcher()
    watcher.send("list")
    parts = [watcher.expect("list")]
    while len(parts[-1]) == 1:
        parts.append(watcher.expect("list"))
    assert len(parts) > 1
    assert parts[-1][1] == 2_503
    rows = [row for part in parts for row in part[0]]
    assert len(rows) == 2_501
    by_uid = {uid: (gateway, conn) for uid, gateway, _, conn in rows}
    assert by_uid == {
        **{uid: ("many", n) for n, uid in enumerate(users)}, "last": ("few", None),
    }  # fmt: skip
    sessions = {row[2] for row in rows}
    assert len(sessions) == len(rows)
    assert max(watcher.frames.sizes) <= 1 << 20
    nobodys = sidecar.gateway("w", role="watcher", scope="own")
    assert nobodys.listed() == ({}, 2_503)
    assert sidecar.gateway("none").listed() == ({}, 2_503)


def test_where_finds_online_users_of_every_gateway_and_no_others(
    sidecar: Sidecar,
) -> None:
    a, b = sidecar.gateway("here"), sidecar.gateway("there")
    a.send("login", ["one", "two"], {"conn": [1, None]})
    b.send("login", "three", {"conn": 3})
    a.apply("logout", "two")
    b.sync()
    rows = a.where("three", "two", "never", "one")
    assert [[row[0], row[1], row[3]] for row in rows] == [
        ["three", "there", 3], ["one", "here", 1],
    ]  # fmt: skip
    b.send("where", "three")  # one uid, in no array
    assert b.expect("where") == [rows[:1]]


# --- retention ----------------------------------------------------------------------------


def write_old_log(state: Path) -> None:
    """Eight records of 1970: 1 to 3 of `left`, the others of `right`; both acked 3.

    The last of them has a page of its own, which is the one that stays.
    """
    records: list[Logged] = [
        Decided(seq, "offline", f"u-{seq}", gateway, seq, None, "logout", 1)
        for seq, gateway in enumerate(["left"] * 3 + ["right"] * 5, start=1)
    ]
    row = CursorRow(3, 2**50, None)
    cursors = {("gateway", "left"): row, ("gateway", "right"): row}
    with closing(LogStore(state)) as store:
        store.write(Batch(batch_of(records[:-1]), cursors=cursors))
        store.write(Batch(batch_of(records[-1:])))
    # The moment by which seven of them were written, on the state's clock.
    with closing(sqlite3.connect(state / DATABASE, isolation_level=None)) as db:
        db.execute(PUT_META, ["ages", "[[7, 0]]"])


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A sidecar that has let go all but the last of the old records."""
    with Sidecar(tmp_path_factory.mktemp("s"), state_retention_s=60) as sidecar:
        write_old_log(sidecar.state)
        sidecar.start()
        eventually(lambda: [one.seq for one in sidecar.log()] == [8])
        sidecar.stop()
        yield sidecar.start()


def test_a_gateway_gets_a_gap_only_if_a_deleted_record_concerned_it(
    aged: Sidecar,
) -> None:
    right, left = aged.gateway("right"), aged.gateway("left")
    gap, kept = right.take(2)
    assert gap.pop("at") > kept["at"]
    assert gap == {"kind": "gap", "seq": 7, "first": 4, "until": 8}
    assert (kept["seq"], kept["uid"]) == (8, "u-8")
    assert nothing_more(left)
    right.apply("ack", 7)
    right.close()
    assert aged.gateway("right").take(1) == [kept]


def test_a_gap_comes_whatever_kinds_were_asked_for(aged: Sidecar) -> None:
    watcher = aged.watcher(after=2, log=aged.gateway("any").log, kinds=["moved"])
    (gap,) = watcher.take(1)
    assert (gap["kind"], gap["first"], gap["until"]) == ("gap", 3, 8)
    assert nothing_more(watcher)


def test_a_reader_from_another_log_begins_at_the_oldest_record_kept(
    aged: Sidecar,
) -> None:
    watcher = aged.watcher(after=5, log="another")
    assert [(r["kind"], r["seq"]) for r in watcher.take(1)] == [("offline", 8)]


# --- users that are easily taken for another, or for none ---------------------------------


def test_hard_uids_stay_distinct_in_every_frame_and_over_a_crash(
    start: Start,
) -> None:
    conns = {uid: 2**63 - 1 - n for n, uid in enumerate(HARD_USERS)}
    sidecar = start()
    link, watcher = sidecar.gateway("a"), sidecar.watcher()
    for uid, conn in conns.items():
        link.send("login", uid, {"conn": conn})
    link.sync()
    expected = {
        uid: ("a", seq, conn) for seq, (uid, conn) in enumerate(conns.items(), start=1)
    }

    def shown(rows: list[list[Any]]) -> dict[Uid, tuple[str, int, int]]:
        return {uid: (gateway, session, conn) for uid, gateway, session, conn in rows}

    told = watcher.take(len(HARD_USERS))
    assert {r["uid"]: (r["gateway"], r["session"], r["conn"]) for r in told} == expected
    assert shown(link.where(*HARD_USERS)) == expected
    assert link.listed()[0] == expected
    sidecar.kill()
    sidecar.start()
    link = sidecar.gateway("a")
    assert shown(link.where(*HARD_USERS)) == expected
    assert link.listed()[0] == expected
    link.send("logout", [7, "é"])
    assert {r["uid"] for r in link.take(2)} == {7, "é"}
    assert set(link.listed()[0]) == set(HARD_USERS) - {7, "é"}
    rest = [uid for uid in HARD_USERS if uid not in (7, "é")]
    link.send("logout", rest, {"conn": [conns[uid] for uid in rest]})
    ends = link.take(len(rest))
    assert {r["uid"]: r["session"] for r in ends} == {u: expected[u][1] for u in rest}
    assert link.listed()[0] == {}
