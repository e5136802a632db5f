"""A disk that takes nothing any more: said, waited for, and nothing is lost."""

import json
import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from time import perf_counter
from typing import Any

from tests.e2e.client import Client
from tests.e2e.conftest import Start
from tests.e2e.sidecar import SOON_S, Sidecar

STOP_S = 5.0
# A file may grow no further than this: less than the database has already.
FULL_BYTES = 4_096
LONG = "x" * 200


def fill_disk(sidecar: Sidecar) -> None:
    """No file of the sidecar may grow any more, as on a full disk."""
    _, most = resource.prlimit(sidecar.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(sidecar.pid, resource.RLIMIT_FSIZE, (FULL_BYTES, most))


@contextmanager
def disk_full(sidecar: Sidecar) -> Iterator[None]:
    """For a while."""
    fill_disk(sidecar)
    try:
        yield
    finally:
        _, most = resource.prlimit(sidecar.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(sidecar.pid, resource.RLIMIT_FSIZE, (most, most))


def crowd(prefix: str, size: int) -> list[str]:
    return [f"{prefix}{n}{LONG}" for n in range(size)]


def readiness(sidecar: Sidecar) -> tuple[int, list[str]]:
    status, body = sidecar.get("/readyz")
    why: list[str] = json.loads(body)["why"]
    return status, why


def readiness_until(sidecar: Sidecar, wanted: int) -> list[str]:
    until = perf_counter() + SOON_S
    while (answer := readiness(sidecar))[0] != wanted:
        assert perf_counter() < until, answer
    return answer[1]


def is_told_nothing(client: Client, within_s: float) -> bool:
    try:
        frame = client.receive(within_s)
    except TimeoutError:
        return True
    return frame is None


def log_in_unwritten(sidecar: Sidecar, gateway: Client, users: list[str]) -> None:
    """Logs users in that cannot be written; returns when that has been noticed."""
    gateway.send("login", users)
    gateway.send("ping", "after the login")
    readiness_until(sidecar, 503)


def uids(records: list[dict[str, Any]], kind: str) -> list[Any]:
    return [one["uid"] for one in records if one["kind"] == kind]


def test_a_full_disk_is_said_loses_nothing_and_heals_by_itself(start: Start) -> None:
    sidecar = start(2)
    gateway, watcher = sidecar.gateway("g"), sidecar.watcher()
    early = crowd("early", 1_000)
    gateway.send("login", early)
    gateway.settle()
    watcher.take(1_000)
    with disk_full(sidecar):
        late = crowd("late", 2_000)
        log_in_unwritten(sidecar, gateway, late)
        (why,) = readiness(sidecar)[1]
        assert why.startswith("the log cannot be written: ")
        line = sidecar.line(
            "the log cannot be written; nothing is dropped, it is tried "
            "again every second: make room or mend the disk"
        )
        assert line["level"] == "error"
        assert line["path"] == str(sidecar.database)
        assert sidecar.get("/healthz")[0] == 200
        # Liveness goes on: everyone falls silent, and that is decided meanwhile.
        sidecar.metric_until(
            lambda offlines: offlines == 3_000,
            "liveness_offline_total",
            reason="silence",
        )
        assert sidecar.metric("liveness_users_online") == 0
        assert sidecar.metric("liveness_log_pending") >= 5_000
        assert sidecar.metric("liveness_log_seq") == 1_000
        # Whoever asks is not told before it is on disk.
        gateway.send("where", [early[0]])
        assert is_told_nothing(gateway, 0.2)
        assert is_told_nothing(watcher, 0.2)
        assert [one.seq for one in sidecar.log()] == list(range(1, 1_001))
    readiness_until(sidecar, 200)
    assert gateway.expect("pong") == ["after the login"]
    assert gateway.expect("where") == [[]]
    records = watcher.take(5_000)
    assert [one["seq"] for one in records] == list(range(1_001, 6_001))
    assert uids(records, "online") == late
    assert sorted(uids(records, "offline")) == sorted(early + late)
    assert min(one["silence"] for one in records if one["kind"] == "offline") >= 2
    sidecar.line("the log is written again")
    assert sidecar.rows("select count(*) from online") == [(0,)]
    assert sidecar.metric("liveness_early_offline_total") == 0


def test_firing_and_reading_stop_at_their_bounds_and_go_on_after(start: Start) -> None:
    sidecar = start(1, limits_pause_firing=100, limits_pause_reading=1_000)
    gateway = sidecar.gateway("g")
    with disk_full(sidecar):
        log_in_unwritten(sidecar, gateway, crowd("u", 1_500))
        before = sidecar.metric("liveness_unattended_seconds_total")
        # No longer read, and nobody is judged: this time is nobody's silence.
        gateway.send("keepalive", "not read")
        sidecar.metric_until(
            lambda seconds: seconds > before + 1.2, "liveness_unattended_seconds_total"
        )
        assert sidecar.metric("liveness_events_total", event="keepalive") == 0
        assert sidecar.metric("liveness_users_online") == 1_500
        assert sidecar.metric("liveness_log_pending") == 1_500
        assert sidecar.metric("liveness_hand_lag_seconds") < 1
    assert gateway.expect("pong") == ["after the login"]
    records = gateway.take(1_501)
    assert {one["reason"] for one in records} == {"silence"}
    assert sidecar.metric("liveness_early_offline_total") == 0


def test_a_stop_while_the_disk_is_full_says_bye_and_takes_no_longer_than_any(
    start: Start,
) -> None:
    sidecar = start(60)
    gateway = sidecar.gateway("g")
    gateway.send("login", crowd("kept", 500))
    gateway.settle()
    fill_disk(sidecar)
    log_in_unwritten(sidecar, gateway, crowd("lost", 2_000))
    sidecar.signal(signal.SIGTERM)
    # No pong: the gateway sends again what none covered.
    assert gateway.expect("bye") == [{"reason": "the sidecar stops"}]
    assert sidecar.ended(STOP_S) == 0
    line = sidecar.line(
        "stopped before the log could be written; gateways send again what no pong "
        "covered"
    )
    assert line["pending"] >= 2_000
    assert sidecar.start().line("ready")["users"] == 500


def test_a_stop_while_another_process_holds_the_database_takes_no_longer_either(
    start: Start,
) -> None:
    sidecar = start(60)
    gateway = sidecar.gateway("g")
    with closing(sqlite3.connect(sidecar.database, isolation_level=None)) as other:
        other.execute("begin immediate")
        gateway.send("login", "u")
        sidecar.metric_until(lambda pending: pending > 0, "liveness_log_pending")
        sidecar.signal(signal.SIGTERM)
        assert sidecar.ended(STOP_S) == 0
    assert sidecar.log() == []


def test_a_stop_keeps_the_clocks_whatever_was_asked_of_timers(start: Start) -> None:
    sidecar = start(60)
    gateway = sidecar.gateway("g")
    gateway.send("login", "u")
    gateway.settle()
    with closing(sqlite3.connect(sidecar.timers, isolation_level=None)) as other:
        other.execute("begin immediate")
        gateway.send("after", "k", 100)
        sidecar.metric_until(bool, "liveness_write_failures_total", what="timers")
        sidecar.signal(signal.SIGTERM)
        assert sidecar.ended(STOP_S) == 0
    sidecar.line(
        "stopped before all that was asked of timers could be written; gateways send "
        "again what no pong covered"
    )
    assert sidecar.start().line("restored")["clocks"] == 1


def test_who_opens_the_database_beside_it_and_closes_it_takes_nothing_along(
    start: Start,
) -> None:
    sidecar = start()
    gateway = sidecar.gateway("g")
    gateway.send("login", "before")
    gateway.settle()
    # Read from disk, as by one who is far behind: over a connection of its own.
    assert gateway.listed()[0].keys() == {"before"}
    with closing(sqlite3.connect(sidecar.database)) as other:
        assert other.execute("select count(*) from online").fetchall() == [(1,)]
    gateway.send("login", "after")
    gateway.settle()
    sidecar.kill()
    assert uids([record._asdict() for record in sidecar.log()], "online") == [
        "before",
        "after",
    ]
