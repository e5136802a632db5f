"""Timers as a gateway has them: asked for, told when due, answered, and never lost.

Nothing here waits for time to pass: a test waits for the record that it is about. That
nothing came too early, or twice, is told by the records themselves and by the table.
"""

import json
import random
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count, pairwise
from time import perf_counter
from typing import Any, Final

import pytest

from liveness.core.records import TimerRecord
from tests import disk
from tests.e2e.client import Client, Record, packed
from tests.e2e.conftest import Start
from tests.e2e.sidecar import ROOT, SOON_S, Sidecar, eventually

# As short as it may be set: a run of a second, and a second before each attempt.
SHORT: Final[dict[str, Any]] = {"timers_run_timeout_s": 1, "timers_retries": "1,1"}
# Wall and monotonic time part by a little while a test runs.
ROUNDING_MS: Final = 20

ODD: Final = (
    "'\";--\\\n\r\t\x01\x7f\u2028é\u0301👩‍🚀{}[]null $.x %s :name ?1 \ufeff\U0010ffff"
)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One for the whole file, where runs and waits are short."""
    with Sidecar(tmp_path_factory.mktemp("s"), **SHORT) as running:
        yield running.start()


def fired(link: Client, key: str, attempt: int = 1) -> Record:
    """The record of this run, once it has come."""

    def found(records: list[Record]) -> list[Record]:
        wanted = {"kind": "timer", "key": key, "attempt": attempt}
        return [one for one in records if one.items() >= wanted.items()]

    return found(link.until(found))[0]


def row(sidecar: Sidecar, gateway: str, key: str) -> dict[str, Any]:
    """The newest timer of a key, as the table has it."""
    columns = (
        "state, attempts, message, next, payload, ext, seq, created, fired, changed"
    )
    query = (
        f"select {columns} from timers where gateway = ? and key = ? order by id desc"
    )
    return dict(
        zip(
            columns.split(", "), sidecar.timer_rows(query, gateway, key)[0], strict=True
        )
    )


def becomes(sidecar: Sidecar, gateway: str, key: str, state: str) -> dict[str, Any]:
    """Waits until a timer is in this state; its row."""
    eventually(
        lambda: row(sidecar, gateway, key)["state"] == state,
        lambda: str(row(sidecar, gateway, key)),
    )
    return row(sidecar, gateway, key)


# --- a life of a timer ----------------------------------------------------------------------


def test_it_fires_at_its_time_and_not_before(sidecar: Sidecar, name: str) -> None:
    link = sidecar.gateway(name)
    began = perf_counter()
    link.send("after", "remind", 0.4, {"payload": "call back", "ext": "order-7"})
    record = fired(link, "remind")
    assert perf_counter() - began >= 0.4
    assert record == {
        "seq": record["seq"],
        "kind": "timer",
        "gateway": name,
        "key": "remind",
        "payload": "call back",
        "ext": "order-7",
        "due": record["due"],
        "attempt": 1,
        "at": record["at"],
    }
    assert record["at"] >= record["due"]
    # The record is told before the table follows.
    kept = becomes(sidecar, name, "remind", "fired")
    assert kept["fired"] - kept["created"] >= 400
    link.send("done", "remind", "called", {"seq": record["seq"]})
    link.settle()
    assert row(sidecar, name, "remind").items() >= {
        "state": "done", "attempts": 1, "message": "called", "next": None,
        "seq": record["seq"],
    }.items()  # fmt: skip


def test_a_pong_means_that_it_is_on_disk(sidecar: Sidecar, name: str) -> None:
    link = sidecar.gateway(name)
    link.send("after", "k", 600)
    link.settle()
    assert row(sidecar, name, "k")["state"] == "pending"
    link.send("after", "k", 700)
    link.send("cancel", {"key": "k"})
    link.settle()
    states = sidecar.timer_rows(
        "select state from timers where gateway = ? order by id", name
    )
    assert states == [("replaced",), ("cancelled",)]


def test_an_ext_is_cancelled_as_a_whole(sidecar: Sidecar, name: str) -> None:
    link = sidecar.gateway(name)
    for number in range(50):
        link.send("after", f"k{number}", 0.3, {"ext": "order-7"})
    link.send("after", "other", 0.3, {"ext": "order-8"})
    link.send("cancel", {"ext": "order-7"})
    link.send("after", "k7", 0.3, {"ext": "order-7"})
    fired(link, "other")
    fired(link, "k7")
    assert {one["key"] for one in link.records} == {"other", "k7"}


def test_fail_has_it_come_again_until_the_ladder_ends(
    short: Sidecar, name: str
) -> None:
    link = short.gateway(name)
    link.send("after", "k", 0.1)
    for attempt in (1, 2, 3):
        record = fired(link, "k", attempt)
        link.send("fail", "k", f"no {attempt}", {"seq": record["seq"]})
    kept = becomes(short, name, "k", "failed")
    assert (kept["attempts"], kept["message"], kept["next"]) == (3, "no 3", None)
    stamps = [one["at"] for one in link.records]
    assert all(
        later - earlier >= 1_000 - ROUNDING_MS for earlier, later in pairwise(stamps)
    )


def test_final_is_the_end_at_once(short: Sidecar, name: str) -> None:
    link = short.gateway(name)
    link.send("after", "k", 0.1)
    fired(link, "k")
    link.send("fail", "k", "no such order", {"final": True})
    link.settle()
    assert row(short, name, "k").items() >= {
        "state": "failed", "attempts": 1, "message": "no such order", "next": None,
    }.items()  # fmt: skip


def test_no_answer_has_it_come_again_until_the_ladder_ends(
    short: Sidecar, name: str
) -> None:
    link = short.gateway(name)
    link.send("after", "k", 0.1)
    for attempt in (1, 2, 3):
        fired(link, "k", attempt)
    kept = becomes(short, name, "k", "failed")
    assert (kept["attempts"], kept["message"]) == (3, "no answer within 1 s")


def test_an_answer_to_a_run_of_one_that_was_replaced_changes_nothing(
    sidecar: Sidecar, name: str
) -> None:
    link = sidecar.gateway(name)
    link.send("after", "k", 0.1)
    former = fired(link, "k")
    link.records.clear()
    link.send("after", "k", 0.1, {"payload": "new"})
    assert fired(link, "k")["payload"] == "new"
    link.send("done", "k", "old", {"seq": former["seq"]})
    link.settle()
    assert row(sidecar, name, "k")["state"] == "fired"


def test_a_payload_of_4096_odd_bytes_comes_as_it_was_given(
    sidecar: Sidecar, name: str
) -> None:
    payload = (ODD * 100).encode()[:4_096].decode(errors="ignore")
    payload += "x" * (4_096 - len(payload.encode()))
    link = sidecar.gateway(name)
    key = "é" * 127 + "'"
    link.send("after", key, 0.1, {"payload": payload, "ext": key})
    record = fired(link, key)
    assert (record["payload"], record["ext"]) == (payload, key)
    link.send("after", "k", 0.1, {"payload": payload + "x"})
    assert link.refusal()["code"] == "bad-option"
    link.send("after", "k", 0.1, {"payload": "a\0b"})
    assert link.refusal()["code"] == "bad-option"
    link.settle()
    assert (
        sidecar.timer_rows("select 1 from timers where gateway = ? and key = 'k'", name)
        == []
    )


def test_welcome_tells_of_timers(short: Sidecar, name: str) -> None:
    welcome = short.connect().hello(name)
    assert "timers" in welcome["features"]
    assert welcome["run_timeout"] == 1


# --- whose timers ----------------------------------------------------------------------------


def test_two_gateways_with_the_same_key_have_a_timer_each(sidecar: Sidecar) -> None:
    one, two = sidecar.gateway("same-1"), sidecar.gateway("same-2")
    for link, payload in ((one, "first"), (two, "second")):
        link.send("after", "k", 0.1, {"payload": payload})
    assert fired(one, "k")["payload"] == "first"
    assert fired(two, "k")["payload"] == "second"
    one.send("done", "k")
    one.settle()
    assert row(sidecar, "same-1", "k")["state"] == "done"
    becomes(sidecar, "same-2", "k", "fired")
    assert len(one.records) == len(two.records) == 1


@pytest.mark.parametrize("kinds", [[], ["offline"]])
def test_a_gateway_gets_its_own_timers_whatever_kinds_it_wants(
    sidecar: Sidecar, name: str, kinds: list[str]
) -> None:
    link = sidecar.gateway(name, kinds=kinds)
    link.send("after", "k", 0.1)
    fired(link, "k")


def test_others_timers_come_with_scope_all_and_the_kind(
    sidecar: Sidecar, name: str
) -> None:
    link = sidecar.gateway(name)
    curious = sidecar.gateway(f"{name}-curious", scope="all", kinds=["timer"])
    users_only = sidecar.gateway(f"{name}-users", scope="all", kinds=["offline"])
    link.send("after", "k", 0.1)
    assert fired(curious, "k") == fired(link, "k")
    for other in (users_only, curious):
        other.settle()
        other.settle()
    assert not [one for one in users_only.records if one["kind"] == "timer"]


def test_a_watcher_sees_timers_and_may_not_ask_for_any(
    sidecar: Sidecar, name: str
) -> None:
    link, watcher = sidecar.gateway(name), sidecar.watcher(f"{name}-w")
    link.send("after", "k", 0.1)
    assert fired(watcher, "k") == fired(link, "k")
    for frame in (["after", "w", 1], ["cancel", {"key": "k"}], ["done", "k"]):
        watcher.send(*frame)
        refusal = watcher.refusal()
        assert (refusal["code"], refusal["fatal"]) == ("bad-frame", False)


def test_watch_shows_them_as_json(sidecar: Sidecar, name: str) -> None:
    link = sidecar.gateway(name)
    command = [sys.executable, "-m", "liveness", "watch", "--json", "--kind", "timer"]
    command += ["--socket", str(sidecar.socket), "--count", "1"]
    command += ["--after", str(link.next - 1)]
    link.send("after", "k", 0.1, {"payload": ODD})
    record = fired(link, "k")
    shown = subprocess.run(
        command,
        cwd=ROOT,
        env=sidecar.environment(),
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=True,
    )
    assert json.loads(shown.stdout) == record


def test_metrics_count_them(start: Start) -> None:
    sidecar = start(**SHORT)
    link = sidecar.gateway("g")

    def attempts(result: str) -> Callable[[float], float]:
        return lambda number: sidecar.metric_until(
            lambda value: value == number,
            "liveness_timer_attempts_total",
            result=result,
        )

    for key in ("done", "fail", "unanswered"):
        link.send("after", key, 0.1)
    link.send("after", "pending", 600)
    for key in ("done", "fail", "unanswered"):
        fired(link, key)
    link.send("done", "done")
    link.send("done", "done")
    link.send("fail", "fail", "no", {"final": True})
    for result in ("done", "fail", "unanswered", "late"):
        attempts(result)(1)
    for state, number in (("done", 1), ("failed", 1)):
        assert sidecar.metric("liveness_timers", state=state) == number
    # Nothing of the hour is left out, and each firing has been late by something.
    sidecar.metric_until(lambda value: value == 2, "liveness_timers_loaded")
    assert sidecar.metric("liveness_timer_lateness_seconds_count") >= 3


# --- a gateway that is away -------------------------------------------------------------------


def test_a_gateway_that_is_away_gets_it_when_it_is_back(
    short: Sidecar, name: str
) -> None:
    link = short.gateway(name)
    link.send("after", "k", 0.1)
    link.settle()
    link.close()
    becomes(short, name, "k", "fired")
    # Other runs are begun and given up meanwhile; this one has nobody to answer it.
    other = short.gateway(f"{name}-other")
    other.send("after", "k", 0.1)
    fired(other, "k", attempt=2)
    assert row(short, name, "k")["attempts"] == 1
    link = short.gateway(name)
    record = fired(link, "k")
    link.send("done", "k", None, {"seq": record["seq"]})
    link.settle()
    assert row(short, name, "k")["state"] == "done"


# --- restarts ---------------------------------------------------------------------------------


def runs_of(sidecar: Sidecar) -> Counter[tuple[str, int]]:
    """How often each attempt of each key is in the log."""
    return Counter((one.key, one.attempt) for one in disk.runs(sidecar.database))


def test_what_was_ponged_fires_after_a_crash(start: Start) -> None:
    sidecar = start()
    link = sidecar.gateway("g")
    link.send("after", "k", 0.5, {"payload": "p"})
    link.send("after", "l", 0.5)
    link.send("cancel", {"key": "l"})
    link.settle()
    sidecar.kill()
    sidecar.start()
    link = sidecar.gateway("g")
    assert fired(link, "k")["payload"] == "p"
    assert runs_of(sidecar) == {("k", 1): 1}


@pytest.mark.parametrize("is_planned", [True, False], ids=["stop", "crash"])
def test_what_came_due_while_nothing_ran_comes_once_after_the_start(
    start: Start, is_planned: bool
) -> None:
    sidecar = start()
    link = sidecar.gateway("g")
    many = 1_500
    for number in range(many):
        # A start takes longer than that: the last ones come due in time, or before it.
        link.send("after", f"k{number}", 0.1 + number / many)
    link.settle()
    if is_planned:
        assert sidecar.stop() == 0
    else:
        sidecar.kill()
    before = runs_of(sidecar)
    assert len(before) < many, "all fired before the end; it tells nothing"
    sidecar.start()
    link = sidecar.gateway("g")
    link.until(lambda records: len({one["key"] for one in records}) == many)
    assert runs_of(sidecar) == {(f"k{number}", 1): 1 for number in range(many)}
    late_ms = [one.at - one.due for one in disk.runs(sidecar.database)]
    assert min(late_ms) >= -ROUNDING_MS
    # Whoever is told of a run may answer it, whichever process began it.
    for one in link.records:
        link.send("done", one["key"], None, {"seq": one["seq"]})
    link.settle()
    assert sidecar.timer_rows("select state, timers from states where timers > 0") == [
        ("done", many)
    ]


def test_a_run_goes_on_over_a_restart(start: Start) -> None:
    sidecar = start()
    link = sidecar.gateway("g")
    link.send("after", "k", 0.1)
    record = fired(link, "k")
    assert sidecar.stop() == 0
    sidecar.start()
    link = sidecar.gateway("g")
    link.send("done", "k", None, {"seq": record["seq"]})
    link.settle()
    assert row(sidecar, "g", "k")["state"] == "done"


class Told:
    """What a gateway has asked for, and what of it a pong covered."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = count(1)
        self.asked: set[str] = set()
        self.sure: set[str] = set()  # asked for, and ponged
        self.cancelled: set[str] = set()  # maybe
        self.surely_cancelled: set[str] = set()
        self.answered: set[int] = set()

    def talk(self, link: Client) -> None:
        """A lot of frames; now and then a pong is waited for."""
        frames = [self.ask(link) for _ in range(self.random.randrange(1, 40))]
        for key, is_cancel in frames:
            (self.cancelled if is_cancel else self.asked).add(key)
        link.settle()
        for key, is_cancel in frames:
            (self.surely_cancelled if is_cancel else self.sure).add(key)

    def ask(self, link: Client) -> tuple[str, bool]:
        if self.asked and self.random.random() < 0.3:
            key = self.random.choice(sorted(self.asked))
            link.send("cancel", {"key": key})
            self.cancelled.add(key)
            return key, True
        key = f"k{next(self.numbers)}"
        self.asked.add(key)
        link.send("after", key, self.random.choice((0.1, 0.2, 0.5, 1.5)))
        return key, False

    def answer(self, link: Client) -> None:
        """Every run that it has been told of."""
        for one in link.records:
            if one["seq"] not in self.answered:
                self.answered.add(one["seq"])
                if self.random.random() < 0.5:
                    link.send("done", one["key"], None, {"seq": one["seq"]})


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_loses_nothing_and_fires_nothing_twice(
    start: Start, seed: int
) -> None:
    sidecar = start(timers_run_timeout_s=1, timers_retries="1")
    told = Told(seed)
    for _ in range(4):
        link = sidecar.gateway("g")
        for _ in range(told.random.randrange(1, 30)):
            told.talk(link)
            told.answer(link)
        for _ in range(told.random.randrange(60)):  # what no pong will cover
            told.ask(link)
        sidecar.kill()
        sidecar.start()
    link = sidecar.gateway("g")

    def is_over() -> bool:
        link.settle()
        told.answer(link)
        return (
            sidecar.timer_rows("select 1 from timers where next is not null limit 1")
            == []
        )

    eventually(is_over, lambda: str(sidecar.timer_rows("select * from timers")))
    runs: dict[str, list[TimerRecord]] = {}
    for one in disk.runs(sidecar.database):
        runs.setdefault(one.key, []).append(one)
    assert told.sure - told.cancelled <= runs.keys(), "asked for, and did not come"
    rows = sidecar.timer_rows("select key, state, attempts, changed from timers")
    assert told.sure <= {key for key, *_ in rows} <= told.asked
    assert len({key for key, *_ in rows}) == len(rows)
    for key, state, attempts, changed in rows:
        begun = runs.get(key, [])
        assert [one.attempt for one in begun] == [*range(1, attempts + 1)], key
        assert state in ("done", "failed", "cancelled")
        if state == "cancelled":
            assert key in told.cancelled
            assert all(one.at <= changed + ROUNDING_MS for one in begun), key
        elif key in told.surely_cancelled:
            assert begun, "cancelled, and ponged, while it was pending"
    counted = Counter(state for _, state, *_ in rows)
    assert dict(sidecar.timer_rows("select * from states where timers > 0")) == counted


# --- more than the disk takes -----------------------------------------------------------------


def test_who_asks_faster_than_the_disk_takes_it_waits_and_nobody_else(
    start: Start,
) -> None:
    sidecar = start(timers_max_pending=1_000)
    many, few = sidecar.gateway("many"), sidecar.gateway("few")
    with closing(sqlite3.connect(sidecar.timers, isolation_level=None)) as other:
        other.execute("begin immediate")
        frames = [["after", f"k{number}", 86_400] for number in range(5_000)]
        asking = threading.Thread(target=many.send_bytes, args=[packed(*frames)])
        asking.start()
        few.send("login", "ada", {"timeout": 1})
        few.send("login", "bob", {"timeout": 60})
        (record,) = few.take(1)
        assert (record["uid"], record["reason"]) == ("ada", "silence")
        assert sidecar.metric("liveness_log_pending") < 2_000
        other.execute("rollback")
    asking.join()
    many.settle()
    assert sidecar.timer_rows("select count(*) from timers") == [(5_000,)]
