"""Reports of a gateway: each connection once, in order, and again if necessary."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from time import time_ns
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.client.reports import MAX_CHANGES_PER_WRITE, Reports
from liveness.client.sidecar import client_of
from liveness.core.records import Uid
from liveness.core.wire.framing import decode
from liveness.errors import ReportError
from tests.helpers.strategies import BOUNDED, no_uids

FIRST_CONN: Final = 1_000

Told = list[tuple[str, Uid, int]]  # event, uid, conn


def reports_of(*logins: tuple[Uid, int | None]) -> Reports:
    """Reports with these connections open, reported and confirmed."""
    reports = Reports(FIRST_CONN)
    for uid, conn in logins:
        reports.login(uid, conn, at=0.0, timeout=None)
    told(reports)
    confirm(reports)
    return reports


def confirm(reports: Reports) -> None:
    reports.ping_sent()
    reports.pong_received()


def framed(reports: Reports, now: float = 0.0, **limits: Any) -> Iterator[bytes]:
    options = {
        "with_activity": True,
        "max_batch": 4_000,
        "max_frame_bytes": 2**20,
    } | limits
    return reports.frames(now, **options)


def frames(reports: Reports, now: float = 0.0, **limits: Any) -> list[Any]:
    return [decode(frame) for frame in framed(reports, now, **limits)]


def flat(frame: Any) -> Told:
    event, uids, options = frame
    return [(event, *one) for one in zip(uids, options["conn"], strict=True)]


def told(reports: Reports, now: float = 0.0, **limits: Any) -> Told:
    return [one for frame in frames(reports, now, **limits) for one in flat(frame)]


def keepalive(reports: Reports, uid: Any, conn: Any) -> None:
    reports.activity(reports.keepalives, uid, conn)


def message(reports: Reports, uid: Any, conn: Any) -> None:
    reports.activity(reports.messages, uid, conn)


def login(reports: Reports, uid: Any, conn: Any, at: float = 0.0) -> None:
    reports.login(uid, conn, at=at, timeout=None)


def live(reports: Reports, steps: str) -> None:
    """Take steps like "login ada 1, write, keepalive ada -"; "-" is no conn."""
    report: dict[str, Callable[..., object]] = {
        "login": login, "logout": Reports.logout,
        "keepalive": keepalive, "message": message,
    }  # fmt: skip
    for step in steps.split(", "):
        match step.split():
            case [what, uid, conn]:
                report[what](reports, uid, None if conn == "-" else int(conn))
            case ["write"]:
                frames(reports)
            case ["ping"]:
                reports.ping_sent()
            case ["pong"]:
                reports.pong_received()
            case ["lost"]:
                reports.link_lost()
            case _:
                assert step == "declare"
                reports.declare()


def kept(reports: Reports) -> int:
    """How much is kept, of whatever kind, the conns that were given out aside."""
    return sum(len(kind) for kind in vars(reports).values() if hasattr(kind, "keys"))


# --- each connection once ------------------------------------------------------------


# In each, the connections 1 and 2, of ada and bob, were logged in and confirmed before.
SENT_AFTER_STEPS: Final = """\
keepalive ada 1, message ada 1 -> message ada 1
keepalive ada 1, message ada 1, login ada 1 -> login ada 1
login eve 3, keepalive eve 3, logout eve 3 -> nothing
login eve 3, write, logout eve 3 -> logout eve 3
keepalive ada 1, write, ping, pong, lost -> nothing
login eve 3, keepalive ada 1, write, ping, message bob 2, logout eve 3, write, lost \
-> logout eve 3, keepalive ada 1, keepalive bob 2
login eve 3, write, ping, login joe 4, write, pong, lost -> login joe 4
login eve 3, write, keepalive eve 3, write, lost -> login eve 3
login eve 3, keepalive eve 3, write, lost, logout eve 3 -> logout eve 3
logout ada 1, write, login ada 3, lost -> login ada 3, logout ada 1
logout ada 1, login eve -, login joe 3, write, ping, pong, keepalive joe 3, declare \
-> login bob 2, login eve 1000, login joe 3
declare, logout ada 1 -> login bob 2, logout ada 1
logout ada 1, declare -> login bob 2, logout ada 1
login ada 3, logout ada 1, login ada 4, logout ada 3 -> login ada 4, logout ada 1
login ada 3, logout ada 1, logout ada 3, login ada 4 -> login ada 4, logout ada 1
login ada 3, logout ada 1, login ada 4, logout ada 3, login ada 5, logout ada 4 \
-> login ada 5, logout ada 1
login ada 3, write, logout ada 1, login ada 4, lost, logout ada 3 \
-> login ada 4, logout ada 1, logout ada 3
login ada 3, logout ada 1, login ada 4, write, logout ada 3, lost, declare \
-> login bob 2, login ada 4, logout ada 3, logout ada 1
login eve -, write, login eve -, logout eve - -> logout eve 1000
"""


@pytest.mark.parametrize("line", SENT_AFTER_STEPS.splitlines())
def test_what_is_sent_after_these_steps(line: str) -> None:
    steps, _, expected = line.partition(" -> ")
    reports = reports_of(("ada", 1), ("bob", 2))
    live(reports, steps)
    sent = [" ".join(map(str, report)) for report in told(reports)]
    assert (", ".join(sent) or "nothing") == expected
    assert reports.pending == 0
    assert told(reports) == []


def test_signs_of_life_wait_until_they_are_due_and_changes_do_not() -> None:
    reports = reports_of(("ada", 1))
    keepalive(reports, "ada", 1)
    login(reports, "bob", 2)
    assert told(reports, with_activity=False) == [("login", "bob", 2)]
    assert told(reports, with_activity=True) == [("keepalive", "ada", 1)]


@pytest.mark.parametrize("conn", [None, 1], ids=["conns given here", "own conns"])
def test_users_who_come_and_go_without_a_link_leave_nothing(
    conn: int | None,
) -> None:
    reports = reports_of(("stays", 0))
    before = kept(reports)
    for n in range(100):
        own = None if conn is None else n + 1
        login(reports, n % 10, own)
        keepalive(reports, n % 10, own)
        reports.logout(n % 10, own)
        keepalive(reports, "stays", 0)
    assert kept(reports) == before + 1
    assert reports.pending == 1
    assert reports.ignored == 0


# --- conns -----------------------------------------------------------------------------


def test_the_conns_of_a_process_are_above_earlier_ones_and_exact_in_doubles() -> None:
    began, sidecar = time_ns(), client_of("gw", None, fresh=True)
    ended, conn = time_ns(), sidecar.reports.new_conn()
    assert began * 2**20 // 10**9 <= conn <= ended * 2**20 // 10**9
    assert conn + 2**20 < 2**53
    first_unsafe_s = 2**53 / 2**20
    assert datetime.fromtimestamp(first_unsafe_s, UTC).year == 2242


def test_users_are_distinguished_by_conn_and_not_by_the_name_of_a_number() -> None:
    reports = reports_of(("ada", 1), ("ada", None), (7, None), ("8", 5))
    keepalive(reports, "ada", 1)
    keepalive(reports, "ada", None)
    keepalive(reports, "7", None)
    keepalive(reports, 8, 5)
    assert [conn for _, _, conn in told(reports)] == [1, 1_000, 1_001, 5]
    reports.logout("ada", None)
    reports.logout("7", None)
    assert reports.uids == {1: "ada", 5: "8"}
    login(reports, "9", None)
    login(reports, 9, None)
    assert reports.uids == {1: "ada", 5: "8", 1_003: 9}


def test_reports_about_a_connection_that_is_not_open_are_ignored_and_counted() -> None:
    reports = reports_of(("ada", 1))
    reports.logout("ada", 1)
    keepalive(reports, "ada", 1)
    keepalive(reports, "bob", None)
    message(reports, "bob", 9)
    assert not reports.logout("ada", 1)
    login(reports, "ada", 1)  # its logout waits: a record may just have ended it
    assert reports.ignored == 5
    assert told(reports) == [("logout", "ada", 1)]
    login(reports, "ada", 1)  # sent, and not confirmed
    assert reports.ignored == 6
    assert told(reports) == []


# --- what cannot be --------------------------------------------------------------------

BAD_CONNS: Final[tuple[object, ...]] = (
    True, False, -1, 2**63, 1.0, "1", b"1", (), [], {},
)  # fmt: skip
BAD_TIMEOUTS: Final = (0, 0.5, 86_401, -1, True, "30", float("nan"), float("inf"))


@given(uid=no_uids, conn=st.sampled_from([None, 1, 2]))
@BOUNDED
def test_a_bad_uid_raises_at_every_call_and_leaves_nothing(uid: Any, conn: Any) -> None:
    reports = reports_of(("ada", 1))
    before = kept(reports)
    for report in (login, keepalive, message, Reports.logout):
        with pytest.raises(ReportError):
            report(reports, uid, conn)
    assert kept(reports) == before
    assert told(reports) == []
    assert reports.ignored == 0


@pytest.mark.parametrize("conn", BAD_CONNS, ids=repr)
def test_a_bad_conn_raises_at_every_call_and_leaves_nothing(conn: Any) -> None:
    reports = reports_of(("ada", 1), ("bob", 0))
    before = kept(reports)
    for report in (login, keepalive, message, Reports.logout):
        with pytest.raises(ReportError, match="conn is"):
            report(reports, "ada", conn)
    assert kept(reports) == before
    assert told(reports) == []


@pytest.mark.parametrize("timeout", BAD_TIMEOUTS, ids=repr)
def test_a_bad_timeout_raises_and_leaves_nothing(timeout: Any) -> None:
    reports = reports_of(("ada", 1))
    before = kept(reports)
    for uid, conn in (("ada", 1), ("bob", 2), ("eve", None)):
        with pytest.raises(ReportError, match="timeout is"):
            reports.login(uid, conn, at=0.0, timeout=timeout)
    assert kept(reports) == before
    assert told(reports) == []
    assert reports.new_conn() == FIRST_CONN


def test_a_report_with_the_conn_of_another_user_raises() -> None:
    reports = reports_of(("ada", 1))
    for report in (login, keepalive, message, Reports.logout):
        with pytest.raises(ReportError, match="'ada''s, not 'bob''s"):
            report(reports, "bob", 1)
    reports.logout("ada", 1)
    for _ in ("waiting", "told"):
        with pytest.raises(ReportError, match="'ada''s, not 'bob''s"):
            login(reports, "bob", 1)
        told(reports)
    assert reports.pending == 0


# --- order -----------------------------------------------------------------------------


def test_keepalives_of_a_connection_closed_while_frames_are_written_are_dropped() -> (
    None
):
    reports = reports_of(("ada", 1), ("bob", 2))
    keepalive(reports, "ada", 1)
    keepalive(reports, "bob", 2)
    writing = framed(reports, max_batch=1)
    next(writing)
    reports.logout("bob", 2)
    assert list(writing) == []
    assert told(reports) == [("logout", "bob", 2)]


@pytest.mark.parametrize("written", [1, 2, 3])
def test_no_keepalive_overtakes_its_login_while_frames_are_written(
    written: int,
) -> None:
    reports = reports_of(("bob", 2), ("eve", 3))
    live(reports, "login ada 1, message bob 2, keepalive eve 3")
    writing = framed(reports)
    assert len([*islice(writing, written)]) == written
    live(reports, "login joe 4, keepalive joe 4")
    rest = [report for it in writing for report in flat(decode(it))] + told(reports)
    assert next(event for event, uid, _ in rest if uid == "joe") == "login"


def test_a_login_is_written_though_its_connection_closes_while_frames_are() -> None:
    reports = reports_of(("ada", 1))
    live(reports, "login eve 2, login ada 3, logout ada 1")
    writing = framed(reports, max_batch=1)
    assert flat(decode(next(writing))) == [("login", "eve", 2)]
    live(reports, "logout ada 3, login ada 4")
    rest = [report for frame in writing for report in flat(decode(frame))]
    assert rest == [("login", "ada", 3), ("logout", "ada", 1)], "ada would be offline"
    assert told(reports) == [("login", "ada", 4), ("logout", "ada", 3)]


@pytest.mark.parametrize("are_declared", [False, True], ids=["new", "declared"])
def test_no_logout_is_written_before_the_logins_of_all_open_connections(
    *, are_declared: bool
) -> None:
    crowd = [(n, n) for n in range(10, 10 + MAX_CHANGES_PER_WRITE)]
    reports = reports_of(("ada", 1), *(crowd if are_declared else []))
    if are_declared:
        live(reports, "logout ada 1, login ada 2, declare")
    else:
        live(reports, "logout ada 1")
        for uid, conn in crowd:
            login(reports, uid, conn)
        login(reports, "ada", 2)
    written = [told(reports) for _ in range(2)]
    assert {event for event, _, _ in written[0]} == {"login"}
    assert ("login", "ada", 2) in written[0] + written[1][:-1]
    assert written[1][-1] == ("logout", "ada", 1)


# --- ages and timeouts -----------------------------------------------------------------


def test_a_login_from_before_the_boot_of_the_host_has_an_age_only() -> None:
    reports = Reports(FIRST_CONN)
    reports.login("ada", 1, at=-50.0, timeout=None)
    reports.login("eve", 2, at=-50.0, timeout=None)
    reports.login("now", 3, at=100.0, timeout=None)
    old, new = sorted(frames(reports, 100.0, began=7.5), key=lambda it: len(it[1]))
    assert (new[1], new[2]["age"], new[2]["began"]) == (
        ("ada", "eve"),
        149.9,
        (None,) * 2,
    )
    assert old[2]["began"] == (107.5,)


def test_a_login_that_is_sent_again_keeps_its_beginning() -> None:
    reports = Reports(FIRST_CONN)
    reports.login("ada", 1, at=100.0, timeout=None)
    frames(reports, 100.0, began=7.5)
    reports.link_lost()
    (frame,) = frames(reports, 160.0, began=9.5)  # another link, with a new reading
    assert (frame[2]["age"], frame[2]["began"]) == (59.9, (109.5,))


def test_a_timeout_holds_until_the_next_login() -> None:
    reports = Reports(FIRST_CONN)
    for timeout, shown in ((5, {"timeout": 5}), (7.5, {"timeout": 7.5}), (None, {})):
        reports.login("ada", 1, at=0.0, timeout=timeout)
        (frame,) = frames(reports)
        assert frame == ("login", ("ada",), {"conn": (1,)} | shown)
