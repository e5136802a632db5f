"""The checks of what outlets owe: a kept promise passes, and each kind of breach is reported."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from liveness.config.outlet_settings import WebhookSettings
from tests.promises.checker import broken_promises
from tests.promises.histories import quiet_plan
from tests.promises.run_history import (
    ClusterOutbound,
    Delivered,
    History,
    Letter,
    Outbound,
    Process,
)
from tests.service.outlets.webhooks.receiver import SECRET_FILE
from tests.simulation.plan import Fault, Visit
from tests.simulation.receivers import FIRST_PORT, ReceiverPlan
from tests.simulation.redis_server import CLUSTER
from tests.simulation.run import run

RECEIVER: Final = ReceiverPlan(
    "to",
    WebhookSettings(
        url=f"http://127.0.0.1:{FIRST_PORT}/",
        secret_file=SECRET_FILE,
        kinds="online,offline,moved,timer",
        begin="oldest",
        timeout_s=1.0,
        waits_s=(3.0,),
        max_dead=100,
    ),
)
PLAN: Final = replace(
    quiet_plan(),
    receivers=(RECEIVER,),
    cluster=replace(CLUSTER, lease_s=30, linger_s=0.02),
)


@pytest.fixture(scope="module")
def kept() -> History:
    fails = Fault(0.5, "receiver fails", 0, 3.0)
    back = Visit(10.0, 0, "polite", 3.0, 0.5, True, None)
    return run(replace(PLAN, steps=(fails, *PLAN.steps, back)))


def test_a_run_that_keeps_them_passes(history: History) -> None:
    assert broken_promises(PLAN, history) == []
    cluster = history.cluster
    assert len(history.outbound["to"].requests) > 3
    assert cluster is not None
    assert len(cluster.events) > 3


def newest(to: Outbound, **changes: Any) -> None:
    """Change the last request."""
    to.requests[-1] = replace(to.requests[-1], **changes)


def saying(to: Outbound, was: bytes, becomes: bytes) -> None:
    newest(to, body=to.requests[-1].body.replace(was, becomes))


def of_other_terms(to: Outbound, **changes: Any) -> None:
    to.terms = replace(to.terms, **changes)


def reading(to: Outbound | ClusterOutbound, at: int, **changes: Any) -> None:
    to.readings[at] = to.readings[at]._replace(**changes)


def letter(to: Outbound, attempts: int) -> None:
    to.letters.append(Letter(to.requests[-1].events[-1]["data"], attempts, None))


def out_of_order(to: Outbound) -> None:
    first, second = to.requests[-2:]
    first.body, second.body = second.body, first.body


def too_early(to: Outbound) -> None:
    to.requests[1].at = to.requests[0].at + 1.0


def buried_alive(to: Outbound) -> None:
    # A receiver that fails may ask for waits that use up attempts.
    to.requests = [it for it in to.requests if it.is_accepted]
    letter(to, 1)


def without_lag(to: Outbound) -> None:
    to.readings[:] = [it._replace(lag_s=0.0) for it in to.readings]
    to.requests[2].at += 8.0


def more_dead_than_kept(to: Outbound) -> None:
    letter(to, 2)
    of_other_terms(to, max_dead=0)


def missing_though_kept(to: Outbound) -> None:
    (event,) = to.requests[-1].events
    seq, at = event["data"]["seq"], event["data"]["at"]
    gap = {"kind": "gap", "seq": seq, "at": at, "first": seq, "until": seq + 1}
    newest(to, body=json.dumps([event | {"data": gap}]).encode())


OF_WEBHOOKS: Final[list[tuple[str, Callable[[Outbound], object]]]] = [
    ("is not signed", lambda to: newest(to, is_signed=False)),
    ("which no clock showed", lambda to: newest(to, stamp=2**40)),
    ("came with another body", lambda to: newest(to, id=to.requests[0].id)),
    ("the shortest wait is 3.0 s", too_early),
    ("and the log has", lambda to: saying(to, b'"silence"', b'"logout"')),
    ("it was never sent", lambda to: newest(to, status=422)),
    ("behind", out_of_order),
    (
        "nothing was newer",
        lambda to: saying(to, b'"data"', b'"superseded":true,"data"'),
    ),
    ("dead after 1 of 2 attempts", buried_alive),
    ("its lag was", lambda to: reading(to, 4, lag_s=86_400.0)),
    ("s late", without_lag),
    ("events, of at most 1", lambda to: of_other_terms(to, batch=1)),
    ("dead letters, of at most 0", more_dead_than_kept),
    ("was reported missing", missing_though_kept),
    ("its latencies are", lambda to: reading(to, -1, latency_s=86_400.0)),
    ("in the end its lag was", lambda to: reading(to, -1, lag_records=1)),
    ("its user was back after", lambda to: of_other_terms(to, settle_s=100.0)),
]


@pytest.mark.parametrize(("reported", "change"), OF_WEBHOOKS)
def test_a_breach_by_a_webhook_is_reported(
    history: History, reported: str, change: Callable[[Outbound], object]
) -> None:
    change(history.outbound["to"])
    assert any(reported in it for it in broken_promises(PLAN, history))


def test_an_offline_is_missed_once_it_must_have_settled(history: History) -> None:
    to = history.outbound["to"]
    to.requests = [
        request
        for request in to.requests
        if (request.events[0]["data"]["kind"], "polite")
        != ("offline", request.events[0]["data"].get("uid"))
    ]
    to.terms = replace(to.terms, settle_s=1.0)
    found = broken_promises(PLAN, history)
    assert any("it was sent of polite" in it for it in found)


def test_a_short_absence_that_a_damped_watch_is_given_is_reported(
    history: History,
) -> None:
    for request in history.outbound["to"].requests:
        history.damped += [Delivered(request.at, it["data"]) for it in request.events]
    found = broken_promises(replace(PLAN, watch_settle_s=100.0), history)
    assert any("a watch with settle_s" in it for it in found)


def test_what_was_settled_is_not_sent_again_after_a_planned_stop(
    history: History,
) -> None:
    requests = history.outbound["to"].requests
    again = replace(next(it for it in requests if it.is_accepted), at=requests[-1].at)
    for it in requests:
        if it.id == again.id:
            it.status = 422
    again.process = 1
    requests.append(again)
    history.processes[0].ended_at = again.at
    history.processes[0].is_planned = True
    history.processes.append(Process(again.at))
    assert any("behind" in it for it in broken_promises(PLAN, history))


def online_twice(cluster: ClusterOutbound) -> None:
    cluster.events.insert(1, cluster.events[0])


def event(cluster: ClusterOutbound, **changes: Any) -> None:
    """Change the last event of a session that began."""
    at = max(n for n, it in enumerate(cluster.events) if it.since_s is not None)
    cluster.events[at] = cluster.events[at]._replace(**changes)


OF_A_CLUSTER: Final[list[tuple[str, Callable[[ClusterOutbound], object]]]] = [
    ("online, the log", lambda it: it.online.append("moving")),
    ("by its stream", lambda it: it.events.pop()),
    ("online of silent follows", online_twice),
    ("which is not in the log", lambda it: event(it, session=999)),
    ("in the end its lag", lambda it: reading(it, -1, lag_records=1)),
    ("its lag was", lambda it: reading(it, 3, lag_s=86_400.0)),
    ("further apart", lambda it: event(it, since_s=0.0)),
]


@pytest.mark.parametrize(("reported", "change"), OF_A_CLUSTER)
def test_a_breach_by_the_cluster_is_reported(
    history: History, reported: str, change: Callable[[ClusterOutbound], object]
) -> None:
    assert history.cluster is not None
    change(history.cluster)
    assert any(reported in it for it in broken_promises(PLAN, history))
