"""A restart loses nothing after a planned stop, and only the clocks after a crash.

Clocks, holds and the time that gateways get to come back are tested on virtual time:
`tests/core/sessions/test_presence.py`, `tests/service/links/test_links.py`, `test_replacement.py`. The
scripted sidecar runs some of these tests too (`tests/testing/test_scripted.py`).
"""

import shutil
import signal
import sqlite3
from contextlib import closing

import pytest

from liveness.service.storage import clocks_file
from liveness.service.storage.log_store import LogStore
from liveness.service.timers.timer_store import TimerStore
from tests.helpers import disk
from tests.helpers.wire import packed
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

STOP_S = 5  # what a planned stop may take


# --- a planned stop -----------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_planned_stop_applies_and_answers_what_was_sent_then_says_bye(
    start: Start, number: int
) -> None:
    sidecar = start()
    link, watcher = sidecar.gateway("a"), sidecar.watcher("w", ack=True)
    silent = sidecar.connect()
    # The sidecar may not have read all of it when the signal comes: it counts all the same.
    pings = [["ping", n] for n in range(50)]
    users = [f"u-{n}" for n in range(1_000)]
    last = [["logout", "u-0"], ["ping", "last"], ["login", "asking nothing"]]
    link.send_bytes(packed(["login", users], *pings, *last))
    sidecar.signal(number)
    assert [link.expect("pong") for _ in pings] == [[n] for n in range(50)]
    assert link.expect("pong") == ["last"]
    (bye,) = link.expect("bye")
    assert bye["reason"]
    watcher.expect("bye")
    for client in (link, watcher, silent):
        assert client.receive() is None
        client.close()
    assert sidecar.ended(STOP_S) == 0
    said = [line["event"] for line in sidecar.lines]
    assert said[-5:-1] == ["stopping", "link down", "link down", "stopped"]
    assert not sidecar.socket.exists()
    assert not sidecar.admin.exists()
    sidecar.start()
    online, seq = sidecar.watcher("after").listed()
    assert set(online) == {*users[1:], "asking nothing"}
    assert seq == 1_002


def test_a_gateway_that_reconnects_after_a_restart_goes_on_without_a_record(
    start: Start,
) -> None:
    sidecar = start()
    link = sidecar.gateway("a")
    link.apply("login", ["u", "v"], {"conn": [1, 2]})
    before, _ = link.listed()
    sidecar.stop()
    sidecar.start()
    watcher = sidecar.watcher()
    link = sidecar.gateway("a")
    link.send("keepalive", ["u", "v"], {"conn": [1, 2]})
    link.apply("login", ["u", "v"], {"conn": [1, 2], "age": 5})
    assert link.listed() == (before, 2)
    watcher.sync()
    assert not watcher.records


@pytest.mark.parametrize("moment", ["at once", "as it starts"])
def test_a_stop_that_comes_at_the_start_leaves_nothing_behind(
    make: Start, moment: str
) -> None:
    sidecar = make()
    sidecar.launch()
    if moment == "as it starts":
        sidecar.line("starting")
    # Until it handles the signal itself, the system ends it.
    assert sidecar.stop(within_s=STOP_S) in (0, -signal.SIGTERM)
    assert not any("text" in line for line in sidecar.lines), sidecar.lines
    assert not sidecar.socket.exists()
    assert not sidecar.admin.exists()


# --- a crash ------------------------------------------------------------------------------


def crash_and_restart(sidecar: Sidecar) -> None:
    sidecar.kill()
    assert sidecar.socket.exists(), "a crash leaves the file, to be replaced"
    sidecar.start()


def test_after_a_crash_users_sessions_and_conns_are_as_they_were(start: Start) -> None:
    sidecar = start()
    a, b = sidecar.gateway("a"), sidecar.gateway("b")
    a.send("login", ["u", "v", "gone"], {"conn": [1, 2, 3]})
    a.send("login", ["adopting", "bare"])
    a.send("login", "adopting", {"conn": 77})  # takes the conn; no record says so
    a.apply("logout", "gone")
    b.apply("login", "v", {"conn": 9})
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
    a.apply("logout", ["adopting", "v", "u"], {"conn": [76, 2, 1]})
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
    watcher.apply("ack", 5)
    # A commit takes the cursors along.
    link.apply("login", "x")
    crash_and_restart(sidecar)
    link = sidecar.gateway("a")
    assert link.next == 8
    assert link.take(2) == [second, third]
    link.apply("login", "y")
    again = sidecar.gateway("w", role="watcher", scope="all").take(3)
    assert again[0] == everything[5]
    assert [(r["seq"], r["uid"]) for r in again[1:]] == [(7, "x"), (8, "y")]


def test_a_gateway_that_starts_anew_ends_what_it_left_and_begins_at_now(
    start: Start,
) -> None:
    sidecar = start()
    link, watcher = sidecar.gateway("a"), sidecar.watcher()
    link.send("login", ["u", "v"], {"conn": [1, 2]})
    link.apply("logout", "v")
    crash_and_restart(sidecar)
    watcher = sidecar.watcher()
    link = sidecar.gateway("a", fresh=True)
    assert link.next == 5
    link.apply("login", "u", {"conn": 3})
    lost, online = watcher.take(2)
    assert lost.items() >= {"uid": "u", "reason": "gateway_lost", "conn": 1}.items()
    assert online.items() >= {"uid": "u", "kind": "online", "conn": 3}.items()
    assert not link.records


def test_a_fresh_gateway_ends_its_old_sessions_before_anything_else(
    sidecar: Sidecar,
) -> None:
    watcher = sidecar.watcher()
    first = watcher.next
    gateway = sidecar.gateway("g", kinds=["online"])
    gateway.send("login", ["a", "b"], {"conn": [1, 2]})
    assert len(gateway.take(2)) == 2
    gateway.close()
    fresh = sidecar.connect()
    # It does not wait for its welcome.
    fresh.say_hello("g", kinds=["online", "offline"], fresh=True)
    fresh.send("login", "a", {"conn": 3})
    fresh.send("logout", "b", {"conn": 2})
    (welcome,) = fresh.expect("welcome")
    assert welcome["next"] == first + 4
    fresh.sync()
    # Its cursor moved to now: it gets no record that came before.
    (record,) = fresh.until(len)
    assert (record["seq"], record["uid"]) == (first + 4, "a")
    records = watcher.take(5)
    assert [(one["kind"], one["reason"]) for one in records[2:]] == [
        *[("offline", "gateway_lost")] * 2,
        ("online", "login"),
    ]
    assert {one["conn"] for one in records[2:4]} == {1, 2}
    assert fresh.listed() == ({"a": ("g", first + 4, 3)}, first + 4)
    assert sidecar.metric("liveness_events_ignored_total", why="offline") == 1


def test_a_fresh_gateway_ends_no_session_of_another_gateway(sidecar: Sidecar) -> None:
    users = [f"of another {n}" for n in range(2_000)]
    other = sidecar.gateway("other")
    other.apply("login", users)
    sidecar.gateway("fresh", fresh=True)
    assert len(other.where(*users)) == 2_000


# --- what it finds on disk ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["liveness.db", "timers.db"])
def test_a_damaged_file_is_refused_by_one_line_and_left_byte_for_byte(
    make: Start, name: str
) -> None:
    sidecar = make()
    with closing(LogStore(sidecar.state)) as store:
        TimerStore(sidecar.state, log=store.log).close()
    damaged = b"not a database, but long enough to look like one" * 100
    (sidecar.state / name).write_bytes(damaged)
    code, line = sidecar.refused_start()
    assert code == 1
    assert line.startswith(str(sidecar.state / name))
    assert "cannot be read" in line
    assert (sidecar.state / name).read_bytes() == damaged
    assert not sidecar.socket.exists()


def test_damaged_timers_met_while_running_are_said_and_not_overwritten(
    start: Start,
) -> None:
    sidecar = start()
    link = sidecar.gateway("a")
    for n in range(2_000):  # enough that a start does not read every page
        link.send("after", f"key-{n}", 86_400)
    link.sync()
    sidecar.stop()
    whole = sidecar.timers.read_bytes()
    sidecar.start()
    disk.overwrite_root(sidecar.timers, "timers_key")
    damaged = sidecar.timers.read_bytes()
    link, watcher = sidecar.gateway("a"), sidecar.watcher()
    link.send("after", "another", 86_400)
    line = sidecar.line(
        "the timers' table cannot be written; nothing is dropped, it is tried again "
        "every second: make room or repair the disk"
    )
    assert line.items() >= {"level": "error", "path": str(sidecar.timers)}.items()
    assert "malformed" in line["error"]
    status, body = sidecar.get("/readyz")
    assert status == 503
    assert "the timers' table cannot be written" in body
    # Users are in another file.
    link.send("login", "user")
    assert watcher.take(1)[0]["uid"] == "user"
    sidecar.kill()
    assert sidecar.timers.read_bytes() == damaged
    # The runbook's remedy: a whole file in its place.
    sidecar.timers.write_bytes(whole)
    for suffix in ("-wal", "-shm"):
        (sidecar.state / f"timers.db{suffix}").unlink(missing_ok=True)
    link = sidecar.start().gateway("a")
    link.apply("after", "another", 86_400)


def test_who_was_shown_a_commit_that_is_lost_misses_nothing_that_comes_in_its_place(
    start: Start,
) -> None:
    sidecar = start()
    gateway, watcher = sidecar.gateway("gw"), sidecar.watcher()
    for users in (["a"], ["b", "c"]):
        gateway.apply("login", users)
    shown = watcher.take(3)[-1]["seq"]
    log = watcher.log
    sidecar.kill()
    wal = sidecar.state / "liveness.db-wal"
    damaged = bytearray(wal.read_bytes())
    damaged[-1] ^= 1
    wal.write_bytes(damaged)
    sidecar.start()
    assert sidecar.gateway("gw").log != log
    sidecar.gateway("other").send("login", ["d", "e", "f", "g"])
    reader = sidecar.watcher(after=shown, log=log)
    assert [it["uid"] for it in reader.take(4)] == [*"defg"]
    said = "the log lacks records that were shown, or is an older copy: it goes on with a new id"
    line = sidecar.line(said)
    assert (line["level"], line["lost"], line["seq"]) == ("warning", 2, 1)
    known = sidecar.watcher().log
    for end in (sidecar.kill, sidecar.stop):
        end()
        sidecar.start()
        assert sidecar.watcher().log == known


def test_a_stop_writes_no_clocks_into_the_state_of_another(make: Start) -> None:
    sidecar = make().start()
    sidecar.gateway("gw").sync()
    sidecar.state.rename(sidecar.folder / "aside")
    shutil.copytree(sidecar.folder / "aside", sidecar.state)
    theirs = sidecar.state / clocks_file.NAME
    theirs.write_bytes(b"theirs")
    assert sidecar.stop() == 0
    assert theirs.read_bytes() == b"theirs"
    said = sidecar.line(
        "the clocks file could not be written; at the next start every user gets a "
        "fresh timeout"
    )
    assert said["error"] == f"{sidecar.database} is not the log that is open"


def test_devices_are_counted_from_a_restart_on_and_no_more_from_another(
    start: Start,
) -> None:
    def ended(uid: str) -> dict[str, object]:
        link, watcher = sidecar.gateway("a"), sidecar.watcher()
        link.apply("logout", uid)
        watcher.sync()
        (record,) = watcher.records
        assert record["uid"] == uid
        return {key: record.get(key) for key in ("user", "devices")}

    sidecar = start()
    link = sidecar.gateway("a")
    link.apply("login", ["ada/a", "ada/b", "ada/c", "eve"])
    assert ended("eve") == {"user": None, "devices": None}
    sidecar.kill()
    sidecar.start(presence_device_separator="/")
    assert ended("ada/a") == {"user": "ada", "devices": 2}
    sidecar.stop()
    sidecar.start()
    assert ended("ada/b") == {"user": "ada", "devices": 1}
    sidecar.kill()
    sidecar.start(presence_device_separator="")
    assert ended("ada/c") == {"user": None, "devices": None}


def test_a_start_with_a_damaged_session_is_refused_and_changes_no_file(
    start: Start,
) -> None:
    sidecar = start()
    link = sidecar.gateway("a")
    link.send("login", "user")
    link.apply("after", "key", 86_400)
    sidecar.stop()
    with closing(sqlite3.connect(sidecar.database)) as db:
        db.execute("update online set conn = -1")
        db.commit()
    files = (sidecar.database, sidecar.timers, sidecar.state / clocks_file.NAME)
    before = [path.read_bytes() for path in files]
    code, said = sidecar.refused_start()
    assert code == 1
    assert "its table of open sessions: session 1 makes no sense" in said
    assert [path.read_bytes() for path in files] == before
