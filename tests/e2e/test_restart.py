"""What a restart forgets: nothing after a planned stop, only the clocks after a crash."""

import shutil
import signal
import sqlite3
from array import array
from contextlib import closing
from pathlib import Path
from time import perf_counter, time_ns
from typing import Any

import pytest

from liveness.core.records import OnlineRow, Record
from liveness.core.wheel import Snapshot
from liveness.service import stopfile
from liveness.service.store import DATABASE, SCHEMA, Batch, CursorRow, Store
from tests import disk, older
from tests.e2e.client import Uid, packed
from tests.e2e.conftest import Start
from tests.e2e.sidecar import Sidecar

STOP_S = 5  # what a planned stop may take
# After a restart gateways are given a second and this, before anyone is judged.
QUICK_FLUSH_S = 0.1
# The longest that counts there: a test can come in between.
SLOW_FLUSH_S = 1
# Of whoever is to be online still when the process ends, and silent after that.
TIMEOUT_S = 4
OF_B_S = 4.2


# --- a planned stop -----------------------------------------------------------------------


def test_a_planned_stop_applies_and_answers_what_was_sent_then_says_bye(
    start: Start,
) -> None:
    sidecar = start()
    link, watcher = sidecar.gateway("a"), sidecar.watcher("w", ack=True)
    silent = sidecar.connect()
    # Not read by anyone before the signal comes, or only in part: it counts all the same.
    pings = [["ping", n] for n in range(50)]
    users = [f"u-{n}" for n in range(1_000)]
    last = [["logout", "u-0"], ["ping", "last"], ["login", "asking nothing"]]
    link.send_bytes(packed(["login", users], *pings, *last))
    sidecar.signal(signal.SIGTERM)
    assert [link.expect("pong") for _ in pings] == [[n] for n in range(50)]
    assert link.expect("pong") == ["last"]
    (bye,) = link.expect("bye")
    assert bye["reason"]
    watcher.expect("bye")
    for one in (link, watcher, silent):
        assert one.receive() is None
        one.close()
    assert sidecar.ended(STOP_S) == 0
    assert not sidecar.socket.exists()
    assert not sidecar.admin.exists()
    sidecar.start()
    online, seq = sidecar.watcher("after").listed()
    assert set(online) == {*users[1:], "asking nothing"}
    assert seq == 1_002


def test_an_interrupt_stops_it_in_the_same_order(start: Start) -> None:
    sidecar = start()
    sidecar.gateway("a")
    assert sidecar.stop(signal.SIGINT, within_s=STOP_S) == 0
    said = [line["event"] for line in sidecar.lines]
    assert said[-4:-1] == ["stopping", "link down", "stopped"]


def test_a_planned_restart_resets_nobodys_clock_and_forgets_no_evidence(
    start: Start,
) -> None:
    sidecar = start(timeout_s=TIMEOUT_S, flush_s=QUICK_FLUSH_S)
    link = sidecar.gateway("a")
    sidecar.gateway("gone").send("login", "left", {"conn": 3})
    link.send("login", ["quiet", "kept", "closing"], {"conn": [1, 2, 4]})
    sent = perf_counter()
    link.send("message", "quiet")
    link.settle()
    sidecar.stop()
    stopped = perf_counter()
    # Were it reset, the clock of those silent by now would run for a minute.
    sidecar.start(timeout_s=60, flush_s=QUICK_FLUSH_S)
    link = sidecar.gateway("a")
    watcher = sidecar.watcher(after=0)
    link.send("keepalive", "kept", {"conn": 2})
    link.send("logout", "closing", {"conn": 4})
    ends = watcher.until(lambda records: len(records) == 7)[4:]
    waited = perf_counter() - sent
    assert waited >= TIMEOUT_S
    logout, *silences = sorted(ends, key=lambda record: record["reason"] != "logout")
    assert logout.items() >= {"uid": "closing", "last": "logout"}.items()
    told = {r["uid"]: (r["reason"], r["last"], r.get("conn")) for r in silences}
    assert told == {
        "quiet": ("silence", "message", 1),
        "left": ("gateway_lost", "login", 3),
    }
    for record in silences:
        assert TIMEOUT_S <= record["silence"] <= waited
        assert "restored" not in record
    assert stopped - sent < TIMEOUT_S
    assert link.where("kept")[0][:2] == ["kept", "a"]
    assert sidecar.metric("liveness_early_offline_total") == 0


def test_a_gateway_that_reconnects_after_a_restart_goes_on_without_a_record(
    start: Start,
) -> None:
    sidecar = start()
    link = sidecar.gateway("a")
    link.send("login", ["u", "v"], {"conn": [1, 2]})
    link.settle()
    before, _ = link.listed()
    sidecar.stop()
    sidecar.start()
    watcher = sidecar.watcher()
    link = sidecar.gateway("a")
    link.send("keepalive", ["u", "v"], {"conn": [1, 2]})
    link.send("login", ["u", "v"], {"conn": [1, 2], "age": 5})
    link.settle()
    assert link.listed() == (before, 2)
    watcher.settle()
    assert not watcher.records


def stopped_with(state: Path, remaining_s: dict[str, float]) -> None:
    """Leaves what a planned stop leaves, of users with so much left of a minute."""
    uids: list[Uid] = [*remaining_s]
    left = array("d", remaining_s.values())
    sessions = array("q", range(1, len(uids) + 1))
    records = [
        Record(seq, "online", uid, "a", seq, None, "login", 1)
        for seq, uid in zip(sessions, uids, strict=True)
    ]
    rows = {r.seq: OnlineRow(r.seq, r.uid, r.at, None, "a", None) for r in records}
    whole, seen = array("d", [60.0] * len(uids)), array("d", left)
    clocks = Snapshot(sessions, whole, left, seen, array("b", [1] * len(uids)))
    with closing(Store(state)) as store:
        store.write(Batch(records=[*records], online=dict(rows)))
        stopfile.write(
            state,
            log=store.log,
            seq=len(uids),
            mono=60.0,
            wall_ms=2**50,
            everyone=clocks,
        )


def test_after_a_restart_gateways_have_time_to_report_who_would_be_due(
    make: Start,
) -> None:
    sidecar = make(timeout_s=1, flush_s=SLOW_FLUSH_S)
    stopped_with(sidecar.state, {"reported": 0, "silent": 0, "patient": 50})
    sidecar.start()
    # It is at work, and would judge them, were their gateway not given time.
    sidecar.metric_until(lambda due: due == 2, "liveness_users_held", why="away")
    link = sidecar.gateway("a")
    sent = perf_counter()
    link.send("keepalive", "reported")
    first, second = link.take(2)
    # The timeout is shorter than it was: that holds from a user's next event on.
    assert perf_counter() - sent >= 1
    assert (first["uid"], first["last"]) == ("silent", "login")
    assert first["silence"] >= 60
    assert (second["uid"], second["last"]) == ("reported", "keepalive")
    assert link.where("patient") == [["patient", "a", 3, None]]
    assert sidecar.metric("liveness_early_offline_total") == 0


@pytest.mark.parametrize("moment", ["at once", "as it starts"])
def test_a_stop_that_comes_at_the_start_leaves_nothing_behind(
    make: Start, moment: str
) -> None:
    sidecar = make()
    sidecar.launch()
    if moment == "as it starts":
        sidecar.line("starting")
    # Before it has taken over its signals, the system's own answer is right as well.
    assert sidecar.stop(within_s=STOP_S) in (0, -signal.SIGTERM)
    assert not any("text" in line for line in sidecar.lines), sidecar.lines
    assert not sidecar.socket.exists()
    assert not sidecar.admin.exists()


# --- a crash ------------------------------------------------------------------------------


def crash_and_restart(sidecar: Sidecar, **settings: Any) -> float:
    """Kills it, starts it anew; when the new process was launched."""
    sidecar.kill()
    assert sidecar.socket.exists(), "a crash leaves the file, to be replaced"
    launched = perf_counter()
    sidecar.start(**settings)
    return launched


def test_after_a_crash_users_sessions_and_conns_are_as_they_were(start: Start) -> None:
    sidecar = start()
    a, b = sidecar.gateway("a"), sidecar.gateway("b")
    a.send("login", ["u", "v", "gone"], {"conn": [1, 2, 3]})
    a.send("login", ["adopting", "bare"])
    a.send("login", "adopting", {"conn": 77})  # takes the conn; no record says so
    a.send("logout", "gone")
    a.settle()
    b.send("login", "v", {"conn": 9})
    b.settle()
    before, seq = sidecar.watcher().listed()
    assert before["adopting"] == ("a", 4, 77)
    assert before["v"] == ("b", 7, 9)
    crash_and_restart(sidecar)
    watcher = sidecar.watcher()
    assert watcher.listed() == (before, seq) == (before, 7)
    assert watcher.next == 8
    assert watcher.log == a.log
    # A late logout of a connection before the crash still ends only its own session.
    a = sidecar.gateway("a")
    a.send("logout", ["adopting", "v", "u"], {"conn": [76, 2, 1]})
    a.settle()
    (offline,) = watcher.take(1)
    assert (offline["seq"], offline["uid"], offline["session"]) == (8, "u", 1)


def test_after_a_crash_seq_and_cursors_go_on_without_a_gap_or_reuse(
    start: Start,
) -> None:
    sidecar = start()
    link = sidecar.gateway("a")
    watcher = sidecar.watcher("w", ack=True)
    link.send("login", ["u", "v", "w"])
    link.send("logout", ["u", "v", "w"])
    first, second, third = link.take(3)
    link.send("ack", first["seq"])
    everything = watcher.take(6)
    watcher.send("ack", 5)
    watcher.settle()
    # A commit takes the cursors along.
    link.send("login", "x")
    link.settle()
    crash_and_restart(sidecar)
    link = sidecar.gateway("a")
    assert link.next == 8
    assert link.take(2) == [second, third]
    link.send("login", "y")
    link.settle()
    again = sidecar.gateway("w", role="watcher", scope="all").take(3)
    assert again[0] == everything[5]
    assert [(r["seq"], r["uid"]) for r in again[1:]] == [(7, "x"), (8, "y")]


def test_after_a_crash_everyone_gets_a_fresh_timeout_and_is_restored_until_heard(
    start: Start,
) -> None:
    sidecar = start(timeout_s=60, flush_s=QUICK_FLUSH_S)
    link, other = sidecar.gateway("a"), sidecar.gateway("b", timeout=OF_B_S)
    own = {"timeout": TIMEOUT_S}
    link.send("login", ["unheard", "heard", "ended"], own)
    link.send("login", ["patient", "amended"])
    link.send("login", "amended", own)  # no record tells of it
    other.send("login", "of b")
    link.settle()
    other.settle()
    launched = crash_and_restart(sidecar)
    other, link = sidecar.gateway("b", timeout=OF_B_S), sidecar.gateway("a")
    link.send("logout", "ended")
    link.send("message", "heard")
    (logout, *ends) = [*link.take(4), *other.take(1)]
    assert perf_counter() - launched >= OF_B_S
    assert logout.items() >= {"uid": "ended", "last": "logout"}.items()
    told = {r["uid"]: r for r in ends}
    assert set(told) == {"unheard", "heard", "amended", "of b"}
    for uid in ("unheard", "amended", "of b"):
        assert told[uid]["restored"] is True
        assert not {"seen", "last"} & told[uid].keys()
        assert told[uid]["silence"] >= (OF_B_S if uid == "of b" else TIMEOUT_S)
    assert told["heard"]["last"] == "message"
    assert "restored" not in told["heard"]
    assert link.where("patient")[0][0] == "patient"
    assert sidecar.metric("liveness_early_offline_total") == 0


def test_a_gateway_that_starts_anew_ends_what_it_left_and_begins_at_now(
    start: Start,
) -> None:
    sidecar = start()
    link, watcher = sidecar.gateway("a"), sidecar.watcher()
    link.send("login", ["u", "v"], {"conn": [1, 2]})
    link.send("logout", "v")
    link.settle()
    crash_and_restart(sidecar)
    watcher = sidecar.watcher()
    link = sidecar.gateway("a", fresh=True)
    assert link.next == 5
    link.send("login", "u", {"conn": 3})
    link.settle()
    lost, online = watcher.take(2)
    assert lost.items() >= {"uid": "u", "reason": "gateway_lost", "conn": 1}.items()
    assert online.items() >= {"uid": "u", "kind": "online", "conn": 3}.items()
    assert not link.records


# --- what it finds at the start -----------------------------------------------------------


def refusal_of(sidecar: Sidecar, *words: str) -> None:
    code, line = sidecar.refused_start()
    assert code == 1
    for word in words:
        assert word in line


def test_a_second_sidecar_is_refused_and_the_first_goes_on(
    start: Start, make: Start
) -> None:
    first = start()
    link = first.gateway("a")
    link.send("login", "u")
    refusal_of(first, str(first.state), "in use by another sidecar", "--state")
    rival = make()
    rival.socket = first.socket
    refusal_of(rival, str(first.socket), "another process serves there", "--socket")
    link.settle()
    assert first.gateway("b").where("u")[0][1] == "a"
    assert first.get("/readyz", admin=True)[0] == 200


def test_a_file_in_the_place_of_the_socket_is_left_alone(make: Start) -> None:
    sidecar = make()
    sidecar.socket.write_text("mine")
    refusal_of(sidecar, str(sidecar.socket), "no socket", "--socket")
    assert sidecar.socket.read_text() == "mine"


def filled(state: Path) -> Path:
    """A database with so many users online that they fill many pages."""
    with closing(Store(state)) as store:
        records = [
            Record(seq, "online", f"user-{seq}", "a", seq, seq, "login", seq)
            for seq in range(1, 2_001)
        ]
        rows = {
            r.seq: OnlineRow(r.seq, r.uid, r.at, r.conn, "a", None) for r in records
        }
        store.write(Batch(records=[*records], online=dict(rows)))
    return state / DATABASE


def with_garbage_for_a_database(database: Path) -> None:
    database.write_bytes(b"not a database, but long enough to look like one" * 100)


def with_a_torn_page(database: Path) -> None:
    data = bytearray(database.read_bytes())
    for page in range(8 * 4096, len(data), 4096):
        data[page : page + 512] = bytes(512)
    database.write_bytes(data)


def without_its_end(database: Path) -> None:
    data = database.read_bytes()
    database.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    "damage", [with_garbage_for_a_database, with_a_torn_page, without_its_end]
)
def test_a_damaged_database_is_refused_and_left_byte_for_byte(
    make: Start, damage: Any
) -> None:
    sidecar = make()
    database = filled(sidecar.state)
    damage(database)
    before = database.read_bytes()
    refusal_of(sidecar, str(database), "cannot be read", "left as it is")
    assert database.read_bytes() == before
    assert not sidecar.socket.exists()


def with_timers(sidecar: Sidecar) -> None:
    """Leaves a table of timers in which pages are not read before they are asked for."""
    link = sidecar.start().gateway("a")
    for n in range(2_000):
        link.send("after", f"key-{n}", 86_400)
    link.settle()
    assert sidecar.stop() == 0


@pytest.mark.parametrize("damage", [with_garbage_for_a_database, without_its_end])
def test_a_damaged_table_of_timers_is_refused_and_left_byte_for_byte(
    make: Start, damage: Any
) -> None:
    sidecar = make()
    with_timers(sidecar)
    damage(sidecar.timers)
    before = sidecar.timers.read_bytes()
    refusal_of(sidecar, str(sidecar.timers), "cannot be read", "without timers")
    assert sidecar.timers.read_bytes() == before
    assert not sidecar.socket.exists()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["liveness.db", "timers.db"])
def test_a_damaged_wal_is_refused_with_the_commits_that_lie_behind(
    start: Start, name: str
) -> None:
    sidecar = start()
    link = sidecar.gateway("a")
    for n in range(20):
        link.send("login", f"user-{n}")
        link.send("after", f"key-{n}", 86_400)
        link.settle()
    sidecar.kill()
    log = sidecar.state / f"{name}-wal"
    before = log.read_bytes()
    middle = len(before) // 2
    flip(log, middle)
    files = {one: one.read_bytes() for one in sidecar.state.glob(f"{name}*")}
    refusal_of(sidecar, str(sidecar.state / name), "cannot be read", log.name)
    for one, data in files.items():
        assert one.name.endswith("-shm") or one.read_bytes() == data
    # A backup of the file helps: nothing else was touched.
    flip(log, middle)
    assert log.read_bytes() == before
    sidecar.start()
    assert len(sidecar.watcher().listed()[0]) == 20
    assert sidecar.timer_rows("select count(*) from timers") == [(20,)]


@pytest.mark.parametrize("name", ["liveness.db", "timers.db"])
def test_a_file_of_a_newer_version_is_refused_and_left_alone(
    make: Start, name: str
) -> None:
    sidecar = make()
    with_timers(sidecar)
    path = sidecar.state / name
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("update meta set value = 99 where key = 'schema'")
    before = path.read_bytes()
    refusal_of(sidecar, f"{path} has schema 99, this version", "--state")
    assert path.read_bytes() == before


def test_the_log_of_an_older_version_goes_on_where_it_ended(make: Start) -> None:
    sidecar = make()
    now = time_ns() // 1_000_000  # or it is past the retention
    records = [
        Record(seq, "online", f"user-{seq}", "a", seq, seq, "login", now)
        for seq in range(1, 2_001)
    ]
    end = Record(
        2_001, "offline", "user-1", "a", 1, 1, "logout", now, now, "logout", 0.5
    )
    rows = [OnlineRow(one.seq, one.uid, one.at, one.conn, "a", None) for one in records]
    cursors = {("gateway", "a"): CursorRow(1_990, now, 45.0)}
    sidecar.state.mkdir()
    older.schema_1(sidecar.database, [*records, end], rows[1:], cursors)
    sidecar.start()
    line = sidecar.line("an older file was migrated")
    assert (
        line.items()
        >= {"path": str(sidecar.database), "was": 1, "schema": SCHEMA}.items()
    )
    assert sidecar.line("restored")["users"] == 1_999
    link = sidecar.gateway("a")
    assert (link.log, link.next) == (older.LOG_ID, 2_002)
    (told,) = link.take(1)
    assert told.items() >= {"seq": 2_001, "uid": "user-1", "session": 1}.items()
    link.send("logout", "user-2", {"conn": 2})
    link.settle()
    (told,) = link.take(1)
    assert told.items() >= {"seq": 2_002, "uid": "user-2", "session": 2}.items()
    assert [one.seq for one in sidecar.log()] == [*range(1, 2_003)]


def test_a_damaged_table_of_timers_met_while_running_is_said_and_not_overwritten(
    start: Start,
) -> None:
    sidecar = start()
    sidecar.stop()
    with_timers(sidecar)
    whole = sidecar.timers.read_bytes()
    sidecar.start()
    disk.overwrite_root(sidecar.timers, "timers_key")
    damaged = sidecar.timers.read_bytes()
    link, watcher = sidecar.gateway("a"), sidecar.watcher()
    link.send("after", "another", 86_400)
    line = sidecar.line(
        "the timers' table cannot be written; nothing is dropped, it is tried again "
        "every second: make room or mend the disk"
    )
    assert line.items() >= {"level": "error", "path": str(sidecar.timers)}.items()
    assert "malformed" in line["error"]
    status, body = sidecar.get("/readyz")
    assert status == 503
    assert "the timers' table cannot be written" in body
    # Who is online is another file.
    link.send("login", "user")
    assert watcher.take(1)[0]["uid"] == "user"
    sidecar.kill()
    assert sidecar.timers.read_bytes() == damaged
    # What the operator is told to do.
    sidecar.timers.write_bytes(whole)
    for suffix in ("-wal", "-shm"):
        (sidecar.state / f"timers.db{suffix}").unlink(missing_ok=True)
    link = sidecar.start().gateway("a")
    link.send("after", "another", 86_400)
    link.settle()


def test_a_damaged_file_of_the_last_stop_costs_the_clocks_and_no_user(
    start: Start,
) -> None:
    sidecar = start()
    link = sidecar.gateway("a")
    link.send("login", ["u", "v"])
    link.settle()
    sidecar.stop()
    stopped = sidecar.state / "stopped"
    stopped.write_bytes(stopped.read_bytes()[:-1] + b"\xff")
    sidecar.start()
    assert not stopped.exists()
    assert sidecar.line("restored").items() >= {"users": 2, "clocks": 0}.items()
    link = sidecar.gateway("a")
    link.send("logout", "u")
    assert set(link.listed()[0]) == {"v"}


def test_a_stop_writes_no_clocks_into_the_state_of_another(make: Start) -> None:
    sidecar = make().start()
    sidecar.gateway("gw").settle()
    sidecar.state.rename(sidecar.folder / "aside")
    shutil.copytree(sidecar.folder / "aside", sidecar.state)
    theirs = sidecar.state / stopfile.NAME
    theirs.write_bytes(b"theirs")
    assert sidecar.stop() == 0
    assert theirs.read_bytes() == b"theirs"
    said = sidecar.line(
        "everyone's clock could not be written; at the next start they get a fresh "
        "timeout"
    )
    assert said["error"] == f"{sidecar.database} is not the log that is open"
