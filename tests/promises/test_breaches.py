"""Breaches that take more than one change to a run: each is reported, with its promise."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from liveness.lab.common.promises import SessionLog
from tests.promises.checker import broken_promises
from tests.promises.histories import (
    PLAN,
    decided_at,
    everywhere,
    gateway,
    late,
    moved,
    reader,
    record,
    seq_of,
    silent,
)
from tests.promises.run_history import Delivered, History, Process, Sent, Unread


def read_in_time(history: History) -> None:
    link = gateway(history)
    asked = len(link.pongs) + len(link.lists) + 1
    history.unread.append(Unread(link, 30.0, 40.0, asked))


def read_too_late(history: History) -> None:
    link = gateway(history)
    asked = len(link.pongs) + len(link.lists)
    history.unread.append(Unread(link, 10.0, 44.0, asked))


def moved_by_nobody(history: History) -> None:
    conn, link = moved(history)["conn"], gateway(history)
    link.sent = [
        it
        for it in link.sent
        if not (it.frame[0] == "login" and it.frame[2]["conn"] == conn)
    ]


def older_reported_after_a_newer(history: History) -> None:
    it = moved(history)
    seq, conn, old = it["seq"], it["conn"], it["from_conn"]
    everywhere(history, seq, session=it["from_session"], conn=old, from_conn=conn)
    for link in history.links:
        for delivered in link.delivered:
            if delivered.record["seq"] == seq:
                delivered.record.pop("from_session", None)


def crash_just_before(history: History) -> None:
    at = late(history, silent(history), 0)
    history.processes = [Process(0.0, ended_at=at - 1), Process(at - 0.9)]


def hang(history: History, until: float) -> None:
    """The gateway hangs from shortly after the login of one who falls silent."""
    link = gateway(history)
    link.sent = [it for it in link.sent if not 1.2 < it.at < until + 0.5]
    history.hangs.append(("gw-0", 1.2, until))


def judged_in_a_hang(history: History) -> None:
    hang(history, 5.0)


def judged_as_a_hang_ended(history: History) -> None:
    late(history, silent(history), 0.5)
    hang(history, 4.3)


def lost_and_heard_again_at(history: History, at: float) -> None:
    """Its gateway hung until shortly before a user was due at 4 s, and wrote at a moment."""
    everywhere(history, silent(history), reason="gateway_lost")
    hang(history, 3.8)
    gateway(history).sent.append(Sent(at, ["ack", 1]))


def lost_though_heard_again(history: History) -> None:
    lost_and_heard_again_at(history, 3.8)


def put_off_beyond_the_hold(history: History) -> None:
    late(history, silent(history), 5)


def kept_for_a_gateway_that_went(history: History) -> None:
    everywhere(history, silent(history), reason="gateway_lost")
    late(history, silent(history), 4)
    gateway(history).ended_at = 3.5


def sessions_of_a_fresh_gateway(history: History) -> None:
    link = gateway(history)
    link.hello["fresh"], link.life, link.welcome["next"] = True, 1, 4


def pong_out_of_turn(history: History) -> None:
    at, number = gateway(history).pongs[0]
    gateway(history).pongs[0] = (at, number + 1_000)


def logout_that_took_no_effect(history: History) -> None:
    late(history, seq_of(history, uid="polite", kind="offline"), 2)


def decided_before_the_one_before_it(history: History) -> None:
    late(history, silent(history), 1)


def welcomed_below_what_was_seen(history: History) -> None:
    gateway(history).opened_at = 20.0


def one_was_left_out(history: History) -> None:
    del gateway(history).delivered[2]


def fired_after_a_cancel(history: History) -> None:
    link = gateway(history)
    cancel = next(it for it in link.sent if it.frame[0] == "cancel")
    cancel.frame[1]["key"] = "kept"
    late(history, seq_of(history, key="kept"), 1)


def had_been_acknowledged_already(history: History) -> None:
    gateway(history).hello["after"] = 10_000


def another_attempt(attempt: int, seconds: float) -> Callable[[History], None]:
    """A timer that was done fires once more."""

    def fires(history: History) -> None:
        first = record(history, seq_of(history, key="kept"))
        last = reader(history).delivered[-1]
        again = first | {
            "seq": last.record["seq"] + 1,
            "attempt": attempt,
            "at": first["at"] + round(seconds * 1000),
        }
        for link in history.links:
            link.delivered.append(Delivered(last.at, again))

    return fires


def run_that_was_passed_over(history: History) -> None:
    began = decided_at(history, seq_of(history, key="kept"))
    link = gateway(history)
    back = deepcopy(link)
    link.ended_at = began - 2.5
    back.opened_at, back.welcomed_at = began + 3, began + 3.1
    back.hello["fresh"] = True
    history.links.insert(history.links.index(link) + 1, back)
    another_attempt(2, 10)(history)


def timer_slept_through(history: History) -> None:
    link = gateway(history)
    at = link.welcomed_at
    link.sent[1:1] = [Sent(at, ["after", "far", 1_000.0]), Sent(at, ["ping", 0])]
    link.pongs.insert(0, (at, 0))
    history.sleeps.append((at + 1, 990.0))


def judged_before_its_own_timeout(history: History) -> None:
    set_timeout(history, 5.0)


def judged_after_its_own_timeout(history: History) -> None:
    set_timeout(history, 1.0)


def set_timeout(history: History, seconds: float) -> None:
    conn = record(history, silent(history))["conn"]
    history.conns[conn] = history.conns[conn]._replace(timeout=seconds)


def not_known_when_it_came_back(history: History) -> None:
    link = gateway(history)
    back = deepcopy(link)
    back.number, back.delivered, back.pongs, back.sent = 99, [], [], []
    history.links.insert(history.links.index(link) + 1, back)


def known_though_new(history: History) -> None:
    gateway(history).welcome["known"] = True


def welcomed_after_a_record(history: History) -> None:
    gateway(history).welcomed_at = gateway(history).delivered[0].at + 0.001


def welcomed_after_a_login(history: History) -> None:
    link = gateway(history)
    link.sent.insert(1, link.sent[1]._replace(at=link.welcomed_at - 0.001))


def fired_late(history: History) -> None:
    late(history, seq_of(history, key="kept"), 0.2)


def fired_with_another_ext(history: History) -> None:
    everywhere(history, seq_of(history, key="kept"), ext="another")


def tried_again_with_another_payload(history: History) -> None:
    another_attempt(2, 5)(history)
    everywhere(history, reader(history).delivered[-1].record["seq"], payload="another")


def late_after_a_restart(history: History) -> None:
    at = late(history, silent(history), 1)
    history.troubles.append((at - 3, at, "sidecar restarts"))


def lost_just_after_a_start(history: History) -> None:
    everywhere(history, silent(history), reason="gateway_lost")
    at = decided_at(history, silent(history))
    history.processes[-1].ended_at, history.processes[-1].is_planned = at - 0.5, True
    history.processes.append(Process(at - 0.5))


def fired_though_replaced(history: History) -> None:
    link = gateway(history)
    place = next(
        n for n, it in enumerate(link.sent) if it.frame[:2] == ["after", "kept"]
    )
    link.sent.insert(place + 1, Sent(link.sent[place].at, ["after", "kept", 100.0]))


@pytest.mark.parametrize(
    ("promise", "what", "change"),
    [
        (0, "and was not answered", read_in_time),
        (0, "and was not ended", read_too_late),
        (1, "and its timeout is 5", judged_before_its_own_timeout),
        (2, "2.0", judged_after_its_own_timeout),
        (2, "late after a restart", late_after_a_restart),
        (0, "more than a hello before", welcomed_after_a_record),
        (0, "more than a hello before", welcomed_after_a_login),
        (4, "known: False", not_known_when_it_came_back),
        (4, "known: True", known_though_new),
        (4, "is welcomed fresh", sessions_of_a_fresh_gateway),
        (4, "out of its turn", pong_out_of_turn),
        (4, "logout of", logout_that_took_no_effect),
        (4, "and then at", decided_before_the_one_before_it),
        (4, "gw-0 is welcomed at", welcomed_below_what_was_seen),
        (4, "gw-0 got [", one_was_left_out),
        (4, "asked for what is above", had_been_acknowledged_already),
        (5, "and a crash was at", crash_just_before),
        (5, "just after a start", lost_just_after_a_start),
        (5, "and its gateway hung from", judged_in_a_hang),
        (5, "and it was held until", judged_as_a_hang_ended),
        (5, "and its gateway was there", lost_though_heard_again),
        (5, "and it was last heard at", put_off_beyond_the_hold),
        (5, "and its gateway went", kept_for_a_gateway_that_went),
        (6, "and no login was sent", moved_by_nobody),
        (6, "is newer than", older_reported_after_a_newer),
        (7, "s late", fired_late),
        (7, "or replaced", fired_with_another_ext),
        (7, "other texts", tried_again_with_another_payload),
        (7, "fired as new", another_attempt(1, 5)),
        (7, "follows attempt 1", another_attempt(3, 5)),
        (7, "is after the done", another_attempt(2, 5)),
        (7, "is after the cancel", fired_after_a_cancel),
        (7, "follows {", another_attempt(2, 0.5)),
        (7, "had not failed", another_attempt(2, 1.5)),
        (7, "never fired", timer_slept_through),
        (7, "or replaced", fired_though_replaced),
        (7, "and it was passed over", run_that_was_passed_over),
    ],
)
def test_this_breach_is_reported(
    history: History, promise: int, what: str, change: Callable[[History], None]
) -> None:
    change(history)
    found = broken_promises(PLAN.terms, history)
    assert [it for it in found if it.startswith(f"{promise}: ") and what in it], found


# --- as they come, without the whole history ------------------------------------------------


def online(seq: int, uid: Any, **more: Any) -> dict[str, Any]:
    return {"kind": "online", "seq": seq, "uid": uid, "session": seq, **more}


def test_sessions_that_end_once_pass() -> None:
    log = SessionLog()
    older = {"kind": "moved", "seq": 3, "uid": 7, "session": 2}
    records = (
        online(1, "7"),
        online(2, 7, kind="moved", from_session=1),
        older,
        {"kind": "offline", "seq": 4, "uid": 7, "session": 2},
    )
    assert [it for record in records for it in log.take(record)] == []
    assert log.open == {}


@pytest.mark.parametrize(
    ("promise", "last"),
    [
        (3, online(2, "ann")),
        (3, online(2, "ann", kind="moved", from_session=9)),
        (3, {"kind": "offline", "seq": 2, "uid": "ann", "session": 9}),
        (3, {"kind": "offline", "seq": 2, "uid": "bob", "session": 1}),
        (6, {"kind": "moved", "seq": 2, "uid": "ann", "session": 9}),
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
    (breach,) = log.take({"kind": "offline", "seq": 2, "uid": "7", "session": 1})
    assert breach.promise == 3
