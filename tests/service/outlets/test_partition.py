"""The next call of a partition, and the effect of answers."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import count, pairwise
from random import Random
from typing import Any, Final

import pytest

from liveness.cluster.format import (
    Place,
    ending_bytes,
    field_of,
    partition_of,
    place_bytes,
    session_bytes,
    sessions_of,
)
from liveness.core.records import (
    OFFLINE,
    ONLINE,
    Logged,
    OnlineRow,
    Record,
    TimerRecord,
    Uid,
)
from liveness.service.outlets.cluster.host import ClusterHost
from liveness.service.outlets.cluster.host_state import (
    CALL_CHANGES,
    REAP_PAUSE_S,
    REAP_USERS,
    HostIdentity,
    nonce_of,
)
from liveness.service.outlets.cluster.host_watch import HostWatch
from liveness.service.outlets.cluster.partition import MALFORMED, Mode, Partition
from liveness.service.outlets.cluster.partition_clock import PartitionClock
from liveness.service.outlets.cluster.session_changes import (
    Call,
    Change,
    SessionList,
    make_lists,
)
from liveness.service.storage.log_store import LogStore
from tests.service.storage.journals import fill, users
from tests.service.storage.journals import keep as keep_rows

WALL_MS = 1_700_000_000_000
REDIS_US = WALL_MS * 1000
LEASE_S = 30.0
LEASE_US = 30_000_000


@pytest.fixture
def identity() -> HostIdentity:
    return HostIdentity(
        name="a",
        log="log",
        nonce=1,
        epoch=WALL_MS,
        configuration="1 1 -",
        lease_s=LEASE_S,
        linger_s=0.02,
        keep_s=3_600,
        random=Random(1),
        on_fenced=lambda *_: None,
    )


@pytest.fixture
def part(identity: HostIdentity) -> Partition:
    """One that follows the log, up to seq 10."""
    identity.newest = 100
    part = Partition(0, identity)
    assert next_of(part, 0.0).function == "begin"
    part.answered(keep(10), 0.0)
    assert next_of(part, 0.0).function == "beat"
    part.answered(taken(), 0.0)
    return part


def keep(last: int, clock_us: int = REDIS_US) -> list[Any]:
    """The answer to a beginning: Redis has everything up to this seq."""
    return [b"keep", last, 3, clock_us, REDIS_US, 4]


RESET: Final = [b"reset", 0, 2, REDIS_US, REDIS_US, 4]
# To a look: of one host nothing was heard; or: another host has just looked.
QUIET: Final = [b"ok", 0, [[b"b", b"1", b"%d" % REDIS_US]], LEASE_US]
LATER: Final = [b"later", LEASE_US]


def taken(sessions: int = 0, total: int = 0, redis_us: int = REDIS_US) -> list[Any]:
    """The answer to a call that was taken, of a host with these sessions."""
    return [b"ok", redis_us, sessions, total, redis_us, redis_us, 0, 0, 1]


def beat_answer(clock_s: float) -> list[Any]:
    """The answer to a beat, of which no earlier one was lost."""
    clock_us = REDIS_US + round(clock_s * 1_000_000)
    return [b"ok", clock_us, 0, 0, clock_us, REDIS_US, REDIS_US, 0, 1]


def change(seq: int, at: int = WALL_MS) -> Change:
    return Change(seq, field_of("ada"), "", seq, "g", at, "login")


def list_of(*changes: Change, reached: int = 20) -> SessionList:
    made = SessionList()
    for change in changes:
        made.add(change)
        made.pack()
    made.reached = reached
    return made


def next_of(part: Partition, now: float, now_ms: int = WALL_MS) -> Call:
    """The call that it makes now."""
    call = part.next_call(now, now_ms)
    assert call is not None
    return call


def calls(part: Partition, until: float) -> Iterator[tuple[float, Call]]:
    """Its calls up to a moment, apart from `look`; each waits to be answered."""
    while (now := part.next_at()) < until:
        call = next_of(part, now)
        if call.function == "look":
            part.answered(LATER, now)
        else:
            yield now, call


def test_a_host_begins_in_each_partition_and_each_time_with_a_new_epoch(
    identity: HostIdentity,
) -> None:
    identity.newest = 7
    first, second = Partition(0, identity), Partition(1, identity)
    assert (first.last, first.read_to, first.users) == (0, 0, 0)
    *begun, _ = next_of(first, 0.0).args
    assert begun == ["a", WALL_MS + 1, 1, "log", 7, "1 1 -", LEASE_US, 1, 1]
    first.answered(keep(0, 0), 0.0)
    first.lose_records()
    first.next_call(0.0, WALL_MS)
    first.answered(RESET, 0.0)
    first.give_list(list_of())
    first.next_call(0.0, WALL_MS)
    first.answered([b"gap"], 0.0)
    # It lists its sessions anew, and takes the name from no other process any more.
    *begun, _ = next_of(first, 0.0).args
    assert begun == ["a", WALL_MS + 3, 4, "log", 7, "1 1 -", LEASE_US, 0, 0]
    assert next_of(second, 0.0).args[1:3] == [WALL_MS + 4, 4]


def test_an_epoch_is_above_all_that_redis_knows_of_the_name(
    identity: HostIdentity,
) -> None:
    part = Partition(0, identity)
    for epoch, known in ((1, 500), (501, 501), (502, 600)):
        assert next_of(part, 0.0).args[1] == WALL_MS + epoch
        assert part.answered([b"epoch", WALL_MS + known], 0.0) == "epoch"


def test_a_call_has_the_changes_and_between_which_records_they_are(
    part: Partition, identity: HostIdentity
) -> None:
    identity.call_changes = 2
    end = Change(12, b"bob", "/tv", 9, "g", WALL_MS, "logout", has_ended=True)
    assert part.add(change(11, WALL_MS - 3_000), 1.0)
    assert part.next_at() == 1.02
    assert part.add(end, 1.01)
    call = next_of(part, 1.01, WALL_MS + 1_010)  # at once, as it is full
    *head, _token, clock_ms, count = call.args[:10]
    assert (call.function, call.last, call.changes) == ("apply", 12, count)
    assert head[:6] == ["a", identity.epoch, 4, 3, 10, 12]
    assert (clock_ms, count) == (WALL_MS + 1_010, 2)
    since = WALL_MS - 3_000
    assert call.args[10:] == [
        *(b"ada", b"bob", session_bytes(3, 11, since, b"g", b""), ending_bytes(9)),
        place_bytes(Place("ada", "a", "g", 11, since, "login")),
        place_bytes(Place("bob", "a", "g", 9, 0, "logout", "/tv")),
    ]


def test_what_one_call_does_not_take_lingers_for_the_next(
    part: Partition, identity: HostIdentity
) -> None:
    identity.call_changes = 3
    for seq in (11, 12, 13, 14):
        part.add(change(seq, WALL_MS + seq), 1.0)
    assert next_of(part, 1.0).changes == 3
    part.answered([*taken()[:8], 42], 1.5)
    assert (part.last, part.queued, part.oldest_at) == (13, 1, WALL_MS + 14)
    assert (part.users, part.followed_at) == (42, 1.5)
    assert part.next_at() == 1.52
    assert next_of(part, 1.52).args[4:6] == [13, 14]
    part.answered(taken(), 1.6)
    assert (part.queued, part.oldest_at) == (0, None)
    assert part.next_call(1.7, WALL_MS) is None


def test_a_long_list_is_sent_in_pieces_and_what_follows_it_at_once(
    part: Partition,
) -> None:
    part.lose_records()
    part.next_call(1.0, WALL_MS)
    part.answered(RESET, 1.0)
    made = SessionList()
    for seq in range(CALL_CHANGES + 1):
        made.add(change(seq))
    made.pack()
    made.reached = 20
    part.give_list(made)
    for before, last, changes in ((0, -1, CALL_CHANGES), (1, 20, 1)):
        assert part.mode is Mode.ASSERTING
        call = next_of(part, 1.0)
        assert (call.args[4:6], call.changes) == ([before, last], changes)
        part.answered([b"ok", REDIS_US, 0, REDIS_US], 1.0)
    assert (part.mode, part.last, part.read_to) == (Mode.FOLLOWING, 20, 20)
    assert next_of(part, 1.0).args[4:6] == [20, 20]


def test_calls_without_an_answer_are_made_less_and_less_often_until_one_has_it(
    identity: HostIdentity,
) -> None:
    part, now = Partition(0, identity), 0.0
    for pause in (0.1, 0.2, 0.4, 0.8, 1.6, 2.5, 2.5):
        assert next_of(part, now).function == "begin"
        part.failed(now)
        part.failed(now)  # none is under way now
        assert 0.75 * pause <= part.next_at() - now <= 1.25 * pause
        now = part.next_at()
    part.next_call(now, WALL_MS)
    part.answered(keep(0, 0), now)
    assert next_of(part, now).function == "beat"
    part.failed(now)
    assert 0.075 <= part.next_at() - now <= 0.125


@pytest.mark.parametrize(("ahead", "is_replaced"), [(0, False), (1, True)])
def test_only_an_epoch_above_its_own_tells_a_process_that_it_was_replaced(
    part: Partition, identity: HostIdentity, ahead: int, is_replaced: bool
) -> None:
    part.add(change(11), 1.0)
    part.next_call(1.1, WALL_MS)
    part.answered([b"epoch", identity.epoch + ahead], 1.1)
    assert (part.mode, identity.is_stopped) == (Mode.BEGINNING, is_replaced)


def test_an_answer_that_comes_after_records_were_lost_is_of_no_use(
    part: Partition,
) -> None:
    part.add(change(11), 1.0)
    assert next_of(part, 1.1).function == "apply"
    part.lose_records()
    assert part.answered(taken(1, 11), 1.2) == "ok"
    assert (part.mode, part.last) == (Mode.BEGINNING, 10)
    assert next_of(part, 1.2).args[7] == 0  # it must list all sessions, not keep


def test_a_late_call_is_made_again_with_the_clock_that_a_faster_one_has_measured(
    part: Partition,
) -> None:
    part.add(change(11), 1.0)
    first = next_of(part, 1.1)
    answer = [b"late", REDIS_US, REDIS_US + 3_000_000]
    assert part.answered(answer, 3.0) == "late"
    again = next_of(part, 3.0, WALL_MS + 1_900)
    assert (first.args[8], again.args[8]) == (WALL_MS + 1_100, "")
    assert again.args[10:12] == first.args[10:12]  # the user, and since when
    part.answered(taken(1, 11, REDIS_US + 3_000_000), 3.0)
    part.add(change(12), 4.0)
    later = next_of(part, 4.1)
    assert later.args[8] == WALL_MS + 4_100


def test_changes_that_redis_refuses_are_tried_less_and_less_often_between_beats(
    part: Partition,
) -> None:
    part.add(change(11), 1.0)
    refused, beats = [], []
    for now, call in calls(part, 120.0):
        if call.function == "apply":
            refused.append(now)
            part.failed(now)
        else:
            beats.append(now)
            part.answered(taken(), now)
    pauses = [after - before for before, after in pairwise(refused)]
    assert max(pauses[:2]) < 1 < LEASE_S / 16 < min(pauses[-3:])
    gaps = [after - before for before, after in pairwise(beats)]
    assert max(gaps) < LEASE_S / 4  # no host would declare this one lost
    assert part.queued == 1


def test_a_list_in_doubt_begins_anew(part: Partition) -> None:
    part.lose_records()
    part.next_call(1.0, WALL_MS)
    part.answered(RESET, 1.0)
    assert part.wants_list
    part.give_list(list_of(change(3), change(4)))
    assert next_of(part, 1.0).function == "assert"
    part.failed(1.0)
    assert not part.wants_list
    assert part.next_call(1.0, WALL_MS) is None  # not at once
    assert next_of(part, 1.2).function == "begin"
    part.answered(RESET, 1.2)
    assert part.wants_list


@pytest.mark.parametrize(
    "answer",
    [
        [b"keep", 10, 1],  # the version is not there
        [b"epoch", 5],  # it is below ours
        [b"config"],
        None,
        b"OK",
        {},
    ],
)
def test_an_answer_of_another_form_is_asked_for_again_less_and_less_often(
    identity: HostIdentity, answer: Any
) -> None:
    part, asked, now = Partition(0, identity), 0, 0.0
    while now < 60.0 and asked < 30:
        assert next_of(part, now).function == "begin"
        assert part.answered(answer, now) == MALFORMED
        assert part.answered_at == -math.inf
        asked, now = asked + 1, part.next_at()
    assert asked < 30


def test_a_process_that_was_replaced_takes_nothing_from_the_newer_one(
    identity: HostIdentity,
) -> None:
    host = ClusterHost(identity, partitions=2, separator="")
    for part in host.partitions:
        part.next_call(0.0, WALL_MS)
    host.partitions[0].answered(keep(0, 0), 0.0)
    host.partitions[0].next_call(0.0, WALL_MS)
    host.partitions[0].answered([b"epoch", identity.epoch + 9], 0.0)
    host.partitions[1].failed(0.0)
    may_take = [next_of(part, 1.0).args[8] for part in host.partitions]
    assert (identity.is_stopped, may_take) == (True, [0, 0])


def test_a_host_whose_fields_may_have_changed_lists_its_sessions_once(
    identity: HostIdentity,
) -> None:
    identity.may_keep = False
    part = Partition(0, identity)
    assert next_of(part, 0.0).args[7] == 0  # it begins
    part.answered(RESET, 0.0)
    part.give_list(list_of(reached=10))
    part.next_call(0.0, WALL_MS)
    part.answered([b"ok", REDIS_US, 0, REDIS_US], 0.0)
    part.next_call(0.0, WALL_MS)
    part.answered([b"fenced"], 0.0)
    assert next_of(part, 1.0).args[7] == 1  # and again


@pytest.mark.parametrize(
    ("uid", "field", "device", "gateway"),
    [(7, b"7", "", "\1g"), ("7", b"7", "", "g"), ("7/a", b"7", "/a", "g")],
)
def test_all_names_of_a_user_have_one_field(
    identity: HostIdentity, uid: Uid, field: bytes, device: str, gateway: str
) -> None:
    host = ClusterHost(identity, partitions=2, separator="/")
    record = Record(
        4, ONLINE, uid, "g", 4, None, "login", WALL_MS, user_size=len(device) // 2
    )
    row = OnlineRow(4, uid, WALL_MS, None, "g", None)
    for change in (host.change_of(record, WALL_MS), host.session_of(row, 0)[1]):
        assert (change.field, change.device, change.gateway) == (field, device, gateway)


def test_a_partition_that_catches_up_holds_up_no_other(identity: HostIdentity) -> None:
    host = ClusterHost(identity, partitions=2, separator="")
    identity.newest = 100_000
    for part, last in zip(host.partitions, (0, 99_999), strict=True):
        part.next_call(0.0, WALL_MS)
        part.answered(keep(last), 0.0)
    user = next(f"u{n}" for n in count() if partition_of(field_of(f"u{n}"), 2) == 1)
    newest = Record(100_000, ONLINE, user, "g", 100_000, None, "login", WALL_MS)
    starts = list[int]()
    while (start := host.read_from()) is not None:
        starts.append(start)
        reached = min(start + 500, identity.newest)
        records = [newest] if reached == newest.seq else []
        host.distribute(start, records, reached, 0.0, decided_ms=lambda it: it.at)
        assert host.partitions[1].queued or len(starts) < 2
    assert (len(starts), host.partitions[0].read_to) == (201, 100_000)


@pytest.mark.parametrize("by_s", [LEASE_S / 2, -LEASE_S / 2, LEASE_S / 50])
def test_who_is_watched_while_the_clock_of_redis_is_set_is_watched_for_a_lease_in_all(
    part: Partition, by_s: float
) -> None:
    """However often it is set: here with each beat."""
    looked_at, ahead_s = list[float](), 0.0
    while (call := next_of(part, now := part.next_at())).function != "fence":
        assert now < 3 * LEASE_S
        if call.function == "look":
            looked_at.append(now)
            part.answered(QUIET, now)
        else:
            ahead_s += by_s if looked_at else 0.0
            part.answered(beat_answer(now + ahead_s), now)
    assert now - looked_at[0] == LEASE_S


def test_the_clock_of_a_partition_does_not_go_back_and_is_right_in_the_end(
    part: Partition,
) -> None:
    """Redis' clock was ten minutes ahead for a moment."""
    part.next_call(5.0, WALL_MS)
    part.answered(LATER, 5.0)
    assert next_of(part, 5.1).function == "beat"
    part.answered(taken(redis_us=REDIS_US + 600_000_000), 5.1)
    clocks = []
    for now, call in calls(part, 50_000.0):
        part.answered(taken(redis_us=REDIS_US + round(now * 1e6)), now)
        clocks.append((now, call.args[8] / 1_000 - WALL_MS / 1_000))  # type: ignore[operator]  # a number
    for (before, clock_before), (after, clock_after) in pairwise(clocks):
        assert clock_after - clock_before >= 0.97 * (after - before)
    assert clocks[-1][1] == pytest.approx(clocks[-1][0], abs=0.01)


def test_a_session_of_before_the_clock_was_set_back_begins_now(part: Partition) -> None:
    part.add(change(11, WALL_MS + 3_600_000), 0.0)
    _, call = next(calls(part, 1.0))
    session = next(sessions_of(bytes(call.args[11])))  # type: ignore[arg-type]  # a value
    assert session.since == call.args[8]


def test_all_partitions_begin_at_once_and_say_that_they_live_until_they_are_listed(
    identity: HostIdentity,
) -> None:
    host = ClusterHost(identity, partitions=9, separator="")
    for part in host.partitions:
        assert next_of(part, 0.0).function == "begin"
        part.answered(RESET, 0.0)
    assert all(part.wants_list for part in host.partitions)
    *_, last = host.partitions
    beats = []
    for now, call in calls(last, 3 * LEASE_S):
        beats.append(now)
        assert (call.function, call.args[4:6], call.args[9]) == (
            *("assert", [len(beats) - 1, -1]),
            0,
        )
        last.answered([b"ok", REDIS_US, 0, REDIS_US], now)
    assert max(after - before for before, after in pairwise(beats)) < LEASE_S / 4
    assert last.wants_list
    last.give_list(list_of(change(3)))
    assert not last.wants_list
    call = next_of(last, 3 * LEASE_S)
    assert (call.function, call.args[4:6]) == ("assert", [len(beats), 20])


def test_a_host_lists_its_sessions_if_another_program_changed_the_users(
    part: Partition, identity: HostIdentity
) -> None:
    now, _ = next(calls(part, 60.0))
    assert part.answered([b"damaged"], now) == "damaged"
    assert (part.mode, identity.audit_mismatches) == (Mode.BEGINNING, 1)
    assert next_of(part, part.next_at()).args[7] == 0  # not to be kept


@pytest.mark.parametrize("rival", ["silent", "heard", "unknown"])
def test_a_process_takes_its_name_from_one_that_it_saw_be_silent_for_a_lease(
    identity: HostIdentity, rival: str
) -> None:
    part, now, took, beat = Partition(0, identity), 50.0, [], 77
    next_of(part, now)
    part.answered([b"replaced", 5, beat], now)
    assert identity.is_stopped
    assert part.followed_at == -math.inf
    while (now := part.next_at()) < 50.0 + 2 * LEASE_S:
        took.append((round(now), next_of(part, now).args[8]))
        if rival == "unknown" and now > 50.0 + LEASE_S / 2:
            part.failed(now)  # and maybe the other one had no answer either
        else:
            beat += rival == "heard"
            part.answered([b"replaced", 5, beat], now)
    if rival == "silent":
        assert took == [(60, 0), (70, 0), (80, 77), (90, 77), (100, 77)]
    else:
        assert {beat for _, beat in took} == {0}


def test_another_lease_is_known_until_it_is_no_more(
    part: Partition, identity: HostIdentity
) -> None:
    answers = [[b"ok", 0, [], 60_000_000], [b"later", LEASE_US], [b"later", 20_000_000]]
    for answer, other_s in zip(answers, (60, 0, 20), strict=True):
        now = part.next_at()
        while next_of(part, now).function != "look":
            part.answered(taken(), now)
            now = part.next_at()
        part.answered(answer, now)
        assert identity.other_lease_s == other_s


def test_the_first_call_after_a_gap_in_contact_fences_nobody(part: Partition) -> None:
    """While Redis was away nobody could say that it lives."""
    now = part.next_at()
    assert next_of(part, now).function == "look"
    part.answered(QUIET, now)
    part.add(change(11), now)
    made = list[str]()
    until = now + 2 * LEASE_S
    while (now := part.next_at()) < until:
        call = part.next_call(now, WALL_MS)
        if call is not None:
            made.append(call.function)
            part.failed(now)
    assert "apply" in made
    assert "fence" not in made


def test_an_answer_that_took_long_tells_nothing_about_others(part: Partition) -> None:
    now = part.next_at()
    assert next_of(part, now).function == "look"
    part.answered(QUIET, now)
    now = part.next_at()
    assert next_of(part, now).function == "beat"
    part.answered(beat_answer(now + 8), now + 8)
    for now, call in calls(part, 2 * LEASE_S):
        assert call.function == "beat"
        part.answered(beat_answer(now), now)


def test_a_partition_reaps_what_a_host_leaves_that_it_found_lost(
    part: Partition, identity: HostIdentity
) -> None:
    look = QUIET
    while (call := next_of(part, now := part.next_at())).function != "reap":
        if call.function == "fence":
            look = LATER
            part.answered([b"ok"], now)
        else:
            part.answered(look if call.function == "look" else beat_answer(now), now)
    part.answered([b"ok", b"9", 400, 0, REDIS_US], now)
    assert identity.sessions_reaped == 400


@pytest.fixture
def watch(identity: HostIdentity) -> HostWatch:
    """One that watches two quiet hosts."""
    watch = HostWatch(3, identity, PartitionClock())
    watch.begin(0.0)
    watch.beat(0, 5, 0, 0.0)
    quiets = [[name, b"1", b"100"] for name in (b"b", b"c")]
    watch.looked("ok", [b"ok", 0, quiets, LEASE_US], 0.0)
    return watch


def test_a_host_looks_for_others_a_while_after_anybody_did(watch: HostWatch) -> None:
    quiet_us, look_us, keep_us = 7_500_000, 3_000_000, 3_600_000_000
    assert watch.next_at == 3.0
    look = Call("look", ["a", quiet_us, look_us, keep_us])
    assert watch.next_call(3.0) == look
    assert watch.next_at == 6.0
    watch.beat(5, 6, 1_000_000, 5.0)
    assert watch.next_at == 7.0


def test_sessions_without_a_host_are_reaped_in_steps_until_there_are_none(
    identity: HostIdentity,
) -> None:
    clock = PartitionClock()
    watch = HostWatch(3, identity, clock)
    watch.begin(0.0)
    clock.compare(REDIS_US, REDIS_US, 0.0, 0.0)
    watch.looked("ok", [b"ok", 1, [], LEASE_US], 0.0)
    watch.next_call(0.0)  # a look
    steps: list[tuple[bytes | int, bytes, int, int]] = [
        (0, b"7", 1, REDIS_US),
        (b"7", b"9", 1, REDIS_US + 1_000_000),
        (b"9", b"0", 0, REDIS_US + 1_000_000),
    ]
    for number, (cursor, after, stale, version) in enumerate(steps):
        now = number * REAP_PAUSE_S
        assert watch.next_at == now
        call = watch.next_call(now)
        assert (call.function, call.args[:2]) == ("reap", [cursor, REAP_USERS])
        known = max(version, clock.floor(now))
        watch.reaped("ok", [b"ok", after, 400, stale, version], now)
        assert clock.floor(now) == known
    assert identity.sessions_reaped == 1_200
    assert watch.next_at == 3.0  # to look again
    watch.looked("ok", [b"ok", 1, [], LEASE_US], 1.0)
    watch.next_call(1.0)
    watch.reaped("damaged", [b"damaged"], 1.0)
    assert watch.next_at == 3.0
    watch.looked("ok", [b"ok", 1, [], LEASE_US], 1.0)
    watch.looked("ok", [b"ok", 0, [], LEASE_US], 1.0)
    watch.looked("unknown", [b"unknown"], 1.0)
    assert watch.next_at == 3.0
    assert identity.other_lease_s == 0.0


@pytest.mark.parametrize(
    ("word", "lost", "then"),
    [
        ("ok", [(b"b", 3)], "fence"),
        ("heard", [], "fence"),
        ("behind", [], "look"),  # Redis has lost beats, maybe those of others too
    ],
)
def test_a_host_that_is_still_quiet_after_a_lease_is_lost(
    watch: HostWatch, identity: HostIdentity, word: str, lost: list[Any], then: str
) -> None:
    found = list[tuple[bytes, int]]()
    identity.on_fenced = lambda host, number: found.append((host, number))
    assert watch.fence_at == LEASE_S
    watch.next_call(LEASE_S - 1)
    assert watch.next_call(LEASE_S) == Call("fence", ["a", 5, b"b", 1, 100])
    watch.fenced(word, LEASE_S)
    assert found == lost
    assert watch.next_call(LEASE_S).function == then
    assert (watch.next_at == LEASE_S) is (word == "ok")  # to reap


def test_a_beat_that_redis_has_lost_proves_nothing_about_others(
    watch: HostWatch,
) -> None:
    watch.beat(5, 6, 0, 1.0)
    assert watch.fence_at == LEASE_S
    watch.beat(5, 7, 0, 2.0)
    assert watch.fence_at == math.inf


@pytest.mark.parametrize(
    ("began", "redis_us", "estimate"),
    [
        pytest.param(11.0, 100_800_000, 101_900_000, id="slower"),
        pytest.param(11.0, 102_000_000, 101_900_000, id="slower too"),
        pytest.param(11.0, 102_000_050, 102_500_050, id="set ahead"),
        pytest.param(11.0, 100_799_950, 101_800_000, id="set back"),
        pytest.param(11.8, 101_850_000, 101_950_000, id="as fast"),
    ],
)
def test_a_slower_call_says_nothing_about_a_clock_that_may_be_right(
    began: float, redis_us: int, estimate: int
) -> None:
    clock = PartitionClock()
    assert clock.floor(1.0) == 0
    clock.compare(0, 100_000_000, 10.0, 10.2)
    assert (clock.floor(10.2), clock.estimate(10.2)) == (100_000_000, 100_100_000)
    clock.compare(0, redis_us, began, 12.0)
    assert clock.estimate(12.0) == estimate


def test_a_list_has_the_sessions_of_its_partition_and_says_where_it_is_true(
    identity: HostIdentity, store: LogStore
) -> None:
    keep_rows(store, *users(20))
    fill(store, 30)
    host = ClusterHost(identity, partitions=4, separator="")
    lists = make_lists(store, partial(host.session_of, offset_ms=0), [1, 3])
    fields = [field_of(row.uid) for row in users(20)]
    for number, made in lists.items():
        expected = [field for field in fields if partition_of(field, 4) == number]
        assert [change.field for change in made.piece] == expected
        assert made.reached == 30
    assert [*lists] == [1, 3]


def test_a_session_of_a_list_is_as_old_as_in_the_table(identity: HostIdentity) -> None:
    host = ClusterHost(identity, partitions=4, separator="")
    number, found = host.session_of(OnlineRow(4, "ada", 5_000, None, "g", None), -2_000)
    assert number == partition_of(b"ada", 4)
    assert found == Change(0, b"ada", "", 4, "g", 3_000, "resync")


def test_an_offline_is_the_end_of_a_session_and_other_kinds_of_records_are_none(
    identity: HostIdentity,
) -> None:
    host = ClusterHost(identity, partitions=1, separator="")
    identity.newest = 20
    (part,) = host.partitions
    part.next_call(0.0, WALL_MS)
    part.answered(keep(10), 0.0)
    kinds = (ONLINE, OFFLINE)
    records: list[Logged] = [
        Record(seq, kind, "ada", "g", 4, None, "login", WALL_MS)
        for seq, kind in zip((10, 12), kinds, strict=True)
    ]
    timer = TimerRecord(11, "timer", "g", "k", None, None, 0, 1, 0)
    host.distribute(11, records[1:], 20, 0.0, decided_ms=lambda _: 7)
    assert (part.queued, part.read_to) == (0, 10)  # it lacks what comes before
    host.distribute(5, [*records, timer], 20, 0.0, decided_ms=lambda _: 7)
    (end,) = next_of(part, 1.0).args[10:11]
    assert (part.queued, part.oldest_at, part.read_to, end) == (1, 7, 20, b"ada")
    assert next_of(part, 1.0).args[11] == ending_bytes(4)


def test_a_later_process_has_a_larger_number() -> None:
    early, late = (nonce_of(WALL_MS + ms, Random(1)) for ms in (0, 1))
    assert early < late < 2**53
    assert {nonce_of(WALL_MS, Random(n)) for n in range(9)} > {early}


@pytest.mark.parametrize(
    ("seq", "mode", "read_to", "queued"),
    [
        (11, Mode.FOLLOWING, 12, 1),
        (10, Mode.FOLLOWING, 12, 2),
        (50, Mode.FOLLOWING, 50, 0),
        (100, Mode.FOLLOWING, 100, 0),
        (5, Mode.FOLLOWING, 5, 0),
        (101, Mode.BEGINNING, 12, 0),
    ],
    ids=["of another call", "as known", "further", "newest", "lost", "beyond the log"],
)
def test_a_gap_is_followed_from_where_redis_is(
    part: Partition, seq: int, mode: Mode, read_to: int, queued: int
) -> None:
    for added in (11, 12):
        part.add(change(added), 1.0)
    assert next_of(part, 1.1).function == "apply"
    part.answered([b"gap", seq], 1.2)
    assert (part.mode, part.read_to, part.queued) == (mode, read_to, queued)
    if mode is Mode.FOLLOWING:
        assert next_of(part, 1.3).args[4] == seq


def test_a_partition_takes_no_more_changes_than_it_may_keep(
    part: Partition, identity: HostIdentity
) -> None:
    identity.most_queued = 1
    assert part.add(change(11), 1.0)
    assert not part.add(change(12), 1.0)
    assert (part.queued, part.read_to) == (1, 11)


def test_a_host_that_is_replaced_stops_in_all_partitions(
    part: Partition, identity: HostIdentity
) -> None:
    identity.replaced()
    assert part.next_call(part.next_at(), WALL_MS) is None
    assert part.mode is Mode.BEGINNING


def test_records_that_the_log_has_lost_concern_partitions_that_need_them(
    identity: HostIdentity,
) -> None:
    host = ClusterHost(identity, partitions=4, separator="")
    identity.newest = 100
    for part, last in zip(host.partitions, (10, 29, 30, 9), strict=True):
        part.next_call(0.0, WALL_MS)
        part.answered(keep(last), 0.0)
    host.lose_records(10, 30)
    following = [part.mode is Mode.FOLLOWING for part in host.partitions]
    assert following == [False, False, True, True]
    begun = host.partitions[0]
    begun.next_call(0.0, WALL_MS)
    begun.answered(RESET, 0.0)
    host.lose_records(10, 30)
    assert begun.wants_list  # it lists all sessions anyway


def test_a_host_that_was_heard_since_is_watched_anew(identity: HostIdentity) -> None:
    watch = HostWatch(0, identity, PartitionClock())
    watch.begin(100.0)
    watch.suspect(b"b", 1, 100, 0.0)
    watch.suspect(b"c", 1, 100, 1.0)
    watch.suspect(b"b", 1, 101, 3.0)
    watch.suspect(b"c", 1, 100, 4.0)
    assert watch.fence_at == 1.0 + LEASE_S
    assert watch.next_call(watch.fence_at).args[2:] == [b"c", 1, 100]
    assert watch.fence_at == 3.0 + LEASE_S


def test_a_configuration_that_is_no_text_is_refused(identity: HostIdentity) -> None:
    part = Partition(0, identity)
    part.next_call(0.0, WALL_MS)
    assert part.answered([b"config", b"\xff 2"], 0.0) == "config"
    assert identity.why_refused == "\ufffd 2"


def test_lists_that_redis_refuses_are_made_less_and_less_often(
    part: Partition, identity: HostIdentity
) -> None:
    part.lose_records()
    now, lists = 1.0, 0
    while now < 61.0 and lists < 30:
        lists += 1
        assert next_of(part, now).function == "begin"
        part.answered(RESET, now)
        part.give_list(list_of(change(3)))
        assert next_of(part, now).function == "assert"
        part.failed(now)  # out of memory
        now = part.next_at()
    assert lists < 30
