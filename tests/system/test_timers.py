"""Timers over the wire: which fire, for whom, and that a crash loses none.

That a timer does not fire is seen by one that is due after it. The scripted sidecar runs
most of these tests too (`tests/testing/test_scripted.py`).
"""

from collections import Counter
from itertools import count
from random import Random
from typing import Any, Final

import pytest

from liveness.core.records import TimerRecord
from tests.helpers import disk
from tests.helpers.wire import Record
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

# Wall and monotonic time part by a little while a test runs.
ROUNDING_MS: Final = 20
ODD: Final = (
    "'\";--\\\n\r\t\x01\x7f\u2028é\u0301👩‍🚀{}[]null $.x %s :name ?1 \ufeff\U0010ffff"
)


def runs(records: list[Record]) -> list[tuple[str, int]]:
    """Keys and attempts of the timers among these records."""
    return [(r["key"], r["attempt"]) for r in records if r["kind"] == "timer"]


def until_fired(link: Client, key: str) -> list[Record]:
    """Everything up to the record of this timer, forgotten here."""
    link.until(lambda records: key in dict(runs(records)))
    records, link.records = link.records, []
    return records


def test_a_timer_fires_once_for_its_gateway_with_all_that_it_was_given(
    sidecar: Sidecar, name: str
) -> None:
    link = sidecar.gateway(name, kinds=[])
    link.send("after", "tea", 0.1, {"payload": ODD, "ext": "pots"})
    link.send("after", "plain", 0.2)
    link.send("after", "last", 0.4)
    tea, plain, last = until_fired(link, "last")
    assert tea.pop("seq") < plain.pop("seq") < last["seq"]
    for record, due_s in ((tea, 0.1), (plain, 0.2)):
        assert record["due"] <= record.pop("at")
        assert record.pop("due") <= last["due"] - round((0.4 - due_s) * 1_000) + 1
    assert tea == {
        "kind": "timer", "gateway": name, "key": "tea", "attempt": 1,
        "payload": ODD, "ext": "pots",
    }  # fmt: skip
    assert plain == {"kind": "timer", "gateway": name, "key": "plain", "attempt": 1}


def test_a_cancelled_timer_never_fires_nor_does_one_of_a_cancelled_ext(
    sidecar: Sidecar, name: str
) -> None:
    link, other = sidecar.gateway(name), sidecar.gateway(f"{name}-other")
    other.apply("after", "theirs", 0.2, {"ext": "room"})
    for key, ext in (("one", None), ("two", "room"), ("three", "room")):
        link.send("after", key, 0.1, {"ext": ext} if ext else {})
    link.send("cancel", {"key": "one"})
    link.send("cancel", {"ext": "room"})
    link.send("cancel", {"key": "nobody's"})
    link.send("after", "three", 0.2, {"ext": "room"})
    link.send("after", "last", 0.3)
    assert runs(until_fired(link, "last")) == [("three", 1), ("last", 1)]
    assert runs(until_fired(other, "theirs")) == [("theirs", 1)]


def test_the_same_key_again_replaces_and_fires_once_with_the_newer_payload(
    sidecar: Sidecar, name: str
) -> None:
    link = sidecar.gateway(name)
    link.send("after", "key", 0.1, {"payload": "old"})
    link.send("after", "key", 0.2, {"payload": "new"})
    link.send("after", "last", 0.3)
    first, last = until_fired(link, "last")
    assert (first["key"], first["payload"], last["key"]) == ("key", "new", "last")


def test_timers_of_others_come_only_with_scope_all_and_their_kind(
    sidecar: Sidecar, name: str
) -> None:
    asked: dict[str, dict[str, Any]] = {
        "everything": {"role": "watcher", "scope": "all"},
        "sessions": {"role": "watcher", "scope": "all", "kinds": ["online"]},
        "gateway": {"scope": "all", "kinds": ["timer"]},
        "own": {"kinds": ["timer"]},
    }
    links = {}
    for one, options in asked.items():
        links[one] = sidecar.connect()
        links[one].hello(f"{name}-{one}", **options)
    link = sidecar.gateway(name)
    link.send("after", "mine", 0.1)
    until_fired(link, "mine")
    seen = {}
    for one, reader in links.items():
        reader.sync()
        reader.sync()
        seen[one] = runs([r for r in reader.records if r["gateway"] == name])
    mine = [("mine", 1)]
    assert seen == {"everything": mine, "sessions": [], "gateway": mine, "own": []}


def test_a_run_that_was_not_acknowledged_comes_again_after_a_reconnect(
    sidecar: Sidecar, name: str
) -> None:
    link = sidecar.gateway(name)
    link.send("after", "key", 0.1)
    first = until_fired(link, "key")
    link.close()
    link = sidecar.gateway(name)
    assert until_fired(link, "key") == first
    link.send("ack", first[-1]["seq"])
    link.apply("done", "key", "well", {"seq": first[-1]["seq"]})
    link.close()
    link = sidecar.gateway(name)
    link.send("after", "last", 0.1)
    assert runs(until_fired(link, "last")) == [("last", 1)]


def test_a_timer_due_while_its_gateway_was_away_comes_when_it_is_back_fresh(
    sidecar: Sidecar, name: str
) -> None:
    link = sidecar.gateway(name)
    link.send("login", "user")
    link.send("after", "told", 0.1)
    until_fired(link, "told")
    link.send("after", "away", 0.1)
    link.send("after", "cancelled", 0.1)
    link.apply("cancel", {"key": "cancelled"})
    link.close()
    watcher = sidecar.connect()
    watcher.hello(f"{name}-sees", role="watcher", after=0, scope="all")

    def of_away(records: list[Record]) -> list[Record]:
        mine = {"kind": "timer", "gateway": name, "key": "away"}
        return [it for it in records if it.items() >= mine.items()]

    (away,) = of_away(watcher.until(of_away))
    link = sidecar.gateway(name, fresh=True)
    link.send("after", "last", 0.2)
    records = until_fired(link, "last")
    # What its former process was told is left to that run's time; and nothing of users.
    assert [(it["key"], it["attempt"]) for it in records] == [("away", 1), ("last", 1)]
    assert abs(records[0]["due"] - away["due"]) <= 1
    assert records[0]["seq"] > away["seq"]


@pytest.mark.parametrize(
    "frame",
    [["after", "key", 0.1], ["cancel", {"key": "k"}], ["done", "k"], ["fail", "k", ""]],
    ids=lambda frame: str(frame[0]),
)
def test_a_watcher_has_no_timers(sidecar: Sidecar, name: str, frame: list[Any]) -> None:
    link = sidecar.connect()
    link.hello(name, role="watcher")
    link.send(*frame)
    assert link.refusal()["code"] == "bad-frame"
    link.sync()


def test_timers_outlast_a_crash_and_those_due_meanwhile_fire_once(
    start: Start,
) -> None:
    sidecar = start()
    link = sidecar.gateway("keeper")
    link.send("after", "soon", 0.1)
    link.send("after", "gone", 0.1)
    link.send("after", "later", 0.5)
    link.apply("cancel", {"key": "gone"})
    sidecar.kill()
    sidecar.start()
    link = sidecar.gateway("keeper")
    assert runs(until_fired(link, "later")) == [("soon", 1), ("later", 1)]


# --- killed at any moment -----------------------------------------------------------------


class Orders:
    """The requests of a gateway; a pong covered the `sure` ones."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.numbers = count(1)
        self.asked: set[str] = set()
        self.sure: set[str] = set()
        self.cancelled: set[str] = set()
        self.surely_cancelled: set[str] = set()
        self.answered: set[int] = set()
        self.unsure: list[tuple[str, bool]] = []  # no pong yet: key, is a cancel

    def give(self, link: Client) -> None:
        """Sends some orders, and waits for a pong."""
        for _ in range(self.random.randrange(1, 40)):
            self.give_one(link)
        link.sync()
        for key, is_cancel in self.unsure:
            (self.surely_cancelled if is_cancel else self.sure).add(key)
        self.unsure.clear()

    def give_one(self, link: Client) -> None:
        if self.asked and self.random.random() < 0.3:
            key = self.random.choice(sorted(self.asked))
            self.cancelled.add(key)
            self.unsure.append((key, True))
            link.send("cancel", {"key": key})
        else:
            key = f"k{next(self.numbers)}"
            self.asked.add(key)
            self.unsure.append((key, False))
            link.send("after", key, self.random.choice((0.1, 0.2, 0.5, 1.5)))

    def answer(self, link: Client) -> None:
        """Answers half of the attempts that have come."""
        for record in link.records:
            if record["seq"] not in self.answered:
                self.answered.add(record["seq"])
                if self.random.random() < 0.5:
                    link.send("done", record["key"], None, {"seq": record["seq"]})


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_loses_nothing_and_fires_nothing_twice(
    start: Start, seed: int
) -> None:
    sidecar = start(timers_run_timeout_s=1, timers_retries="1")
    orders = Orders(seed)
    for _ in range(4):
        link = sidecar.gateway("g")
        orders.unsure.clear()  # a crash may have lost them
        for _ in range(orders.random.randrange(1, 30)):
            orders.give(link)
            orders.answer(link)
        for _ in range(orders.random.randrange(60)):
            orders.give_one(link)
        sidecar.kill()
        sidecar.start()
    link = sidecar.gateway("g")

    def are_over() -> bool:
        link.sync()
        orders.answer(link)
        live = "select 1 from timers where next is not null limit 1"
        return sidecar.timer_rows(live) == []

    eventually(are_over, lambda: str(sidecar.timer_rows("select * from timers")))
    attempts: dict[str, list[TimerRecord]] = {}
    for record in disk.runs(sidecar.database):
        attempts.setdefault(record.key, []).append(record)
    assert orders.sure - orders.cancelled <= attempts.keys()
    rows = sidecar.timer_rows("select key, state, attempts, changed from timers")
    assert orders.sure <= {key for key, *_ in rows} <= orders.asked
    assert len({key for key, *_ in rows}) == len(rows)
    for key, state, made, changed in rows:
        begun = attempts.get(key, [])
        assert [record.attempt for record in begun] == [*range(1, made + 1)], key
        assert state in ("done", "failed", "cancelled")
        if state == "cancelled":
            assert key in orders.cancelled
            assert all(it.at <= changed + ROUNDING_MS for it in begun), key
        elif key in orders.surely_cancelled:
            assert begun, "cancelled, and ponged, while it was pending"
    counted = Counter(state for _, state, *_ in rows)
    assert dict(sidecar.timer_rows("select * from states where timers > 0")) == counted
