"""Offlines of two sides put together: against a model, at the edges, at the bounds."""

import itertools
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liveness.compare import (
    ALIVE,
    ALREADY,
    BOTH,
    HERE,
    LOGGED_OUT,
    LONGEST_RUN,
    NOT_JUDGED,
    STILL_ONLINE,
    THERE,
    UNKNOWN,
    Account,
    Comparison,
    Evidence,
    Line,
    Settled,
    Span,
    why_only_there,
)
from liveness.core.records import LOGOUT, MOVED, OFFLINE, ONLINE, SILENCE, Record, Uid
from tests.strategies import BOUNDED

WITHIN = 10
ALWAYS = Span()
LONG_AFTER = 10**9


def record(seq: int, at: int, uid: Uid = "ada", **more: Any) -> Record:
    told: dict[str, Any] = {"kind": OFFLINE, "reason": SILENCE}
    return Record(
        seq=seq, at=at, uid=uid, gateway="gw", session=1, conn=None, **(told | more)
    )


def comparison(here: Span = ALWAYS, there: Span = ALWAYS, **more: int) -> Comparison:
    return Comparison(WITHIN, here=here, there=there, **more)


def tell(to: Comparison, one: Record | Line, uid: Uid = "ada") -> None:
    if isinstance(one, Line):
        to.there(uid, one)
    else:
        to.here(one._replace(uid=uid))


def times(settled: Iterable[Settled]) -> set[tuple[Uid, int | None, int | None]]:
    """Who, by which record and by which line."""
    return {
        (one.uid, one.here and one.here.seq, one.there and one.there.number)
        for one in settled
    }


def model(uid: Uid, told: Sequence[Record | Line]) -> set[tuple[Uid, Any, Any]]:
    """All pairs are looked at again and again, and the closest is taken out."""
    left = sorted(
        told,
        key=lambda one: (
            one.at,
            isinstance(one, Line),
            one[1 if isinstance(one, Line) else 0],
        ),
    )
    found = list[tuple[Record | Line, ...]]()
    while pairs := [
        (left[j].at - left[i].at, j - i, i, j)
        for i, j in itertools.combinations(range(len(left)), 2)
        if isinstance(left[i], Line) != isinstance(left[j], Line)
        and left[j].at - left[i].at <= WITHIN
    ]:
        *_, i, j = min(pairs)
        found.append((left.pop(j), left.pop(i)))
    found += [(one,) for one in left]
    return {
        (
            uid,
            next((one.seq for one in pair if isinstance(one, Record)), None),
            next((one.number for one in pair if isinstance(one, Line)), None),
        )
        for pair in found
    }


moments = st.integers(0, LONGEST_RUN * WITHIN)
sides = st.lists(
    st.tuples(
        st.sampled_from(["ada", 7, "7"]), st.booleans(), moments, st.integers(0, WITHIN)
    ),
    max_size=30,
)


@BOUNDED
@example(
    [("ada", False, 0, 0), ("ada", True, WITHIN - 2, 0), ("ada", False, WITHIN, 0)],
    Random(0),
)
@given(sides, st.randoms(use_true_random=False))
def test_the_closest_belong_together_however_they_are_told(
    drawn: list[tuple[Uid, bool, int, int]], random: Any
) -> None:
    told = [
        (uid, Line(at, number) if is_there else record(number, at), at + late)
        for number, (uid, is_there, at, late) in enumerate(drawn)
    ]
    expected = set.union(
        set(),
        *(
            model(
                name,
                [
                    one
                    for uid, one, _ in told
                    if uid == name and type(uid) is type(name)
                ],
            )
            for name in ("ada", 7, "7")
        ),
    )
    # In any order at the end; and each as it comes, at most the tolerance late.
    at_once = comparison()
    for uid, one, _ in random.sample(told, len(told)):
        tell(at_once, one, uid)
    assert times(at_once.finish(LONG_AFTER)) == expected
    coming, settled = comparison(), list[Settled]()
    for uid, one, now in sorted(told, key=lambda it: it[2]):
        settled += coming.settle(now)
        tell(coming, one, uid)
    settled += coming.settle(LONG_AFTER)
    assert times(settled) == expected
    assert len(settled) == len(expected)
    assert (coming.pending, coming.late, coming.hurried) == (0, 0, 0)
    assert list(coming.finish(LONG_AFTER)) == []


def test_an_offline_is_settled_when_nothing_closer_can_come_any_more() -> None:
    of = comparison()
    of.here(record(1, 100))
    assert list(of.settle(120)) == []
    (one,) = of.settle(121)
    assert (one.verdict, one.here) == (HERE, record(1, 100))
    of.there("ada", Line(200, 1))
    of.here(record(2, 190))
    assert list(of.settle(220)) == []
    (both,) = of.settle(221)
    assert (both.verdict, both.later_ms) == (BOTH, 10)


def test_what_is_further_apart_than_the_tolerance_is_two() -> None:
    of = comparison()
    of.here(record(1, 100))
    of.there("ada", Line(111, 1))
    assert [one.verdict for one in of.settle(LONG_AFTER)] == [HERE, THERE]


def test_alone_counts_only_where_the_other_side_could_have_told_it() -> None:
    edges = {9: NOT_JUDGED, 10: HERE, 90: HERE, 91: NOT_JUDGED}
    of = comparison(there=Span(0, 100))
    for at in edges:
        of.here(record(at, at, uid=at))
    assert {one.uid: one.verdict for one in of.finish(LONG_AFTER)} == edges
    edges = {at: THERE if it == HERE else it for at, it in edges.items()}
    of = comparison(here=Span(0, 100))
    for at in edges:
        of.there(at, Line(at, at))
    assert {one.uid: one.verdict for one in of.finish(LONG_AFTER)} == edges
    # It ends with the comparison, too.
    of = comparison()
    of.begin(0)
    for at in edges:
        of.there(at, Line(at, at))
    assert {one.uid: one.verdict for one in of.finish(100)} == edges


def test_a_logout_belongs_to_a_line_and_is_not_missing_without_one() -> None:
    of = comparison()
    of.here(record(1, 100, reason=LOGOUT))
    of.there("ada", Line(101, 1))
    of.here(record(2, 100, uid="bob", reason=LOGOUT))
    assert [one.verdict for one in of.settle(LONG_AFTER)] == [BOTH, LOGGED_OUT]


def test_lines_of_before_the_beginning_and_those_that_come_too_late_are_counted() -> (
    None
):
    of = comparison()
    of.begin(1_000)
    of.there("ada", Line(999, 1))
    assert (of.before, of.pending) == (1, 0)
    of.here(record(1, 1_050))
    assert [one.verdict for one in of.settle(1_071)] == [HERE]
    of.there("ada", Line(1_050, 2))
    assert of.late == 1
    assert [one.verdict for one in of.settle(1_071)] == [THERE]


def test_who_goes_offline_again_and_again_is_settled_meanwhile() -> None:
    of, settled = comparison(), list[Settled]()
    for at in range(0, 10_000, WITHIN // 2):
        of.here(record(at, at))
        of.there("ada", Line(at + 1, at))
        settled += of.settle(at)
        assert of.pending <= 2 * (LONGEST_RUN + 6) * 2
    settled += of.settle(LONG_AFTER)
    assert {one.verdict for one in settled} == {BOTH}
    assert {one.later_ms for one in settled} == {1}
    assert len(settled) == 2_000


def test_a_line_of_a_wrong_clock_holds_up_nobody() -> None:
    of = comparison()
    of.there("ada", Line(LONG_AFTER, 1))
    of.here(record(1, 100))
    of.there("ada", Line(103, 2))
    assert [one.later_ms for one in of.settle(200)] == [3]
    assert of.pending == 1


def test_more_than_may_wait_are_settled_before_their_time_the_oldest_first() -> None:
    of = comparison(most=10)
    for number in range(15):
        of.here(record(number, 100 + number, uid=number))
    settled = list(of.settle(115))
    assert [one.uid for one in settled] == [0, 1, 2, 3, 4]
    assert (of.pending, of.hurried) == (10, 5)
    assert {one.verdict for one in settled} == {HERE}


# --- why only there -------------------------------------------------------------------

LOGIN = record(1, 1_000, kind=ONLINE, reason="login")
END = record(5, 9_000, seen=8_000)


@pytest.mark.parametrize(
    ("at", "known", "kind", "told"),
    [
        (5_000, Evidence(True, 7_500, [LOGIN], True), ALIVE, "online here: heard 2.500 s after that"),
        (5_000, Evidence(True, 4_000, [LOGIN], True), STILL_ONLINE, "online here: last heard 1.000 s before that"),
        (5_000, Evidence(True, None, [LOGIN], True), STILL_ONLINE, "online here"),
        (5_000, Evidence(True, 7_500, [], True), ALIVE, "online here: heard 2.500 s after that"),
        (5_000, Evidence(False, None, [END, LOGIN], True), ALIVE, "online here, offline here 4.000 s after that (silence): heard 3.000 s after that"),
        (8_500, Evidence(False, None, [END], True), STILL_ONLINE, "online here, offline here 0.500 s after that (silence): last heard 0.500 s before that"),
        (8_500, Evidence(True, 1, [record(6, 9_000, kind=MOVED, reason="login"), LOGIN], True), ALIVE, "online here: heard 0.500 s after that"),
        (9_500, Evidence(False, None, [END, LOGIN], True), ALREADY, "offline here already, 0.500 s before that (silence)"),
        (9_500, Evidence(True, 9_900, [record(7, 9_600, kind=ONLINE, reason="login"), END, LOGIN], True), ALREADY, "offline here already, 0.500 s before that (silence)"),
        (500, Evidence(True, 900, [LOGIN], True), UNKNOWN, "not known here before that"),
        (500, Evidence(False, None, [], False), UNKNOWN, "not known here before that, as far as was looked back"),
    ],
)  # fmt: skip
def test_why_only_they_called_a_user_offline_is_told_by_what_is_known_here(
    at: int, known: Evidence, kind: str, told: str
) -> None:
    assert why_only_there(at, known) == (kind, told)


# --- the account ----------------------------------------------------------------------


def test_the_account_adds_up_what_was_settled() -> None:
    account = Account()
    assert not account.agrees
    assert account.later_s() is None
    for later_ms in (*range(-1, 98), 400):
        line = Line(1_000 + later_ms, 1)
        account.add(Settled(BOTH, "ada", record(1, 1_000), line))
    assert account.agrees
    assert account.later_s() == {"min": -0.001, "p50": 0.048, "p99": 0.097, "max": 0.4}
    assert account.later() == {"earlier": 1, "same": 1, "later": 98}
    # Of a logout nobody can be late.
    out = record(1, 1_000, reason=LOGOUT)
    account.add(Settled(BOTH, "ada", out, Line(9_000, 1)))
    account.add(Settled(LOGGED_OUT, "ada", out, None))
    assert account.agrees
    found = account.as_map()
    assert found["both_by_reason"] == {"silence": 100, "logout": 1, "gateway_lost": 0}
    assert (found["logouts_here"], found["later_there_s"]["max"]) == (1, 0.4)
    account.add(Settled(THERE, "ada", None, Line(1, 1)), ALIVE)
    assert not account.agrees
    assert account.as_map()["only_there_by_why"][ALIVE] == 1
