"""A cursor gives the same records from memory as from disk, in order, without a gap."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from math import inf
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from liveness.core.cursors import CursorRow
from liveness.core.records import (
    KINDS,
    SESSION_KINDS,
    TIMER,
    Gap,
    Logged,
    Record,
    Subscription,
    TimerRecord,
)
from liveness.core.wire.frames import MAX_TEXT_BYTES
from liveness.core.wire.framing import encode
from liveness.service.storage.log_pages import PAGE_BYTES
from liveness.service.storage.log_store import Batch
from liveness.service.storage.log_tail import LogTail, TailEntry, TailReader
from tests.helpers.record_batches import batch_of
from tests.helpers.strategies import BOUNDED, examples
from tests.service.storage.journals import ALL, Log, log_of, of

NAMES = ("g", "h", "i")
WALL_MS = 123
UIDS = ("7", 7, "7/a", "u", "u/b")  # with the separator "/"


def record(
    seq: int, kind: str = "online", gateway: str = "g", origin: str = ""
) -> Record:
    return Record(
        seq, kind, f"u{seq}", gateway, seq, None, "login", 1_000,
        from_gateway=origin or None,
    )  # fmt: skip


def batches(sizes: Sequence[int]) -> list[Batch]:
    """For each count, a commit of that many records of gateway g."""
    numbers = count(1)
    return [
        Batch(batch_of([record(next(numbers)) for _ in range(size)])) for size in sizes
    ]


async def all_of(cursor: TailReader, limit: int = 1_000) -> list[Logged | Gap]:
    taken = []
    while cursor.is_behind:
        before = cursor.position
        entries = await cursor.take(limit, wall_ms=WALL_MS)
        assert len(entries) <= limit
        assert cursor.position > before
        taken += [entry.record for entry in entries]
    return taken


async def all_encoded(cursor: TailReader, limit: int) -> bytes:
    """As `all_of`, but as a link takes them."""
    taken = b""
    while cursor.is_behind:
        found = await cursor.take_encoded(
            limit, wall_ms=WALL_MS, most_bytes=inf, own=None
        )
        assert len(found.seqs) <= limit
        taken += found.maps
    return taken


def encode_all(records: Iterable[Logged | Gap]) -> bytes:
    return b"".join(encode(record.as_map()) for record in records)


def trim(log: Log, *, below: int) -> None:
    """Trim the pages below *below*, as `LogWriter.trim` does."""
    store = log.log_writer.store
    store.trimmer.marks = [(below - 1, 0)]
    store.trimmer.trim(oldest_ms=1, most_bytes=2**40, idle_ms=0)
    log.log_writer.first, _ = store.bounds()
    assert log.log_writer.first == below


def seqs(taken: Sequence[Logged | Gap]) -> list[int]:
    return [record.seq for record in taken]


# --- memory and disk -----------------------------------------------------------------

origins = st.sampled_from(("", *NAMES))
drawn_commits = st.lists(
    st.lists(
        st.tuples(st.sampled_from(SESSION_KINDS), st.sampled_from(NAMES), origins),
        min_size=1,
    ),
    max_size=8,
)
drawn_wanted = st.builds(
    Subscription,
    st.sampled_from((None, *NAMES)),
    st.frozensets(st.sampled_from((*KINDS, "gap"))),
    uid=st.sampled_from((None, None, *UIDS)),
)


@settings(BOUNDED, max_examples=examples(60))
@given(drawn_commits, drawn_wanted, st.integers(0, 40), st.integers(1, 9))
def test_a_reader_is_given_the_same_from_memory_and_from_disk(
    tmp_path_factory: pytest.TempPathFactory,
    commits: list[list[tuple[str, str, str]]],
    wanted: Subscription,
    position: int,
    limit: int,
) -> None:
    numbers = count(1)
    written = list[Batch]()
    for commit in commits:
        made = [record(next(numbers), *drawn) for drawn in commit]
        uids = [UIDS[each.seq % 5] for each in made]
        made = [
            each._replace(uid=uid, user_size=int("/" in str(uid)))
            for each, uid in zip(made, uids, strict=True)
        ]
        written.append(Batch(batch_of(made)))
    everything = [each for batch in written for each in batch.records]
    expected = [
        each
        for each in everything
        if each.seq > position
        and each.kind in wanted.kinds
        and wanted.gateway in (None, each.gateway, each.from_gateway)
        and (
            wanted.uid is None or str(wanted.uid) in (str(each.uid), str(each.uid)[:1])
        )
        and not (wanted.users and each.kind == "moved")
    ]
    folder = tmp_path_factory.mktemp("state")
    with log_of(written, folder, keep=10**6) as log:
        # All in memory, none in memory, and some of each.
        mixed = LogTail(keep=5)
        for batch in written:
            mixed.publish(batch)
        for feed in (log.feed, LogTail(keep=10**6), mixed):
            log.feed = feed
            cursor = log.cursor(wanted, position=position)
            assert trio.run(all_of, cursor, limit) == expected
            assert cursor.position >= len(everything)
            cursor = log.cursor(wanted, position=position)
            assert trio.run(all_encoded, cursor, limit) == encode_all(expected)
            assert cursor.position >= len(everything)


@pytest.mark.parametrize("keep", [0, 10_000], ids=["disk", "memory"])
async def test_records_with_large_payloads_are_taken_in_bounded_parts(
    tmp_path: Path, keep: int
) -> None:
    payload = "p" * MAX_TEXT_BYTES
    carried = [
        TimerRecord(seq, TIMER, "g", f"k{seq}", payload, None, 0, 1, 0)
        for seq in range(1, 201)
    ]
    written = [Batch(batch_of(carried)), Batch(batch_of([record(201)]))]
    parts = list[list[TailEntry]]()
    most = 10 * MAX_TEXT_BYTES
    with log_of(written, tmp_path, keep=keep) as log:
        cursor = log.cursor()
        while cursor.is_behind:
            parts.append(await cursor.take(1_000, wall_ms=WALL_MS, most_bytes=most))
            found = await log.cursor(position=parts[-1][0].record.seq - 1).take_encoded(
                1_000, wall_ms=WALL_MS, most_bytes=most, own=None
            )
            assert found.seqs == [entry.record.seq for entry in parts[-1]]
            assert found.maps == b"".join(entry.encoded for entry in parts[-1])
    assert [entry.record.seq for part in parts for entry in part] == [*range(1, 202)]
    sizes = [sum(len(entry.encoded) for entry in part) for part in parts]
    bounded = most + PAGE_BYTES + MAX_TEXT_BYTES
    assert max(sizes) <= bounded < sum(sizes) / 4


# --- bounds --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "kept"), [([4, 4, 4], 8), ([4, 25], 25)], ids=["whole commits", "newest"]
)
def test_the_tail_is_bounded_and_lets_whole_commits_but_the_newest_go(
    sizes: list[int], kept: int
) -> None:
    feed = LogTail(keep=10)
    for batch in batches(sizes):
        feed.publish(batch)
    oldest = next(after for after in range(100) if feed.reaches(after)) + 1
    assert oldest == 5
    assert len(list(feed.since(0, ALL))) == kept


def test_a_commit_notifies_each_caller_that_asked_once() -> None:
    feed, notified = LogTail(keep=10), list[str]()
    notify = partial(notified.append, "caller")
    feed.notify_at_commit(notify)
    feed.notify_at_commit(notify)
    feed.publish(Batch())  # without records: a pong may wait for this commit
    feed.publish(batches([1])[0])
    assert notified == ["caller"]


async def test_a_commit_notifies_only_the_readers_it_concerns(tmp_path: Path) -> None:
    with log_of([], tmp_path, keep=10) as log:
        everyone, other = log.cursor(), log.cursor(of("nobody"))
        behind = log.cursor(of("nobody"), position=-1)
        notified = list[str]()
        for name, cursor in {"all": everyone, "other": other, "behind": behind}.items():
            log.feed.follow(cursor, partial(notified.append, name))
        (batch,) = batches([3])
        log.feed.publish(batch)
        assert notified == ["all"]
        assert (everyone.position, other.position, behind.position) == (0, 3, -1)
        log.feed.unfollow(everyone)
        log.feed.unfollow(everyone)
        log.feed.publish(batch)
        assert notified == ["all"]


# --- positions, kinds, gaps ------------------------------------------------------------


@pytest.mark.parametrize("kinds", [KINDS, ("offline",), ()])
async def test_past_the_retention_a_gap_comes_first_whatever_the_kinds(
    tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    with log_of(batches([6, 4]), tmp_path, keep=10) as log:
        log.feed = LogTail(keep=10)
        trim(log, below=7)
        wanted = Subscription(None, frozenset(kinds))
        gap, *rest = await all_of(log.cursor(wanted, position=2))
        assert gap == Gap(3, 7, WALL_MS)
        assert gap.seq == 6
        assert seqs(rest) == ([7, 8, 9, 10] if "online" in kinds else [])
        # A reader that lost nothing gets no gap.
        assert await all_of(log.cursor(wanted, position=6)) == rest


async def test_a_trim_is_a_gap_only_to_cursors_it_concerned(tmp_path: Path) -> None:
    rows = {("gateway", name): CursorRow(2, 1, None) for name in ("g", "idle")}
    with log_of([Batch(cursors=rows), *batches([6, 4])], tmp_path, keep=1) as log:
        log.feed = LogTail(keep=1)
        trim(log, below=7)
        assert await all_of(log.cursor(of("idle"), position=2)) == []
        gap, *rest = await all_of(log.cursor(of("g"), position=2))
    assert gap == Gap(3, 7, WALL_MS)
    assert len(rest) == 4
