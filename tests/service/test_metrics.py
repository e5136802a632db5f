"""The numbers as a scraper gets them: names, labels, and how many series."""

from dataclasses import astuple, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from liveness.metrics.collector import MOST_GATEWAYS, Collector
from liveness.metrics.counts import LATENESS_STAGES, Counts
from liveness.metrics.families import Histogram, zeros
from liveness.metrics.now import (
    CLUSTER_CALLS,
    CLUSTER_ERRORS,
    CLUSTER_QUESTIONS,
    DELIVERY_S,
    PARTITION_MODES,
    ClusterNow,
    GatewayNow,
    Now,
    OutletNow,
)

CLUSTER = ClusterNow(
    host="a",
    state="following",
    since=1_795_168_800_000,
    detail="",
    is_up=True,
    lag_records=3,
    lag_s=0.25,
    partitions={**zeros(PARTITION_MODES), "following": 16},
    lease_age_s=1.5,
    lease_s=30.0,
    users=70,
    calls={
        **zeros(CLUSTER_CALLS),
        **zeros([("beat", "ok"), ("look", "ok")]),
        ("apply", "ok"): 90,
    },
    errors={**zeros(CLUSTER_ERRORS), "timeout": 2},
    audit_mismatches=0,
    fences=5,
    sessions_reaped=60,
    questions={**zeros(CLUSTER_QUESTIONS), "answered": 8},
)
OUTLET = OutletNow(
    outlet="webhooks.mail",
    state="retrying",
    since=1_795_168_800_000,
    detail="the receiver answered 503",
    lag_records=11,
    lag_s=0.1234,
    sent=12,
    retries=13,
    dead=14,
    dead_kept=15,
    dead_deleted=16,
    missed=16,
    damped=17,
    settling_overflows=18,
    settling=19,
    latency=Histogram(DELIVERY_S),
)
NOW = Now(
    events={"login": 3, "logout": 0},
    ignored={"older": 1},
    began_unused={"future": 6},
    distinct_users=1,
    users=2,
    opened={"login": 2},
    ended={"silence": 1},
    moved=4,
    early=0,
    hand_lag_s=0.002,
    unattended_s=1.5,
    held={"mute": 1},
    storms=8,
    links={"gateway": 1, "watcher": 0},
    unread={"memory": 10, "disk": 20},
    unfinished_bytes=30,
    gateways=[],
    log_seq=9,
    log_pending=0,
    write_failures={"log": 7, "timers": 0},
    log_bytes=4_096,
    log_damaged=9,
    streams={"feed": 2, "live": 1, "users": 0},
    timers={"pending": 5},
    timers_loaded=3,
    timer_attempts={"late": 6},
    is_ready=True,
    counts=Counts(),
    build={"version": "1.2.3", "wheel": "reference"},
    cluster=CLUSTER,
    outlets=[OUTLET],
)


def scraped(counts: Counts, now: Now = NOW) -> dict[str, Metric]:
    """The families by name, as text and back."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(lambda: replace(now, counts=counts)))
    text = generate_latest(registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def by_label(family: Metric) -> dict[str, float]:
    return {next(iter(s.labels.values())): s.value for s in family.samples}


def gateway(name: str, **values: Any) -> GatewayNow:
    usual = {"users": 10, "unacked": 0, "timeout_s": 30.0, "interval_s": None}
    return GatewayNow(name=name, mutes=0, **{**usual, **values})


def gateways(number: int) -> list[GatewayNow]:
    return [gateway(f"g{n}", unacked=n, timeout_s=30.0 + n) for n in range(number)]


def series(families: dict[str, Metric]) -> set[tuple[str, frozenset[Any]]]:
    return {
        (sample.name, frozenset(sample.labels.items()))
        for family in families.values()
        for sample in family.samples
    }


def test_the_series_are_the_same_before_and_after_anything_happened() -> None:
    counts = Counts()
    before = series(scraped(counts))
    counts.commits.observe(0.1)
    for stage in LATENESS_STAGES:
        counts.lateness[stage].observe(1e9)
    counts.timer_lateness.observe(1e9)
    counts.refused["bad-uid"] += 5
    counts.notices_sent = counts.notices_acked = 10**9
    busy = replace(NOW, users=10**6, moved=10**6)
    assert series(scraped(counts, busy)) == before


def test_each_count_is_shown_under_its_label() -> None:
    families = scraped(Counts())
    assert by_label(families["liveness_events"]) == {"login": 3, "logout": 0}
    assert by_label(families["liveness_users_held"]) == {"mute": 1}
    assert by_label(families["liveness_links"]) == {"gateway": 1, "watcher": 0}
    assert by_label(families["liveness_timers"]) == {"pending": 5}
    assert by_label(families["liveness_timer_attempts"]) == {"late": 6}
    calls = families["liveness_cluster_calls"].samples
    (applied,) = (sample for sample in calls if sample.value)
    assert applied.labels == {"function": "apply", "answer": "ok"}
    (storms,) = families["liveness_storms"].samples
    assert (storms.name, storms.value) == ("liveness_storms_total", 8)
    (info,) = families["liveness_build_info"].samples
    assert info.labels == {"version": "1.2.3", "wheel": "reference"}


def test_every_number_of_an_outlet_is_shown_once() -> None:
    families = scraped(Counts())
    own = [
        sample.value
        for name, family in families.items()
        if name.startswith("liveness_outlet_") and family.type in ("gauge", "counter")
        for sample in family.samples
        if name != "liveness_outlet_state"
    ]
    expected = [
        it for it in astuple(OUTLET) if isinstance(it, int | float) and it < 1e9
    ]
    assert sorted(own) == sorted(expected)


def test_the_first_64_gateways_have_names_and_the_others_share_one() -> None:
    for number in (MOST_GATEWAYS, MOST_GATEWAYS + 1, MOST_GATEWAYS + 10):
        families = scraped(Counts(), replace(NOW, gateways=gateways(number)))
        users = by_label(families["liveness_gateway_users"])
        named = {f"g{n}": 10.0 for n in range(MOST_GATEWAYS)}
        others = number - MOST_GATEWAYS
        assert users == named | ({"other": 10.0 * others} if others else {})
        unacked = by_label(families["liveness_link_unacked"])
        assert sum(unacked.values()) == sum(range(number))


def test_a_gateway_called_other_is_counted_with_the_others() -> None:
    crowd = [gateway("other", users=1), *gateways(MOST_GATEWAYS)]
    families = scraped(Counts(), replace(NOW, gateways=crowd))
    users = by_label(families["liveness_gateway_users"])
    assert (len(users), users["other"]) == (MOST_GATEWAYS, 11)


def test_a_histogram_counts_at_or_below_each_bound_and_ends_with_all() -> None:
    histogram = Histogram((0.1, 1, 10))
    for seconds in (0.0, 0.1, 0.10001, 1, 9.5, 10.5, 1e9):
        histogram.observe(seconds)
    assert histogram.cumulative() == [("0.1", 2), ("1", 4), ("10", 5), ("+Inf", 7)]
    assert histogram.sum == pytest.approx(0.1 + 0.10001 + 1 + 9.5 + 10.5 + 1e9)
