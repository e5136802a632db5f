"""The checker itself: a kept promise passes, and each kind of breach is reported."""

import re
from copy import deepcopy
from math import inf

from tests.helpers.tree import ROOT
from tests.promises.checker import PROMISES, broken_promises
from tests.promises.histories import (
    PLAN,
    decided_at,
    everywhere,
    gateway,
    moved,
    nowhere,
    reader,
    record,
    seq_of,
    silent,
)
from tests.promises.run_history import Delivered, History


def breaches(history: History) -> set[str]:
    """Which promises are reported as broken."""
    return {it.partition(":")[0] for it in broken_promises(PLAN.terms, history)}


def test_the_promises_are_those_of_the_document() -> None:
    rows = (ROOT / "docs/concepts.md").read_text().split("## Promises\n")[1]
    listed = re.findall(r"^\| (\d+) \| (.+?) \|", rows.split("\n## ")[0], re.M)
    kept = [(str(number), promise.name) for number, promise in PROMISES.items()]
    assert listed == kept


def test_a_run_that_keeps_every_promise_passes(history: History) -> None:
    assert broken_promises(PLAN.terms, history) == []
    kinds = [delivered.record["kind"] for delivered in reader(history).delivered]
    assert sorted(set(kinds)) == ["moved", "offline", "online", "timer"]


def test_an_early_offline_is_reported(history: History) -> None:
    seq = silent(history)
    everywhere(history, seq, at=record(history, seq)["at"] - 100, silence=2.9)
    assert breaches(history) == {"1", "2"}  # and not delivered in time


def test_devices_that_are_miscounted_are_reported(history: History) -> None:
    everywhere(history, seq_of(history, uid="moving", kind="moved"), devices=2)
    assert breaches(history) == {"0"}


def test_an_offline_of_one_who_was_heard_is_reported(history: History) -> None:
    link, at = gateway(history), decided_at(history, silent(history))
    login = next(it for it in link.sent if it.frame[1:2] == ["silent"])
    frame = ["keepalive", "silent", {"conn": login.frame[2]["conn"]}]
    link.sent.insert(link.sent.index(login) + 1, login._replace(at=at - 1, frame=frame))
    assert breaches(history) == {"1"}


def test_time_in_which_nobody_ran_is_not_counted_as_silence(history: History) -> None:
    at = decided_at(history, silent(history))
    history.pauses.append((at - 2.5, at - 0.5))
    assert breaches(history) == {"5"}


def test_a_late_offline_is_reported_and_late_delivery_too(history: History) -> None:
    seq = silent(history)
    late = deepcopy(history)
    everywhere(late, seq, at=record(history, seq)["at"] + 150)
    assert breaches(late) == {"2"}
    link = gateway(history)
    link.delivered = [
        Delivered(it.at + (0.1 if it.record["seq"] == seq else 0), it.record)
        for it in link.delivered
    ]
    assert breaches(history) == {"2"}


def test_an_end_that_is_missing_is_reported(history: History) -> None:
    nowhere(history, reader(history).delivered[-1].record["seq"])
    assert "3" in breaches(history)


def test_an_end_that_comes_twice_is_reported(history: History) -> None:
    again = dict(record(history, silent(history)))
    last = reader(history).delivered[-1].record
    again |= {"seq": last["seq"] + 1, "at": last["at"]}
    for link in history.links:
        if link.role == "watcher" or link.name == again["gateway"]:
            link.delivered.append(Delivered(link.delivered[-1].at, again))
    assert "3" in breaches(history)


def test_a_record_that_is_not_in_the_log_is_reported(history: History) -> None:
    link, seq = gateway(history), silent(history)
    link.delivered = [
        Delivered(at, it | {"reason": "logout"} if it["seq"] == seq else it)
        for at, it in link.delivered
    ]
    assert "4" in breaches(history)


def test_a_gap_in_the_log_is_reported(history: History) -> None:
    nowhere(history, 2)
    assert breaches(history) == {"4"}


def test_what_one_reader_did_not_get_is_reported(history: History) -> None:
    link = gateway(history)
    first, last = deepcopy(history), deepcopy(history)
    del gateway(first).delivered[0]
    del gateway(last).delivered[-1]
    assert breaches(first) == {"4"}
    assert breaches(last) == {"4", "2"}
    link.delivered[0], link.delivered[1] = link.delivered[1], link.delivered[0]
    assert "4" in breaches(history)


def test_what_a_pong_covered_and_the_log_lacks_is_reported(history: History) -> None:
    link = gateway(history)
    at = link.sent[2].at
    conn = next(iter(history.conns.values()))._replace(
        conn=99, uid="lost", opened_at=at
    )
    history.conns[99] = conn
    login = link.sent[2]._replace(frame=["login", "lost", {"conn": 99, "age": 0.0}])
    link.sent.insert(2, login)
    assert breaches(history) == {"4"}


def test_a_logout_that_nobody_sent_is_reported(history: History) -> None:
    link = gateway(history)
    link.sent = [it for it in link.sent if it.frame[0] != "logout"]
    assert "6" in breaches(history)


def test_an_older_connection_that_displaces_a_newer_one_is_reported(
    history: History,
) -> None:
    conn = moved(history)["conn"]
    history.conns[conn] = history.conns[conn]._replace(opened_at=1.0)
    for link in history.links:
        for at, frame in link.sent:
            if frame[0] == "login" and frame[2]["conn"] == conn:
                frame[2]["age"] = at - 1.0
    assert "6" in breaches(history)


def test_silence_of_a_gateway_that_was_not_there_is_reported(history: History) -> None:
    link = gateway(history)
    link.ended_at = 3.5
    assert "5" in breaches(history)


def test_a_gateway_that_was_there_and_is_blamed_is_reported(history: History) -> None:
    everywhere(history, silent(history), reason="gateway_lost")
    assert "5" in breaches(history)


def test_a_timer_that_is_early_or_was_cancelled_or_never_fires_is_reported(
    history: History,
) -> None:
    seq = seq_of(history, key="kept")
    early, cancelled = deepcopy(history), deepcopy(history)
    everywhere(early, seq, at=record(history, seq)["at"] - 500)
    assert "7" in breaches(early)
    early.sleeps.append((decided_at(early, seq) - 0.2, 0.6))
    assert "7" not in breaches(early)
    everywhere(cancelled, seq, key="cancelled", at=record(history, seq)["at"] + 4_500)
    assert "7" in breaches(cancelled)
    # As asked for, and a record about somebody else in its place.
    everywhere(history, seq, key="another")
    assert "7" in breaches(history)


def test_a_session_that_is_listed_wrongly_is_reported(history: History) -> None:
    (seq, listed) = next(it for it in gateway(history).lists if it[1])
    gateway(history).lists.append((seq, listed[1:]))
    assert breaches(history) == {"4"}


def test_a_gap_that_hides_nothing_or_what_is_still_kept_is_reported(
    history: History,
) -> None:
    link = gateway(history)
    gap = {"kind": "gap", "first": 10_000, "until": 10_001, "seq": 10_000}
    nothing = deepcopy(history)
    gateway(nothing).delivered.append(Delivered(link.delivered[-1].at, gap))
    assert breaches(nothing) == {"4"}
    last = link.delivered.pop()
    seq = last.record["seq"]
    gap = {"kind": "gap", "first": seq, "until": seq + 1, "seq": seq}
    link.delivered.append(Delivered(last.at, gap))
    assert "4" in breaches(history)


def test_a_gap_that_nobody_missed_is_reported_if_it_came_too_early(
    history: History,
) -> None:
    link = reader(history)
    first = link.delivered[0].record["seq"]
    gap = {"kind": "gap", "first": first, "until": first + 1, "seq": first}
    link.delivered[0] = Delivered(link.delivered[0].at, gap)
    assert "4" in breaches(history)


def test_a_log_that_nobody_could_read_is_reported(history: History) -> None:
    link = reader(history)
    link.welcomed_at, link.sent, link.delivered = inf, [], []
    assert broken_promises(PLAN.terms, history) == [
        "4: no link could read the log at the end"
    ]


def test_a_refusal_and_a_fault_of_the_sidecar_are_reported(history: History) -> None:
    gateway(history).errors.append({"code": "bad-frame"})
    history.faults.append("a fault of the sidecar")
    assert breaches(history) == {"0"}
    assert len(broken_promises(PLAN.terms, history)) == 2
