"""`liveness compare`: offlines of two sides put together, and a file beside a log."""

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liveness.cli import compare as command
from liveness.cli.main import main
from liveness.core.records import (
    LOGOUT,
    MOVED,
    OFFLINE,
    ONLINE,
    SILENCE,
    Logged,
    OnlineRow,
    Record,
    Uid,
)
from liveness.core.restart import no_clocks
from liveness.lab.compare import comparison_report
from liveness.lab.compare.comparison import (
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
    Comparison,
    Evidence,
    Line,
    Outcome,
    Span,
    Totals,
    cause_of,
)
from liveness.lab.compare.comparison_report import AGREE, DIFFER
from liveness.service.storage import clocks_file
from liveness.service.storage.log_store import Batch, LogStore
from tests.helpers.record_batches import batch_of
from tests.helpers.strategies import BOUNDED

WITHIN = 10
ALWAYS = Span()
LONG_AFTER = 10**9


def record(seq: int, at: int, uid: Uid = "ada", **more: Any) -> Record:
    facts: dict[str, Any] = {"kind": OFFLINE, "reason": SILENCE} | more
    return Record(seq=seq, at=at, uid=uid, gateway="gw", session=1, conn=None, **facts)


def comparison(here: Span = ALWAYS, there: Span = ALWAYS, **more: int) -> Comparison:
    return Comparison(WITHIN, here=here, there=there, **more)


def tell(to: Comparison, one: Record | Line, uid: Uid = "ada") -> None:
    if isinstance(one, Line):
        to.add_line(uid, one)
    else:
        to.add_record(one._replace(uid=uid))


def times(settled: Iterable[Outcome]) -> set[tuple[str, int | None, int | None]]:
    """Who, by which record and by which line."""
    return {
        (str(one.uid), one.here and one.here.seq, one.there and one.there.number)
        for one in settled
    }


def place(one: Record | Line) -> tuple[int, bool, int]:
    if isinstance(one, Line):
        return one.at, True, one.number
    return one.at, False, one.seq


def model(uid: str, told: Sequence[Record | Line]) -> set[tuple[str, Any, Any]]:
    """All pairs are looked at again and again, and the closest is taken out."""
    left = sorted(told, key=place)
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
    expected = set[tuple[str, Any, Any]]()
    for name in ("ada", "7"):
        of_name = [one for uid, one, _ in told if str(uid) == name]
        expected |= model(name, of_name)
    # In any order at the end; and each as it comes, at most the tolerance late.
    at_once = comparison()
    for uid, one, _ in random.sample(told, len(told)):
        tell(at_once, one, uid)
    assert times(at_once.finish(LONG_AFTER)) == expected
    coming, settled = comparison(), list[Outcome]()
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
    of.add_record(record(1, 100))
    assert list(of.settle(120)) == []
    (one,) = of.settle(121)
    assert (one.verdict, one.here) == (HERE, record(1, 100))
    of.add_line("ada", Line(200, 1))
    of.add_record(record(2, 190))
    assert list(of.settle(220)) == []
    (both,) = of.settle(221)
    assert (both.verdict, both.later_ms) == (BOTH, 10)


def test_alone_counts_only_where_the_other_side_could_have_told_it() -> None:
    edges = {9: NOT_JUDGED, 10: HERE, 90: HERE, 91: NOT_JUDGED}
    of = comparison(there=Span(0, 100))
    for at in edges:
        of.add_record(record(at, at, uid=at))
    assert {one.uid: one.verdict for one in of.finish(LONG_AFTER)} == edges
    edges = {at: THERE if it == HERE else it for at, it in edges.items()}
    of = comparison(here=Span(0, 100))
    for at in edges:
        of.add_line(at, Line(at, at))
    assert {one.uid: one.verdict for one in of.finish(LONG_AFTER)} == edges
    # It ends with the comparison, too.
    of = comparison()
    of.begin(0)
    for at in edges:
        of.add_line(at, Line(at, at))
    assert {one.uid: one.verdict for one in of.finish(100)} == edges


def test_a_logout_belongs_to_a_line_and_is_not_missing_without_one() -> None:
    of = comparison()
    of.add_record(record(1, 100, reason=LOGOUT))
    of.add_line("ada", Line(101, 1))
    of.add_record(record(2, 100, uid="bob", reason=LOGOUT))
    assert [one.verdict for one in of.settle(LONG_AFTER)] == [BOTH, LOGGED_OUT]


def test_lines_of_before_the_beginning_and_those_that_come_too_late_are_counted() -> (
    None
):
    of = comparison()
    of.begin(1_000)
    of.add_line("ada", Line(999, 1))
    assert (of.before, of.pending) == (1, 0)
    of.add_record(record(1, 1_050))
    assert [one.verdict for one in of.settle(1_071)] == [HERE]
    of.add_line("ada", Line(1_050, 2))
    assert of.late == 1
    assert [one.verdict for one in of.settle(1_071)] == [THERE]


def test_who_goes_offline_again_and_again_is_settled_meanwhile() -> None:
    of, settled = comparison(), list[Outcome]()
    for at in range(0, 10_000, WITHIN // 2):
        of.add_record(record(at, at))
        of.add_line("ada", Line(at + 1, at))
        settled += of.settle(at)
        assert of.pending <= 2 * (LONGEST_RUN + 6) * 2
    settled += of.settle(LONG_AFTER)
    assert {one.verdict for one in settled} == {BOTH}
    assert {one.later_ms for one in settled} == {1}
    assert len(settled) == 2_000


def test_a_line_of_a_wrong_clock_holds_up_nobody() -> None:
    of = comparison()
    of.add_line("ada", Line(LONG_AFTER, 1))
    of.add_record(record(1, 100))
    of.add_line("ada", Line(103, 2))
    assert [one.later_ms for one in of.settle(200)] == [3]
    assert of.pending == 1


def test_more_than_may_wait_are_settled_before_their_time_the_oldest_first() -> None:
    of = comparison(most=10)
    for number in range(15):
        of.add_record(record(number, 100 + number, uid=number))
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
        (500, Evidence(False, None, [], False), UNKNOWN, "not known here before that, as far back as was searched"),
    ],
)  # fmt: skip
def test_the_cause_of_an_offline_that_only_they_reported(
    at: int, known: Evidence, kind: str, told: str
) -> None:
    assert cause_of(at, known) == (kind, told)


# --- the account ----------------------------------------------------------------------


def test_the_account_adds_up_what_was_settled() -> None:
    account = Totals()
    assert not account.agrees
    assert account.later_s() is None
    for later_ms in (*range(-1, 98), 400):
        line = Line(1_000 + later_ms, 1)
        account.add(Outcome(BOTH, "ada", record(1, 1_000), line))
    assert account.agrees
    assert account.later_s() == {"min": -0.001, "p50": 0.048, "p99": 0.097, "max": 0.4}
    assert account.later() == {"earlier": 1, "same": 1, "later": 98}
    # Of a logout nobody can be late.
    out = record(1, 1_000, reason=LOGOUT)
    account.add(Outcome(BOTH, "ada", out, Line(9_000, 1)))
    account.add(Outcome(LOGGED_OUT, "ada", out, None))
    assert account.agrees
    found = account.as_map()
    assert found["both_by_reason"] == {"silence": 100, "logout": 1, "gateway_lost": 0}
    assert (found["logouts_here"], found["later_there_s"]["max"]) == (1, 0.4)
    account.add(Outcome(THERE, "ada", None, Line(1, 1)), ALIVE)
    assert not account.agrees
    assert account.as_map()["only_there_by_why"][ALIVE] == 1


# --- a file beside the log --------------------------------------------------------------

HOUR_MS: Final = 3_600_000
BEGAN: Final = round(datetime.now(UTC).timestamp() * 1000) - HOUR_MS
SILENT: Final = BEGAN + 1_000  # when eve and 7 went offline; bob is online

Compare = Callable[..., tuple[int, str, str]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The log of a sidecar that was killed: ada has logged out, two users are silent."""
    uids: list[Uid] = ["eve", "ada", 7, "bob"]
    records: list[Logged] = [
        record(seq, BEGAN, uid, kind=ONLINE, reason="login")
        for seq, uid in enumerate(uids, 1)
    ]
    records += [record(5, BEGAN + 10, "ada", reason=LOGOUT)]
    records += [record(6, SILENT, "eve"), record(7, SILENT, 7)]
    bob = OnlineRow(4, "bob", BEGAN, None, "gw", 3_600)
    with closing(LogStore(tmp_path / "state")) as store:
        store.write(Batch(batch_of(records), online={4: bob}))
    return tmp_path / "state"


@pytest.fixture
def compared(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Compare:
    def compared(lines: list[dict[str, Any]], *arguments: str) -> tuple[int, str, str]:
        file = tmp_path / "theirs.jsonl"
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        place = [f"--state={state}", "--within=0.2"]
        code = main(["compare", str(file), *place, *arguments])
        return code, *capsys.readouterr()

    return compared


def test_a_file_of_the_past_is_compared_with_the_log(compared: Compare) -> None:
    code, shown, told = compared(
        [
            {"uid": "eve", "at": SILENT + 100},  # in no order
            {"uid": "bob", "at": BEGAN + 400},
            {"uid": "of before", "at": BEGAN - 1},
            {"uid": 7, "at": SILENT / 1000 - 0.1},
            {"uid": "eve", "at": SILENT + 1_000},
            {"uid": "of after", "at": SILENT + 2 * HOUR_MS},
        ]
    )
    assert code == DIFFER
    first, second, *account = shown.splitlines()
    assert first.startswith("only there  ")
    assert first.endswith("  bob  line 2  online here")
    assert second.startswith("only there  ")
    assert second.endswith(
        "  eve  line 5  offline here already, 1.000 s before that (silence)"
    )
    assert account == [
        "both          2  (silence 2)",
        "later there   min -0.100 s, p50 -0.100 s, p99 +0.100 s, max +0.100 s",
        "              earlier 1, later 1",
        "only here     0",
        "only there    2  (online 1, already 1)",
        "not judged    1  (within 0.2 s of where one side begins or ends)",
        "logouts here  1  (not reported there)",
        "lines         6  (before 1)",
    ]
    assert told.startswith("liveness: comparing with the log in ")
    assert told.endswith(" to now\n")


def test_after_a_planned_stop_nothing_is_missed_here(
    state: Path, compared: Compare
) -> None:
    with closing(LogStore(state)) as store:
        log = store.log
    lines = [{"uid": "bob", "at": at} for at in (SILENT, SILENT + 10_000)]
    _, shown, _ = compared(lines)
    assert "bob  line 2" in shown
    clocks_file.write(state, log=log, seq=7, at_ms=SILENT + 500, clocks=no_clocks())
    _, shown, told = compared(lines)
    assert told.endswith("the sidecar's stop\n")
    assert "bob  line 2" not in shown


@pytest.mark.parametrize("bound", ["MOST_LINES", "MOST_BYTES"])
def test_a_file_is_read_up_to_a_bound_whatever_is_in_it(
    compared: Compare, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(command, bound, 2)
    code, shown, told = compared([{}, {}, {}])
    assert (code, shown) == (1, "")
    assert "theirs.jsonl has more than " in told
    assert "; split it\n" in told


def test_both_sides_agree_only_where_somebody_was_compared(compared: Compare) -> None:
    same = [{"uid": "ada", "at": BEGAN + 10}]
    same += [{"uid": uid, "at": SILENT} for uid in ("eve", 7)]
    code, shown, _ = compared(same, "--json", "--all")
    *lines, account = [json.loads(line) for line in shown.splitlines()]
    assert (code, account["account"]["both"]) == (AGREE, 3)
    assert {line["later_s"] for line in lines} == {0.0}
    assert compared([*same, {"uid": "eve"}])[0] == DIFFER  # a line is left out
    assert compared([])[0] == DIFFER


def test_only_so_many_users_are_looked_up_and_the_others_are_counted(
    compared: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_report, "MOST_LOOKUPS", 2)
    lines = [{"uid": f"nobody-{number}", "at": SILENT} for number in range(5)]
    _, shown, _ = compared(lines)
    assert "only there    5  (unknown 2, unlooked 3)" in shown
