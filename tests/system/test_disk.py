"""A stop while the disk takes nothing, and others who open the database.

What the sidecar does while the disk is full: `tests/service/storage/test_log_writer.py`,
`tests/service/links/test_links.py` and, with a real one, `tests/system/test_failing_disk.py`.
"""

import json
import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

STOP_S = 5.0
# A file may grow no further than this: less than the database has already.
FULL_BYTES = 4_096
LONG = "x" * 200


def allow_file_bytes(sidecar: Sidecar, most: int | None) -> None:
    _, hard = resource.prlimit(sidecar.pid, resource.RLIMIT_FSIZE)
    limits = (hard if most is None else most, hard)
    resource.prlimit(sidecar.pid, resource.RLIMIT_FSIZE, limits)


@contextmanager
def disk_full(sidecar: Sidecar) -> Iterator[None]:
    """No file of the sidecar may grow any more, as on a full disk, for a while."""
    allow_file_bytes(sidecar, FULL_BYTES)
    try:
        yield
    finally:
        allow_file_bytes(sidecar, None)


def crowd(prefix: str, size: int) -> list[str]:
    return [f"{prefix}{n}{LONG}" for n in range(size)]


def readiness_until(sidecar: Sidecar, wanted: int) -> list[str]:
    """Waits until `/readyz` answers this; why it is not ready."""
    answer = (0, "")

    def is_so() -> bool:
        nonlocal answer
        answer = sidecar.get("/readyz")
        return answer[0] == wanted

    eventually(is_so, lambda: str(answer))
    why: list[str] = json.loads(answer[1])["why"]
    return why


def uids(records: list[dict[str, Any]], kind: str) -> list[Any]:
    return [record["uid"] for record in records if record["kind"] == kind]


def test_a_stop_while_the_disk_is_full_says_bye_and_takes_no_longer_than_any(
    start: Start,
) -> None:
    sidecar = start(60)
    gateway = sidecar.gateway("g")
    gateway.apply("login", crowd("kept", 500))
    allow_file_bytes(sidecar, FULL_BYTES)
    gateway.send("login", crowd("lost", 2_000))
    gateway.send("ping", "after the login")
    (why,) = readiness_until(sidecar, 503)
    assert why.startswith("the log cannot be written: ")
    assert sidecar.get("/healthz")[0] == 200
    sidecar.signal(signal.SIGTERM)
    # No pong came: so the gateway sends it all again.
    assert gateway.expect("bye") == [{"reason": "the sidecar stops"}]
    assert sidecar.ended(STOP_S) == 0
    line = sidecar.line(
        "stopped before the log could be written; gateways send again what no pong "
        "covered"
    )
    assert line["pending"] >= 2_000
    assert sidecar.start().line("ready")["users"] == 500


def test_a_stop_while_the_database_is_locked_takes_no_longer_nor_does_a_second_signal(
    start: Start,
) -> None:
    sidecar = start(60)
    gateway = sidecar.gateway("g")
    with closing(sqlite3.connect(sidecar.database, isolation_level=None)) as other:
        other.execute("begin immediate")
        gateway.send("login", "u")
        sidecar.metric_until(lambda pending: pending > 0, "liveness_log_pending")
        sidecar.signal(signal.SIGTERM)
        gateway.expect("bye")
        sidecar.signal(signal.SIGTERM)
        sidecar.line("stopping already")
        assert sidecar.ended(STOP_S) == 0
    assert sidecar.log() == []


def test_a_stop_keeps_the_clocks_whatever_was_asked_of_timers(start: Start) -> None:
    sidecar = start(60)
    gateway = sidecar.gateway("g")
    gateway.apply("login", "u")
    with closing(sqlite3.connect(sidecar.timers, isolation_level=None)) as other:
        other.execute("begin immediate")
        gateway.send("after", "k", 100)
        sidecar.metric_until(bool, "liveness_write_failures_total", what="timers")
        sidecar.signal(signal.SIGTERM)
        assert sidecar.ended(STOP_S) == 0
    sidecar.line(
        "stopped before the timer commands could be written; gateways send "
        "again what no pong covered"
    )
    assert sidecar.start().line("restored")["clocks"] == 1


def test_a_process_that_opens_and_closes_the_database_loses_it_no_commit(
    start: Start,
) -> None:
    sidecar = start()
    gateway = sidecar.gateway("g")
    gateway.apply("login", "before")
    # A list is read over a connection of its own.
    assert gateway.listed()[0].keys() == {"before"}
    with closing(sqlite3.connect(sidecar.database)) as other:
        assert other.execute("select count(*) from online").fetchall() == [(1,)]
    gateway.apply("login", "after")
    sidecar.kill()
    assert uids([record._asdict() for record in sidecar.log()], "online") == [
        "before",
        "after",
    ]
