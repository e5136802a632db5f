"""Records, restarts and timers over the wire: nothing is lost, and nothing comes early.

The scripted sidecar runs most of these tests too (`tests/testing/test_conformance.py`). What
needs no process: `tests/core/sessions/test_presence.py`, `tests/core/links/test_handshake.py`,
`tests/service/links/test_links.py`, `tests/service/storage`.
"""

from itertools import permutations
from time import CLOCK_MONOTONIC, clock_gettime, time_ns
from typing import Final

from tests.helpers.wire import Record
from tests.system.client import Client, Uid
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar


def seqs(records: list[Record]) -> list[int]:
    return [record["seq"] for record in records]


def come_and_go(link: Client, *uids: Uid) -> None:
    """One offline for each, on disk."""
    link.send("login", list(uids))
    link.apply("logout", list(uids))


def nothing_more(link: Client) -> bool:
    """Whether no record is left to be sent.

    The first pong comes once all records are on disk, the second once they were sent.
    """
    link.sync()
    link.sync()
    return not link.records


def test_what_was_not_acknowledged_comes_again_after_a_reconnect(
    sidecar: Sidecar,
) -> None:
    link = sidecar.gateway("again")
    come_and_go(link, "a", "b", "c", "d")
    first = link.take(4)
    assert nothing_more(link)
    link.close()
    link = sidecar.gateway("again")
    assert link.take(4) == first
    link.send("ack", first[2]["seq"])
    link.apply("ack", first[0]["seq"])  # never back
    link.close()
    link = sidecar.gateway("again")
    assert link.take(1) == first[3:]
    link.apply("ack", first[3]["seq"])
    link.close()
    assert nothing_more(sidecar.gateway("again"))


def test_a_hello_may_name_where_to_read_on(sidecar: Sidecar) -> None:
    link = sidecar.gateway("source")
    come_and_go(link, "p", "q")
    (first, second), log = link.take(2), link.log
    for after, of_log, told in (
        (0, None, [first, second]),
        (0, "another log", [first, second]),
        (first["seq"] - 1, log, [first, second]),
        (first["seq"], log, [second]),
        (second["seq"], log, []),
        (second["seq"] + 1, log, [first, second]),  # a log that has lost its end
        (2**62, log, [first, second]),
        (second["seq"], "another log", [first, second]),
    ):
        reader = sidecar.gateway(
            "source",
            role="watcher",
            scope="own",
            kinds=["offline"],
            ack=False,
            after=after,
            log=of_log,
        )
        assert (after, of_log, reader.take(len(told))) == (after, of_log, told)
        assert nothing_more(reader)


def test_a_new_name_begins_at_now_and_a_crash_right_after_welcome_does_not_lose_that(
    start: Start,
) -> None:
    sidecar = start()
    other = sidecar.gateway("other")
    come_and_go(other, "before")
    for role in ("gateway", "watcher"):
        assert sidecar.gateway("new", role=role, scope="all").next == 3
    sidecar.kill()
    sidecar.start()
    come_and_go(sidecar.gateway("other"), "after")
    as_watcher = sidecar.gateway("new", role="watcher", scope="all")
    assert seqs(as_watcher.take(2)) == [3, 4]
    as_gateway = sidecar.gateway("new", scope="all")
    assert seqs(as_gateway.take(1)) == [4]


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
    sidecar.kill()
    sidecar.start()
    watcher = sidecar.watcher()
    assert watcher.listed() == (before, seq) == (before, 7)
    assert watcher.next == 8
    assert watcher.log == a.log
    # A late logout of a connection before the crash still ends only its own session.
    a = sidecar.gateway("a")
    a.apply("logout", ["adopting", "v", "u"], {"conn": [76, 2, 1]})
    (offline,) = watcher.take(1)
    assert (offline["seq"], offline["uid"], offline["session"]) == (8, "u", 1)


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


def linked(sidecar: Sidecar, name: str) -> Client:
    clock = [clock_gettime(CLOCK_MONOTONIC), time_ns() / 1e9]
    link = sidecar.gateway(name, clock=clock, kinds=[])
    link.sync()
    return link


def test_of_connections_that_began_at_one_moment_the_login_read_later_wins(
    sidecar: Sidecar, name: str
) -> None:
    links = [linked(sidecar, f"{name}-{number}") for number in range(6)]
    began = clock_gettime(CLOCK_MONOTONIC)
    for number, (first, second) in enumerate(permutations(links, 2)):
        uid = f"{name}-u-{number}"
        for conn, link in enumerate((first, second)):
            link.apply("login", uid, {"conn": conn, "began": began})
        ((*_, conn),) = second.where(uid)
        assert conn == 1
