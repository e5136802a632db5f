"""The checks of what outlets owe: a kept promise passes, and each kind of breach is reported."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from liveness.config.outlet_settings import WebhookSettings
from tests.promises.checker import broken_promises
from tests.promises.delivery_history import ClusterOutbound, Letter, Outbound
from tests.promises.histories import quiet_plan
from tests.promises.run_history import Delivered, History, Process
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
    assert broken_promises(PLAN.terms, history) == []
    cluster = history.cluster
    assert len(history.outbound["to"].requests) > 3
    assert cluster is not None
    assert len(cluster.events) > 3


def _forged(to: Outbound) -> None:
    to.requests[-1].is_signed = False


def _stamped_late(to: Outbound) -> None:
    to.requests[-1].stamp += 100


def _of_another_body(to: Outbound) -> None:
    to.requests[0].body = to.requests[-1].body


def _too_early(to: Outbound) -> None:
    to.requests[1].at = to.requests[0].at + 1.0


def _changed(to: Outbound) -> None:
    body = to.requests[-1].body
    to.requests[-1].body = body.replace(b'"silence"', b'"logout"')


def _refused_for_good(to: Outbound) -> None:
    to.requests[-1].status = 422


def _out_of_order(to: Outbound) -> None:
    first, second = to.requests[-2:]
    first.body, second.body = second.body, first.body


def _superseded(to: Outbound) -> None:
    body = to.requests[-1].body
    to.requests[-1].body = body.replace(b'"data"', b'"superseded":true,"data"')


def _buried_alive(to: Outbound) -> None:
    # A receiver that fails may ask for waits that use up attempts.
    to.requests = [it for it in to.requests if it.is_accepted]
    record = to.requests[-1].events[-1]["data"]
    to.letters.append(Letter(record, 1, None))


def _a_lag_of_a_day(to: Outbound) -> None:
    to.readings[4] = to.readings[4]._replace(lag_s=86_400.0)


def _no_lag(to: Outbound) -> None:
    to.readings[:] = [it._replace(lag_s=0.0) for it in to.readings]
    to.requests[2].at += 8.0


def _not_settled(to: Outbound) -> None:
    to.terms = replace(to.terms, settle_s=100.0)


def _more_than_a_batch(to: Outbound) -> None:
    to.terms = replace(to.terms, batch=1)


def _more_dead_than_kept(to: Outbound) -> None:
    to.letters.append(Letter(to.requests[-1].events[-1]["data"], 2, None))
    to.terms = replace(to.terms, max_dead=0)


def _missing_though_kept(to: Outbound) -> None:
    (event,) = to.requests[-1].events
    seq, at = event["data"]["seq"], event["data"]["at"]
    gap = {"kind": "gap", "seq": seq, "at": at, "first": seq, "until": seq + 1}
    to.requests[-1].body = json.dumps([event | {"data": gap}]).encode()


def _slower_than_time(to: Outbound) -> None:
    to.readings[-1] = to.readings[-1]._replace(latency_s=86_400.0)


def _lag_in_the_end(to: Outbound) -> None:
    to.readings[-1] = to.readings[-1]._replace(lag_records=1)


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        (_forged, "is not signed"),
        (_stamped_late, "which no clock showed"),
        (_of_another_body, "came with another body"),
        (_too_early, "the shortest wait is 3.0 s"),
        (_changed, "and the log has"),
        (_refused_for_good, "it was never sent"),
        (_out_of_order, "behind"),
        (_superseded, "nothing was newer"),
        (_buried_alive, "dead after 1 of 2 attempts"),
        (_a_lag_of_a_day, "its lag was"),
        (_no_lag, "s late"),
        (_more_than_a_batch, "events, of at most 1"),
        (_more_dead_than_kept, "dead letters, of at most 0"),
        (_missing_though_kept, "was reported missing"),
        (_slower_than_time, "its latencies are"),
        (_lag_in_the_end, "in the end its lag was"),
        (_not_settled, "its user was back after"),
    ],
)
def test_a_breach_by_a_webhook_is_reported(
    history: History, wrong: Callable[[Outbound], None], reported: str
) -> None:
    wrong(history.outbound["to"])
    assert any(reported in it for it in broken_promises(PLAN.terms, history))


def test_an_offline_is_missed_once_it_must_have_settled(history: History) -> None:
    to = history.outbound["to"]
    to.requests = [
        request
        for request in to.requests
        if (request.events[0]["data"]["kind"], "polite")
        != ("offline", request.events[0]["data"].get("uid"))
    ]
    to.terms = replace(to.terms, settle_s=1.0)
    found = broken_promises(PLAN.terms, history)
    assert any("it was sent of polite" in it for it in found)


def test_a_short_absence_that_a_damped_watch_is_given_is_reported(
    history: History,
) -> None:
    for request in history.outbound["to"].requests:
        history.damped += [Delivered(request.at, it["data"]) for it in request.events]
    found = broken_promises(replace(PLAN.terms, watch_settle_s=100.0), history)
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
    assert any("behind" in it for it in broken_promises(PLAN.terms, history))


def _one_left_online(cluster: ClusterOutbound) -> None:
    cluster.online.append("moving")


def _an_end_is_missing(cluster: ClusterOutbound) -> None:
    del cluster.events[-1]


def _of_nobody(cluster: ClusterOutbound) -> None:
    cluster.events[-1] = cluster.events[-1]._replace(session=999)


def _online_twice(cluster: ClusterOutbound) -> None:
    cluster.events.insert(1, cluster.events[0])


def _behind_in_the_end(cluster: ClusterOutbound) -> None:
    cluster.readings[-1] = cluster.readings[-1]._replace(lag_records=1)


def _a_lag_of_the_cluster(cluster: ClusterOutbound) -> None:
    cluster.readings[3] = cluster.readings[3]._replace(lag_s=86_400.0)


def _began_by_another_clock(cluster: ClusterOutbound) -> None:
    at = max(n for n, it in enumerate(cluster.events) if it.since_s is not None)
    it = cluster.events[at]
    cluster.events[at] = it._replace(since_s=(it.since_s or 0.0) - 60.0)


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        (_one_left_online, "online, the log"),
        (_an_end_is_missing, "by its stream"),
        (_online_twice, "online of silent follows"),
        (_of_nobody, "which is not in the log"),
        (_behind_in_the_end, "in the end its lag"),
        (_a_lag_of_the_cluster, "its lag was"),
        (_began_by_another_clock, "further apart"),
    ],
)
def test_a_breach_by_the_cluster_is_reported(
    history: History, wrong: Callable[[ClusterOutbound], None], reported: str
) -> None:
    assert history.cluster is not None
    wrong(history.cluster)
    assert any(reported in it for it in broken_promises(PLAN.terms, history))
