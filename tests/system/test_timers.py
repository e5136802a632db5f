"""Timers over the wire: which fire, for whom, and that a crash loses none.

That a timer does not fire is seen by one that is due after it. The scripted sidecar runs
most of these tests too (`tests/testing/test_conformance.py`).
"""

from typing import Final

from tests.helpers.wire import Record
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

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
