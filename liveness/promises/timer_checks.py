"""7, timers: never early, once for each attempt, and never after a cancel."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import Any, Final, NamedTuple

from liveness.promises.breach import Breach
from liveness.promises.never_early import is_early
from liveness.promises.run_evidence import RunEvidence
from liveness.promises.run_history import STAMP_S, History, Record

# The shortest wait before a timer is tried again.
FIRST_RETRY_S: Final = 1.0

# A sleep of the host that is as short as this is not noticed.
NAP_S: Final = 0.25

# A timer may have been late by so much that the sidecar ran, and been cancelled before it
# fired.
LATE_TIMER_S: Final = 5.0

# So long after a link has ended its sidecar may write to it, and so long before it is
# opened nobody did.
AWAY_S: Final = 2.0

_ORDERS: Final = frozenset({"after", "cancel", "done", "fail"})


class _Order(NamedTuple):
    at: float
    covered_at: float
    frame: list[Any]
    read_by: float  # the sidecar reads it by then, or never


class _Timer(NamedTuple):
    asked: list[_Order]
    cancelled: list[_Order]
    done: list[_Order]
    failed: list[_Order]
    runs: list[Record]


def is_next_attempt(
    attempt: int, before: int, *, is_anew: bool = False, is_again: bool = False
) -> bool:
    """Whether an attempt of a timer may follow another.

    Args:
        attempt: Its number.
        before: That of the one before; 0 if there was none.
        is_anew: Whether the timer may have been asked for anew.
        is_again: Whether the one before may have been lost with its gateway.
    """
    return attempt == before + 1 or (is_anew and attempt == 1) or is_again


def timers(run: RunEvidence) -> Iterator[Breach]:
    """A timer fires when it is due, once for each attempt, and not once cancelled."""
    history, log = run.history, run.log
    found: dict[tuple[str, str], _Timer] = defaultdict(
        lambda: _Timer([], [], [], [], [])
    )
    for link in history.links:
        pings = 0
        for sent in link.sent:
            kind = sent.frame[0]
            pings += kind == "ping"
            if kind not in _ORDERS:
                continue
            key = sent.frame[1]["key"] if kind == "cancel" else sent.frame[1]
            of = found[link.name, key]
            # By the pong for the next ping.
            covered_at = link.pongs[pings][0] if pings < len(link.pongs) else inf
            read_by = min(covered_at, link.ended_at + AWAY_S)
            order = _Order(sent.at, covered_at, sent.frame, read_by)
            if kind == "after":
                of.asked.append(order)
            elif kind == "cancel":
                of.cancelled.append(order)
            elif kind == "done":
                of.done.append(order)
            else:
                of.failed.append(order)
    for record in log.values():
        if record["kind"] == "timer":
            found[record["gateway"], record["key"]].runs.append(record)
    # Of what was ordered before an earlier state was put back nobody can say what is known.
    known_from = max((it.at for it in history.put_backs), default=-inf)
    for name, timer in found.items():
        if any(it.at < known_from for it in (*timer.asked, *timer.cancelled)):
            continue
        yield from _broken_runs(timer, run)
        last = timer.asked[-1] if timer.asked else None  # which replaced the others
        if last is None or last.covered_at == inf:
            continue
        since = last.at - STAMP_S - run.late_s
        if any(run.at[it["seq"]] > since for it in timer.runs):
            continue
        # From when it was read, which may have been that late.
        due = _due(history, last.covered_at, last.frame[2])
        # A wall clock that is behind after a boot hides time.
        is_hidden = bool(history.boots) and history.is_wall_stepped
        if is_hidden or due > history.ended_at - LATE_TIMER_S:
            continue
        excused = any(
            it.at >= last.at and history.decided(due, it.at) <= LATE_TIMER_S
            for it in timer.cancelled
        )
        if not excused:
            yield Breach(7, f"timer {name} never fired")


def _due(history: History, since: float, seconds: float) -> float:
    """When so much has passed, of which the host may have slept some."""
    due = since + seconds
    for at, slept_s in history.sleeps:
        if since < at < due:
            due = max(at, due - slept_s)
    return due


def _broken_runs(timer: _Timer, run: RunEvidence) -> Iterator[Breach]:
    asked, history, at = timer.asked, run.history, run.at
    failed = {it.frame[3]["seq"] for it in timer.failed}
    firsts = [it for it in timer.runs if it["attempt"] == 1]
    again = [
        record["seq"]
        for before, record in pairwise(timer.runs)
        if _may_be_again(before, record, history, at)
    ]
    # Of a run the table may know by its record alone, after a crash.
    known = {*history.rotten, *again}
    if len([it for it in firsts if it["seq"] not in known]) > len(asked):
        yield Breach(7, f"asked for {len(asked)} times, and fired as new: {firsts}")
    for record in firsts:
        now = at[record["seq"]]
        is_due = any(
            not is_early(history.passed(it.at, now), it.frame[2], STAMP_S)
            # One that was replaced by then does not fire.
            and not any(other.covered_at < now - STAMP_S for other in asked[place:])
            for place, it in enumerate(asked, 1)
        )
        if not is_due:
            yield Breach(7, f"{record} at {now:.3f} is early, or replaced: {asked}")
    for before, record in pairwise(timer.runs):
        if before["seq"] in history.rotten:
            continue
        began, now = at[before["seq"]], at[record["seq"]]
        is_anew = any(is_early(began - it.at, it.frame[2]) for it in asked[1:])
        is_again = record["seq"] in again
        if not is_next_attempt(
            record["attempt"], before["attempt"], is_anew=True, is_again=is_again
        ):
            yield Breach(7, f"{record} follows attempt {before['attempt']}")
        if (
            not (is_anew or is_again)
            and record["attempt"] > 1
            and _was_passed_over(before, history, began, now)
        ):
            yield Breach(7, f"{record} follows {before}, and nobody was told of that")
        waited = is_again or not is_early(
            history.passed(began, now), FIRST_RETRY_S, STAMP_S
        )
        if not (is_anew or waited):
            yield Breach(7, f"{record} at {now:.3f} follows {before} at {began:.3f}")
        # Nobody can answer while the host sleeps, or no sidecar runs. What is waited then
        # may pass in a sleep.
        naps = [s for when, s in history.sleeps if began < when <= now and s <= NAP_S]
        least_s = run.terms.run_timeout_s - sum(naps)
        if not (is_anew or is_again or before["seq"] in failed) and is_early(
            history.ran(began, now), least_s, STAMP_S
        ):
            yield Breach(7, f"{record} at {now:.3f}, and {before} had not failed")
    for order in timer.cancelled + timer.done:
        since = order.at
        if order.frame[0] == "done":
            since = at.get(order.frame[3]["seq"], since)
        # Asked again after that: read after it, though perhaps sent just before.
        is_anew = any(it.read_by > since for it in asked)
        for record in timer.runs:
            now = at[record["seq"]]
            if order.covered_at < now - STAMP_S and not is_anew:
                yield Breach(7, f"{record} at {now:.3f}, and {order}")


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
    is_one_process = not any(
        began - AWAY_S < it.began_at < now for it in history.processes
    )
    return (
        bool(links)
        and is_one_process
        and links[0].opened_at > began + AWAY_S
        and links[0].welcomed_at < now
        and bool(links[0].hello.get("fresh"))
    )
