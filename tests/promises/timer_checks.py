"""7, timers: never early, once for each attempt, and never after a cancel."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import inf
from typing import Any, Final, NamedTuple

from tests.promises.run_evidence import LINK_S, RunEvidence
from tests.promises.run_history import STAMP_S, History, Record
from tests.promises.session_checks import PROMPT_S

# The shortest wait before a timer is tried again.
FIRST_RETRY_S: Final = 1.0

# A sleep of the host that is as short as this is not noticed.
NAP_S: Final = 0.25

# A timer may have been late by so much that the sidecar ran, and been cancelled before it
# fired.
LATE_TIMER_S: Final = 5.0

# So long after a link has ended its sidecar may write to it. None writes so long before it
# is opened.
AWAY_S: Final = 2.0

_ORDERS: Final = frozenset({"after", "cancel", "done", "fail"})
_NO_TEXTS: Final[Mapping[str, Any]] = {}


class _Order(NamedTuple):
    at: float
    covered_at: float
    frame: list[Any]
    read_by: float  # the sidecar reads it by then, or never


# By their frames' name.
_Orders = Mapping[str, list[_Order]]


def timers(run: RunEvidence) -> Iterator[str]:
    """A timer fires when it is due, once for each attempt, and not once cancelled."""
    history, runs = run.history, defaultdict[tuple[str, str], list[Record]](list)
    for record in run.log.values():
        if record["kind"] == "timer":
            runs[record["gateway"], record["key"]].append(record)
    orders = _orders(history)
    # Which orders a state that was put back has is not known.
    known_from = max((it.at for it in history.put_backs), default=-inf)
    for name in {**orders, **runs}:
        of, fired = orders[name], runs[name]
        if any(it.at < known_from for it in of["after"] + of["cancel"]):
            continue
        yield from _wrong_runs(of, fired, run)
        last = of["after"][-1] if of["after"] else None  # which replaced the others
        if last is None or last.covered_at == inf:
            continue
        since = last.at - STAMP_S - run.late_s
        if any(run.at[it["seq"]] > since for it in fired):
            continue
        # From when it was read, which may have been that late.
        due = _due(history, last.covered_at, last.frame[2])
        # A wall clock that is behind after a boot hides time.
        is_hidden = bool(history.boots) and history.is_wall_stepped
        if is_hidden or due > history.ended_at - LATE_TIMER_S:
            continue
        if not any(
            it.at >= last.at and history.decided(due, it.at) <= LATE_TIMER_S
            for it in of["cancel"]
        ):
            yield f"timer {name} never fired"


def _orders(history: History) -> Mapping[tuple[str, str], _Orders]:
    """The requests for each timer, by its gateway and key."""
    found = defaultdict[tuple[str, str], defaultdict[str, list[_Order]]](
        lambda: defaultdict(list)
    )
    for link in history.links:
        pings = 0
        for at, frame in link.sent:
            kind = frame[0]
            pings += kind == "ping"
            if kind not in _ORDERS:
                continue
            key = frame[1]["key"] if kind == "cancel" else frame[1]
            # By the pong for the next ping.
            covered_at = link.pongs[pings][0] if pings < len(link.pongs) else inf
            read_by = min(covered_at, link.ended_at + AWAY_S)
            found[link.name, key][kind].append(_Order(at, covered_at, frame, read_by))
    return found


def _due(history: History, since: float, seconds: float) -> float:
    """When so much time has passed; the host may have slept for a part of it."""
    due = since + seconds
    for at, slept_s in history.sleeps:
        if since < at < due:
            due = max(at, due - slept_s)
    return due


def _wrong_runs(of: _Orders, runs: list[Record], run: RunEvidence) -> Iterator[str]:
    asked, history, at = of["after"], run.history, run.at
    failed = {it.frame[3]["seq"] for it in of["fail"]}
    firsts = [it for it in runs if it["attempt"] == 1]
    again = [
        record["seq"]
        for before, record in pairwise(runs)
        if _may_be_again(before, record, history, at)
    ]
    # Of a run the table may know by its record alone, after a crash.
    known = {*history.rotten, *again}
    if len([it for it in firsts if it["seq"] not in known]) > len(asked):
        yield f"asked for {len(asked)} times, and fired as new: {firsts}"
    for record in firsts:
        now = at[record["seq"]]
        is_due = any(
            history.passed(it.at, now) >= it.frame[2] - STAMP_S
            and _texts(*it.frame[3:]) == _texts(record)
            # One that was replaced by then does not fire.
            and not any(other.covered_at < now - STAMP_S for other in asked[place:])
            for place, it in enumerate(asked, 1)
        )
        if not is_due:
            yield f"{record} at {now:.3f} is early, or replaced: {asked}"
        late_s = _late_s(asked, record["gateway"], now, history)
        if run.is_virtual and late_s > PROMPT_S + LINK_S:
            yield f"{record} at {now:.3f} is {late_s:.3f} s late"
    for before, record in pairwise(runs):
        if before["seq"] in history.rotten:
            continue
        began, now = at[before["seq"]], at[record["seq"]]
        is_anew = any(began - it.read_by < it.frame[2] for it in asked[1:])
        is_again = record["seq"] in again
        is_next = record["attempt"] == before["attempt"] + 1
        if not (is_next or is_again or (is_anew and record["attempt"] == 1)):
            yield f"{record} follows attempt {before['attempt']}"
        if not is_anew and _texts(record) != _texts(before):
            yield f"{record} has other texts than {before}"
        if is_anew or is_again:
            continue
        if record["attempt"] > 1 and _was_passed_over(before, history, began, now):
            yield f"{record} follows {before}, and it was passed over"
        if history.passed(began, now) < FIRST_RETRY_S - STAMP_S:
            yield f"{record} at {now:.3f} follows {before} at {began:.3f}"
        # Nobody can answer while the host sleeps, or no sidecar runs. What is waited then
        # may pass in a sleep.
        naps = [s for when, s in history.sleeps if began < when <= now and s <= NAP_S]
        least_s, ran_s = run.plan.run_timeout_s - sum(naps), history.ran(began, now)
        if before["seq"] not in failed and ran_s < least_s - STAMP_S:
            yield f"{record} at {now:.3f}, and {before} had not failed"
    for order in of["cancel"] + of["done"]:
        since = order.at
        if order.frame[0] == "done":
            since = at.get(order.frame[3]["seq"], since)
        # Asked again after that: read after it, though perhaps sent just before.
        is_anew = any(it.read_by > since for it in asked)
        for record in runs:
            now = at[record["seq"]]
            if order.covered_at < now - STAMP_S and not is_anew:
                yield f"{record} at {now:.3f} is after the {order.frame[0]}: {order}"


def _texts(of: Mapping[str, Any] = _NO_TEXTS) -> tuple[Any, Any]:
    return of.get("payload"), of.get("ext")


def _late_s(asked: list[_Order], gateway: str, now: float, history: History) -> float:
    """How late the last one was that was asked for by then, where nothing delayed it."""
    asked = [it for it in asked if it.at <= now]
    if not asked or history.troubles_in(asked[-1].at - LINK_S, now, gateway=gateway):
        return 0.0
    return now - _due(history, asked[-1].covered_at, asked[-1].frame[2])


def _may_be_again(
    before: Record, record: Record, history: History, at: dict[int, float]
) -> bool:
    """Whether a run may be that of before, which its gateway passed over."""
    began, now = at[before["seq"]], at[record["seq"]]
    return record["attempt"] == before["attempt"] and any(
        (it.hello.get("fresh") or not it.welcome.get("known", True))
        # A gateway that hangs reads its welcome late.
        and it.opened_at < now
        and began - AWAY_S < it.welcomed_at
        for it in history.gateway_links(record["gateway"])
    )


def _was_passed_over(run: Record, history: History, began: float, now: float) -> bool:
    """Whether its gateway was away when a run began, and came back fresh.

    A process of the sidecar that ended meanwhile may have forgotten about it.
    """
    links = [
        it
        for it in history.gateway_links(run["gateway"])
        if it.ended_at > began - AWAY_S and it.opened_at < now
    ]
    if not links or any(began - AWAY_S < it.began_at < now for it in history.processes):
        return False
    is_back = links[0].opened_at > began + AWAY_S and links[0].welcomed_at < now
    return is_back and bool(links[0].hello.get("fresh"))
