"""Each check can fail: a kept promise passes, and a run with one thing changed does not."""

import re
from collections.abc import Callable
from copy import deepcopy
from math import inf
from typing import Any, Final

import pytest

from liveness.lab.common.promises import SessionLog
from tests.helpers.tree import ROOT
from tests.promises.checker import PROMISES, broken_promises
from tests.promises.histories import (
    PLAN,
    decided_at,
    everywhere,
    gateway,
    late,
    moved,
    nowhere,
    reader,
    record,
    seq_of,
    silent,
)
from tests.promises.run_history import Delivered, History, Process, Sent, Unread


def test_the_promises_are_those_of_the_document() -> None:
    rows = (ROOT / "docs/concepts.md").read_text().split("## Promises\n")[1]
    listed = re.findall(r"^\| (\d+) \| (.+?) \|", rows.split("\n## ")[0], re.M)
    kept = [(str(number), promise.name) for number, promise in PROMISES.items()]
    assert listed == kept


def test_a_run_that_keeps_every_promise_passes(history: History) -> None:
    assert broken_promises(PLAN, history) == []
    kinds = [delivered.record["kind"] for delivered in reader(history).delivered]
    assert sorted(set(kinds)) == ["moved", "offline", "online", "timer"]


# --- what is changed ------------------------------------------------------------------


def unread(history: History, until: float, *, more: int) -> None:
    """A gateway leaves its answers unread from 10 s on, and lacks some at the end."""
    link = gateway(history)
    asked = len(link.pongs) + len(link.lists) + more
    history.unread.append(Unread(link, 10.0, until, asked))


def heard_just_before(history: History) -> None:
    link, at = gateway(history), decided_at(history, silent(history))
    login = next(it for it in link.sent if it.frame[1:2] == ["silent"])
    frame = ["keepalive", "silent", {"conn": login.frame[2]["conn"]}]
    link.sent.insert(link.sent.index(login) + 1, login._replace(at=at - 1, frame=frame))


def set_timeout(history: History, seconds: float) -> None:
    conn = record(history, silent(history))["conn"]
    history.conns[conn] = history.conns[conn]._replace(timeout=seconds)


def delivered_late(history: History) -> None:
    link, seq = gateway(history), silent(history)
    link.delivered = [
        Delivered(it.at + (0.1 if it.record["seq"] == seq else 0), it.record)
        for it in link.delivered
    ]


def late_after_a_restart(history: History) -> None:
    at = late(history, silent(history), 1)
    history.troubles.append((at - 3, at, "sidecar restarts"))


def ended_twice(history: History) -> None:
    again = dict(record(history, silent(history)))
    last = reader(history).delivered[-1].record
    again |= {"seq": last["seq"] + 1, "at": last["at"]}
    for link in history.links:
        link.delivered.append(Delivered(link.delivered[-1].at, again))


def another_on_one_link(history: History) -> None:
    link, seq = gateway(history), silent(history)
    link.delivered = [
        Delivered(at, it | {"reason": "logout"} if it["seq"] == seq else it)
        for at, it in link.delivered
    ]


def login_without_effect(history: History) -> None:
    link = gateway(history)
    at = link.sent[2].at
    conn = next(iter(history.conns.values()))
    history.conns[99] = conn._replace(conn=99, uid="lost", opened_at=at)
    login = link.sent[2]._replace(frame=["login", "lost", {"conn": 99, "age": 0.0}])
    link.sent.insert(2, login)


def listed_too_few(history: History) -> None:
    (seq, listed) = next(it for it in gateway(history).lists if it[1])
    gateway(history).lists.append((seq, listed[1:]))


def gap(history: History, first: int) -> None:
    """One is the last that its gateway gets."""
    told = {"kind": "gap", "first": first, "until": first + 1, "seq": first}
    link = gateway(history)
    link.delivered.append(Delivered(link.delivered[-1].at, told))


def gap_for_what_is_kept(history: History) -> None:
    gap(history, gateway(history).delivered.pop().record["seq"])


def log_that_cannot_be_read(history: History) -> None:
    link = reader(history)
    link.welcomed_at, link.sent, link.delivered = inf, [], []


def sessions_of_a_fresh_gateway(history: History) -> None:
    link = gateway(history)
    link.hello["fresh"], link.life, link.welcome["next"] = True, 1, 4


def pong_out_of_turn(history: History) -> None:
    at, number = gateway(history).pongs[0]
    gateway(history).pongs[0] = (at, number + 1_000)


def not_known_when_it_came_back(history: History) -> None:
    link = gateway(history)
    back = deepcopy(link)
    back.number, back.delivered, back.pongs, back.sent = 99, [], [], []
    history.links.insert(history.links.index(link) + 1, back)


def welcomed_after_a_record(history: History) -> None:
    gateway(history).welcomed_at = gateway(history).delivered[0].at + 0.001


def welcomed_after_a_login(history: History) -> None:
    link = gateway(history)
    link.sent.insert(1, link.sent[1]._replace(at=link.welcomed_at - 0.001))


def welcomed_below_what_was_seen(history: History) -> None:
    gateway(history).opened_at = 20.0


def crash_just_before(history: History) -> None:
    at = late(history, silent(history), 0)
    history.processes = [Process(0.0, ended_at=at - 1), Process(at - 0.9)]


def nobody_ran(history: History) -> None:
    at = decided_at(history, silent(history))
    history.pauses.append((at - 2.5, at - 0.5))


def hang(history: History, until: float) -> None:
    """The gateway hangs from shortly after the login of one who falls silent."""
    link = gateway(history)
    link.sent = [it for it in link.sent if not 1.2 < it.at < until + 0.5]
    history.hangs.append(("gw-0", 1.2, until))


def judged_as_a_hang_ended(history: History) -> None:
    late(history, silent(history), 0.5)
    hang(history, 4.3)


def blamed(history: History) -> None:
    everywhere(history, silent(history), reason="gateway_lost")


def lost_though_heard_again(history: History) -> None:
    """Its gateway hung until shortly before a user was due at 4 s, and wrote then."""
    blamed(history)
    hang(history, 3.8)
    gateway(history).sent.append(Sent(3.8, ["ack", 1]))


def lost_just_after_a_start(history: History) -> None:
    blamed(history)
    at = decided_at(history, silent(history))
    history.processes[-1].ended_at, history.processes[-1].is_planned = at - 0.5, True
    history.processes.append(Process(at - 0.5))


def gone(history: History) -> None:
    gateway(history).ended_at = 3.5


def kept_for_a_gateway_that_went(history: History) -> None:
    blamed(history)
    late(history, silent(history), 4)
    gone(history)


def without_logouts(history: History) -> None:
    link = gateway(history)
    link.sent = [it for it in link.sent if it.frame[0] != "logout"]


def moved_by_nobody(history: History) -> None:
    conn, link = moved(history)["conn"], gateway(history)
    link.sent = [
        it
        for it in link.sent
        if not (it.frame[0] == "login" and it.frame[2]["conn"] == conn)
    ]


def moved_to_an_older(history: History) -> None:
    conn = moved(history)["conn"]
    history.conns[conn] = history.conns[conn]._replace(opened_at=1.0)
    for link in history.links:
        for at, frame in link.sent:
            if frame[0] == "login" and frame[2]["conn"] == conn:
                frame[2]["age"] = at - 1.0


def older_reported_after_a_newer(history: History) -> None:
    it = moved(history)
    seq, conn, old = it["seq"], it["conn"], it["from_conn"]
    everywhere(history, seq, session=it["from_session"], conn=old, from_conn=conn)
    for link in history.links:
        for delivered in link.delivered:
            if delivered.record["seq"] == seq:
                delivered.record.pop("from_session", None)


def fired(history: History, seconds: float = 0.0, **changes: Any) -> None:
    """A timer fired that much later, or as another one."""
    seq = seq_of(history, key="kept")
    late(history, seq, seconds)
    everywhere(history, seq, **changes)


def fired_after_a_cancel(history: History) -> None:
    cancel = next(it for it in gateway(history).sent if it.frame[0] == "cancel")
    cancel.frame[1]["key"] = "kept"
    fired(history, 1)


def fired_though_replaced(history: History) -> None:
    link = gateway(history)
    place = [it.frame[:2] for it in link.sent].index(["after", "kept"])
    link.sent.insert(place + 1, Sent(link.sent[place].at, ["after", "kept", 100.0]))


def fires_again(history: History, attempt: int, seconds: float, **more: Any) -> None:
    """A timer that was done fires once more."""
    first = record(history, seq_of(history, key="kept"))
    last = reader(history).delivered[-1]
    again = first | {"seq": last.record["seq"] + 1, "attempt": attempt} | more
    again["at"] = first["at"] + round(seconds * 1000)
    for link in history.links:
        link.delivered.append(Delivered(last.at, again))


def run_that_was_passed_over(history: History) -> None:
    began = decided_at(history, seq_of(history, key="kept"))
    link = gateway(history)
    back = deepcopy(link)
    link.ended_at = began - 2.5
    back.opened_at, back.welcomed_at = began + 3, began + 3.1
    back.hello["fresh"] = True
    history.links.insert(history.links.index(link) + 1, back)
    fires_again(history, 2, 10)


def timer_slept_through(history: History) -> None:
    link = gateway(history)
    at = link.welcomed_at
    link.sent[1:1] = [Sent(at, ["after", "far", 1_000.0]), Sent(at, ["ping", 0])]
    link.pongs.insert(0, (at, 0))
    history.sleeps.append((at + 1, 990.0))


# By promise, with what is said.
BREACHES: Final[list[tuple[int, str, Callable[[History], object]]]] = [
    (0, "a fault of", lambda it: it.faults.append("a fault of the sidecar")),
    (0, "was refused", lambda it: gateway(it).errors.append({"code": "bad-frame"})),
    (0, "and was not answered", lambda it: unread(it, 20.0, more=1)),
    (0, "and was not ended", lambda it: unread(it, 44.0, more=0)),
    (0, "more than a hello before", welcomed_after_a_record),
    (0, "more than a hello before", welcomed_after_a_login),
    (0, "devices of", lambda it: everywhere(it, moved(it)["seq"], devices=2)),
    (1, "and its timeout is 5", lambda it: set_timeout(it, 5.0)),
    (1, "was in the socket at", heard_just_before),
    (2, "2.0", lambda it: set_timeout(it, 1.0)),
    (2, "was delivered at", delivered_late),
    (2, "late after a restart", late_after_a_restart),
    (3, "never ended", lambda it: nowhere(it, reader(it).delivered[-1].record["seq"])),
    (3, "", ended_twice),
    (4, "no link could read the log", log_that_cannot_be_read),
    (4, "the log has gaps", lambda it: nowhere(it, 2)),
    (4, "and the log has", another_on_one_link),
    (4, "and then at", lambda it: late(it, silent(it), 1)),
    (4, "had everything up to", lambda it: gateway(it).delivered.pop(0)),
    (4, "gw-0 got [", lambda it: gateway(it).delivered.pop(2)),
    (4, "at the end gw-0 lacks", lambda it: gateway(it).delivered.pop()),
    (4, "asked for what is above", lambda it: gateway(it).hello.update(after=10_000)),
    (4, "gw-0 is welcomed at", welcomed_below_what_was_seen),
    (4, "which hides nothing", lambda it: gap(it, 10_000)),
    (4, "after its last record", gap_for_what_is_kept),
    (4, "was listed", listed_too_few),
    (4, "known: False", not_known_when_it_came_back),
    (4, "known: True", lambda it: gateway(it).welcome.update(known=True)),
    (4, "is welcomed fresh", sessions_of_a_fresh_gateway),
    (4, "out of its turn", pong_out_of_turn),
    (4, "login of", login_without_effect),
    (4, "logout of", lambda it: late(it, seq_of(it, uid="polite", kind="offline"), 2)),
    (5, "and it ran for", nobody_ran),
    (5, "and a crash was at", crash_just_before),
    (5, "just after a start", lost_just_after_a_start),
    (5, "and its gateway hung from", lambda it: hang(it, 5.0)),
    (5, "and it was held until", judged_as_a_hang_ended),
    (5, "and its gateway was not there", gone),
    (5, "and its gateway was there", blamed),
    (5, "and its gateway was there", lost_though_heard_again),
    (5, "and it was last heard at", lambda it: late(it, silent(it), 5)),
    (5, "and its gateway went", kept_for_a_gateway_that_went),
    (6, "and no logout was sent", without_logouts),
    (6, "and no login was sent", moved_by_nobody),
    (6, "is newer than", moved_to_an_older),
    (6, "is newer than", older_reported_after_a_newer),
    (7, "is early", lambda it: fired(it, -0.5)),
    (7, "s late", lambda it: fired(it, 0.2)),
    (7, "or replaced", lambda it: fired(it, ext="another")),
    (7, "or replaced", fired_though_replaced),
    (7, "is after the cancel", fired_after_a_cancel),
    (7, "never fired", lambda it: fired(it, key="another")),
    (7, "never fired", timer_slept_through),
    (7, "fired as new", lambda it: fires_again(it, 1, 5)),
    (7, "follows attempt 1", lambda it: fires_again(it, 3, 5)),
    (7, "is after the done", lambda it: fires_again(it, 2, 5)),
    (7, "follows {", lambda it: fires_again(it, 2, 0.5)),
    (7, "had not failed", lambda it: fires_again(it, 2, 1.5)),
    (7, "other texts", lambda it: fires_again(it, 2, 5, payload="another")),
    (7, "and it was passed over", run_that_was_passed_over),
]


@pytest.mark.parametrize(("promise", "what", "change"), BREACHES)
def test_this_breach_is_reported(
    history: History, promise: int, what: str, change: Callable[[History], object]
) -> None:
    change(history)
    found = broken_promises(PLAN, history)
    assert [it for it in found if it.startswith(f"{promise}: ") and what in it], found


# --- as they come, without the whole history ------------------------------------------------


def online(seq: int, uid: Any, **more: Any) -> dict[str, Any]:
    return {"kind": "online", "seq": seq, "uid": uid, "session": seq, **more}


def test_sessions_that_end_once_pass() -> None:
    log = SessionLog()
    records = (
        online(1, "7"),
        online(2, 7, kind="moved", from_session=1),
        online(3, 7, kind="moved", session=2),
        online(4, 7, kind="offline", session=2),
    )
    assert [it for record in records for it in log.take(record)] == []
    assert log.open == {}


@pytest.mark.parametrize(
    ("promise", "last"),
    [
        (3, online(2, "ann")),
        (3, online(2, "ann", kind="moved", from_session=9)),
        (3, online(2, "ann", kind="offline", session=9)),
        (3, online(2, "bob", kind="offline", session=1)),
        (6, online(2, "ann", kind="moved", session=9)),
    ],
)
def test_a_session_that_is_not_open_and_ends_is_reported(
    promise: int, last: dict[str, Any]
) -> None:
    log = SessionLog()
    assert log.take(online(1, "ann")) == []
    assert [it.promise for it in log.take(last)] == [promise]


def test_an_end_under_another_name_is_reported() -> None:
    log = SessionLog()
    log.take(online(1, 7))
    (breach,) = log.take(online(2, "7", kind="offline", session=1))
    assert breach.promise == 3
