"""`liveness compare`: offlines of two sides put together, and a file beside a log."""

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liveness.cli import compare as command
from liveness.cli.main import main
from liveness.core.records import Logged, OnlineRow, Record, Uid
from liveness.core.wheel.restart import no_clocks
from liveness.lab.compare import comparison_report
from liveness.lab.compare.causes import Evidence, cause_of
from liveness.lab.compare.comparison import Comparison, Line, Outcome, Span
from liveness.lab.compare.comparison_report import ComparisonReport
from liveness.lab.compare.offline_lines import LineReader
from liveness.service.storage import clocks_file
from liveness.service.storage.log_store import Batch, LogStore
from tests.helpers.record_batches import batch_of
from tests.helpers.strategies import BOUNDED

WITHIN = 10
ALWAYS = Span()


def record(seq: int, at: int, uid: Uid = "ada", **more: Any) -> Record:
    facts: dict[str, Any] = {"kind": "offline", "reason": "silence"} | more
    return Record(seq=seq, at=at, uid=uid, gateway="gw", session=1, conn=None, **facts)


def line(number: int, at: int, uid: Uid = "ada") -> Line:
    return Line(number, at, uid)


def settled(
    *offlines: Record | Line, here: Span = ALWAYS, there: Span = ALWAYS
) -> list[Outcome]:
    """The outcomes of all these offlines, as they come."""
    made = Comparison(WITHIN, here=here, there=there)
    return [
        *itertools.chain.from_iterable(map(made.add, offlines)),
        *made.finish(),
    ]


def verdicts(settled: Iterable[Outcome]) -> list[str]:
    return [outcome.verdict for outcome in settled]


Pairs = set[frozenset[Record | Line | None]]


def place(offline: Record | Line) -> tuple[int, bool, int]:
    return offline.at, isinstance(offline, Line), offline[0]


def model(offlines: Sequence[Record | Line]) -> Pairs:
    """All pairs are looked at again and again, and the closest is taken out."""
    left, found = sorted(offlines, key=place), Pairs()
    while near := [
        (left[j].at - left[i].at, j - i, i, j)
        for i, j in itertools.combinations(range(len(left)), 2)
        if isinstance(left[i], Line) != isinstance(left[j], Line)
        and left[j].at - left[i].at <= WITHIN
    ]:
        *_, i, j = min(near)
        found.add(frozenset({left.pop(j), left.pop(i)}))
    return found | {frozenset({alone, None}) for alone in left}


@BOUNDED
@example([("ada", False, 0), ("ada", True, WITHIN - 2), ("ada", False, WITHIN)])
@given(
    st.lists(
        st.tuples(st.sampled_from(["ada", 7, "7"]), st.booleans(), st.integers(0, 100)),
        max_size=30,
    )
)
def test_the_closest_belong_together_in_whatever_order_they_come(
    drawn: list[tuple[Uid, bool, int]],
) -> None:
    offlines = [
        line(n, at, uid) if is_there else record(n, at, uid)
        for n, (uid, is_there, at) in enumerate(drawn)
    ]
    expected = Pairs()
    for name in ("ada", "7"):
        expected |= model([each for each in offlines if str(each.uid) == name])
    found = settled(*sorted(offlines, key=lambda each: each.at))
    assert {frozenset({here, there}) for _, here, there in found} == expected
    assert len(found) == len(expected)


def test_alone_counts_only_where_the_other_side_could_have_reported_it() -> None:
    edges = {9: False, 10: True, 90: True, 91: False}
    lines = [line(at, at, at) for at in edges]
    records = [record(at, at, at) for at in edges]
    for found, verdict in (
        (settled(*records, there=Span(0, 100)), "only here"),
        (settled(*lines, here=Span(0, 100)), "only there"),
    ):
        expected = [
            verdict if is_judged else "not judged" for is_judged in edges.values()
        ]
        assert verdicts(found) == expected


def test_a_logout_belongs_to_a_line_and_is_not_missing_without_one() -> None:
    ada, bob = record(1, 100, reason="logout"), record(2, 100, "bob", reason="logout")
    assert sorted(verdicts(settled(ada, line(1, 101), bob))) == ["both", "logout"]


def test_lines_from_before_the_log_are_counted() -> None:
    of = Comparison(WITHIN, here=Span(1_000), there=ALWAYS)
    assert list(of.add(line(1, 999))) == list(of.add(record(1, 1_050))) == []
    assert of.before == 1
    assert verdicts(of.finish()) == ["only here"]


# --- why only there -------------------------------------------------------------------

LOGIN = record(1, 1_000, kind="online", reason="login")
END = record(5, 9_000, seen=8_000)


@pytest.mark.parametrize(
    ("at", "known", "kind"),
    [
        (5_000, Evidence(True, [LOGIN], True), "online"),
        (5_000, Evidence(False, [END, LOGIN], True), "alive"),
        (8_500, Evidence(False, [END], True), "online"),
        (8_500, Evidence(True, [record(6, 9_000, kind="moved"), LOGIN], True), "alive"),
        (9_500, Evidence(True, [record(7, 9_600, kind="online"), END], True), "already"),
        (500, Evidence(True, [LOGIN], True), "unknown"),
        (500, Evidence(False, [], False), "unknown"),
    ],
)  # fmt: skip
def test_the_cause_of_an_offline_that_only_they_reported(
    at: int, known: Evidence, kind: str
) -> None:
    assert cause_of(at, known).kind == kind


# --- the account ----------------------------------------------------------------------


def test_the_account_adds_up_what_was_settled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = Evidence(False, [END, LOGIN], True)

    def account(*outcomes: Outcome) -> tuple[int, list[str]]:
        nothing = Comparison(WITHIN, here=ALWAYS, there=ALWAYS)
        report = ComparisonReport(
            *(nothing, LineReader(print), lambda _: known),
            within_s=60,
            shows_all=False,
        )
        report.write(outcomes)
        return report.end(), capsys.readouterr().out.splitlines()

    code, found = account()
    assert (code, found[:2]) == (3, ["both          0", "only here     0"])
    both = [
        Outcome("both", record(1, 1_000), line(1, 1_000 + later_ms))
        for later_ms in (*range(-1, 98), 400)
    ]
    # Of a logout nobody can be late.
    out = record(1, 1_000, reason="logout")
    both += [Outcome("both", out, line(1, 9_000)), Outcome("logout", out, None)]
    code, found = account(*both)
    assert code == 0
    assert found[:3] == [
        "both          101  (silence 100, logout 1)",
        "later there   min -0.001 s, p50 +0.048 s, p99 +0.097 s, max +0.400 s",
        "              earlier 1, same 1, later 98",
    ]
    assert "logouts here  1  (not reported there)" in found
    code, found = account(*both, Outcome("only there", None, line(1, 5_000)))
    assert code == 3
    assert "only there    1  (alive 1)" in found


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
        record(seq, BEGAN, uid, kind="online", reason="login")
        for seq, uid in enumerate(uids, 1)
    ]
    records += [record(5, BEGAN + 10, "ada", reason="logout")]
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


def test_after_a_planned_stop_nothing_is_missed_here(
    state: Path, compared: Compare
) -> None:
    with closing(LogStore(state)) as store:
        log = store.log
    lines = [{"uid": "bob", "at": at} for at in (SILENT, SILENT + 10_000)]
    _, shown, _ = compared(lines)
    assert "bob  line 2" in shown
    clocks_file.write(state, log=log, seq=7, at_ms=SILENT + 500, clocks=no_clocks())
    _, shown, errors = compared(lines)
    assert errors.endswith("the sidecar's stop\n")
    assert "bob  line 2" not in shown


def test_a_file_with_too_many_lines_is_refused(
    compared: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MOST_LINES", 2)
    line = {"uid": "ada", "at": SILENT}
    assert "more than" not in compared([line, line, {}])[2]
    code, shown, errors = compared([line, line, {}, line])
    assert (code, shown) == (1, "")
    assert "theirs.jsonl has more than 2 lines; split it\n" in errors


def test_both_sides_agree_only_where_somebody_was_compared(compared: Compare) -> None:
    same = [{"uid": "ada", "at": BEGAN + 10}]
    same += [{"uid": uid, "at": SILENT} for uid in ("eve", 7)]
    code, shown, _ = compared(same, "--all")
    assert (code, shown.count("  +0.000 s there\n")) == (0, 3)
    assert "\nboth          3  (silence 2, logout 1)\n" in shown
    assert compared([*same, {"uid": "eve"}])[0] == 3  # a line is left out
    assert compared([])[0] == 3


def test_only_so_many_users_are_looked_up_and_the_others_are_counted(
    compared: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_report, "MOST_LOOKUPS", 2)
    lines = [{"uid": f"nobody-{number}", "at": SILENT} for number in range(5)]
    _, shown, _ = compared(lines)
    assert "only there    5  (unknown 2, unlooked 3)" in shown
