"""1, 2, 5 and 6: users fall silent in time, where it is true, and newer connections win."""

from collections.abc import Iterator
from math import inf
from typing import Final

from liveness.lab.common.promises import was_read_last
from tests.promises.run_evidence import LINK_S, SETTLE_S, RunEvidence, Silence
from tests.promises.run_history import STAMP_S, LinkHistory, Record

# The least that a gateway is given to be back after a start of the sidecar.
BACK_S: Final = 1.0
# A promise to ping may be kept late by as much again, and by this at least.
LEAST_LATE_S: Final = 1.0


# --- 5, no false silence: how long users are held, and whether their gateway was there


def no_false_silence(run: RunEvidence) -> Iterator[str]:
    """Time in which the sidecar did not run is no silence; users are held for so long."""
    for it in run.silences:
        yield from _unattended(run, it)
        if it.record["reason"] == "gateway_lost":
            yield from _lost(run, it)
        else:
            yield from _silent(run, it)
        if run.is_virtual and run.host_is_calm(it.heard_at, it.at):
            yield from _held_too_long(run, it)


def _unattended(run: RunEvidence, silence: Silence) -> Iterator[str]:
    """The sidecar ran for a whole timeout since the last event, and since a crash."""
    record, at, least = silence.record, silence.at, silence.least
    for sign, silence_s, whole_s in silence.recent:
        if run.history.passed(sign, at) >= whole_s - STAMP_S:
            yield (
                f"{record} at {at:.3f}, and it ran for {silence_s:.3f} s since "
                f"something was in the socket at {sign:.3f}"
            )
    for process in run.history.crashes():
        since = process.began_at
        is_restored = run.at.get(record["session"], at) < since <= at
        if is_restored and run.most_silence(since, at) < least - STAMP_S:
            yield f"{record} at {at:.3f}, and a crash was at {since:.3f}"


def _links(run: RunEvidence, silence: Silence) -> list[LinkHistory]:
    """Those of its gateway to the process that judged.

    A gateway that hangs may not have noticed that the process at the other end is gone.
    """
    links = run.history.gateway_links(silence.conn.gateway)
    return [it for it in links if it.sidecar == run.history.process_at(silence.at)]


def _lost(run: RunEvidence, silence: Silence) -> Iterator[str]:
    """`gateway_lost` is said of a user whose gateway is not there, or is mute."""
    record, at, since = silence.record, silence.at, silence.heard_at
    slack = LINK_S + run.late_s
    if run.history.ran(since, at) >= silence.least + run.plan.hold_s - STAMP_S:
        return  # no user waits longer for anything
    is_there = any(
        it.welcomed_at <= at - slack and at + run.late_s <= it.ended_at
        for it in _links(run, silence)
    )
    if is_there and not run.was_put_off(silence.conn, since + silence.least, at):
        yield f"{record} at {at:.3f}, and its gateway was there"
    now = run.history.process_at(at)
    began_at = run.history.processes[now].began_at
    if now and run.history.ran(began_at, at) < BACK_S - STAMP_S:
        yield f"{record} at {at:.3f}, just after a start at {began_at:.3f}"


def _silent(run: RunEvidence, silence: Silence) -> Iterator[str]:
    """`silence` is said of a user whose gateway has a link and talks."""
    record, at, gateway = silence.record, silence.at, silence.conn.gateway
    links = _links(run, silence)
    slack = LINK_S + run.late_s
    if not any(it.opened_at <= at and at - slack <= it.ended_at for it in links):
        yield f"{record} at {at:.3f}, and its gateway was not there"
    ping = max((it.hello.get("ping", inf) for it in links), default=inf)
    late_s = ping + max(ping, LEAST_LATE_S)
    for name, began, ended in run.history.hangs:
        if name != gateway or not run.host_is_calm(began - 1, at):
            continue
        # What it had sent is heard when it is read, which its own orders put off.
        if run.gave_orders(name, began - 1, at):
            continue
        # A link that it was about to make is made, and its hello is a sign of life.
        heard = [sent.at for it in links for sent in it.sent if sent.at <= at]
        mute_from = max([began, *heard]) + late_s + LINK_S
        if mute_from < at < ended:
            yield f"{record} at {at:.3f}, and its gateway hung from {began:.3f}"
        since = silence.heard_at
        # Which of its timeouts it was under is not looked at: the longest ends in the
        # hang, and the hold is over no sooner than that of the shortest.
        was_held = mute_from < since + silence.most < ended - LINK_S
        hold_until = since + silence.least + run.plan.hold_s - SETTLE_S
        fresh = min(ended + silence.least, hold_until)
        if was_held and ended <= at < fresh - STAMP_S:
            yield f"{record} at {at:.3f}, and it was held until {ended:.3f}"


def _held_too_long(run: RunEvidence, silence: Silence) -> Iterator[str]:
    """Whatever its gateway does, a user waits for it no longer than the hold.

    And not at all for one that has gone, and had a moment to come back.
    """
    record, at, conn, heard = silence.record, silence.at, silence.conn, silence.heard_at
    due, slack = heard + silence.most, PROMPT_S + LINK_S
    if heard == -inf:
        return
    if run.history.ran(heard, at) > silence.most + run.plan.hold_s + slack:
        yield f"{record} at {at:.3f}, and it was last heard at {heard:.3f}"
    links = [it for it in run.history.gateway_links(conn.gateway) if it.opened_at <= at]
    if not links or run.was_put_off(conn, heard + silence.least, at):
        return
    due = max(due, links[-1].ended_at + SETTLE_S)
    if at > due + slack and run.host_is_calm(at, at + LINK_S):
        yield f"{record} at {at:.3f}, and its gateway went {at - due:.3f} s before"


# --- 1, never early: a whole timeout passes before a user is reported silent -------------


def never_early(run: RunEvidence) -> Iterator[str]:
    """A whole timeout passed since everything heard."""
    for it in run.silences:
        if it.record["silence"] < it.least - STAMP_S:
            yield f"{it.record}, and its timeout is {it.least:g}"
        for sign, silence_s, whole_s in it.recent:
            if run.history.passed(sign, it.at) < whole_s - STAMP_S:
                yield (
                    f"{it.record} at {it.at:.3f}, and of its connection something was "
                    f"in the socket at {sign:.3f}, {silence_s:.3f} s before"
                )


# --- 2, prompt: decided soon after the deadline, and delivered soon after that -----------

# Reads are gathered for 20 ms, and then it has 50.
PROMPT_S: Final = 0.020 + 0.050
# The log gathers for 50 ms. Then two commits of it, as long as the disk takes for one in a
# quiet hour, and a page of it read by one that is behind.
DELIVERED_S: Final = 0.050 + 0.050
# What a user's clock goes on over, as it was.
_KEEP_CLOCKS: Final = ("sidecar restarts", "wall clock", "socket removed")


def prompt(run: RunEvidence) -> Iterator[str]:
    """Silence is decided, and its record delivered, in time where nothing delays either."""
    for it in run.silences:
        if run.is_virtual and it.heard_at > -inf:
            yield from _in_calm(run, it)
            yield from _over_restarts(run, it)


def _in_calm(run: RunEvidence, silence: Silence) -> Iterator[str]:
    record, at, gateway = silence.record, silence.at, silence.conn.gateway
    began, ended = silence.heard_at - LINK_S, at + DELIVERED_S + LINK_S
    if run.history.troubles_in(began, ended, gateway=gateway):
        return
    late_s = at - silence.heard_at - silence.most
    if late_s > PROMPT_S:
        yield f"{record} at {at:.3f}, {late_s:.3f} s late"
    for link in run.history.gateway_links(gateway):
        if link.welcomed_at > began or link.ended_at < ended:
            continue
        moments = [it.at for it in link.delivered if it.record["seq"] == record["seq"]]
        if not moments or moments[0] - at > DELIVERED_S:
            yield f"{record} at {at:.3f} was delivered at {moments}"


def _over_restarts(run: RunEvidence, silence: Silence) -> Iterator[str]:
    """A stop in order keeps everyone's clock: it goes on where it was."""
    at, heard, gateway = silence.at, silence.heard_at, silence.conn.gateway
    troubles = run.history.troubles_in(heard - LINK_S, at, gateway=gateway)
    links = [it for it in run.history.gateway_links(gateway) if it.welcomed_at < at]
    # The storm guard holds anew after a restart; a gateway that is not back is waited for.
    is_back = links and links[-1].sidecar == run.history.process_at(at)
    is_calm = all(what.startswith(_KEEP_CLOCKS) for _, _, what in troubles)
    if is_back and is_calm and not run.plan.guard_hold_s:
        since_back_s = at - links[-1].welcomed_at - SETTLE_S
        late_s = min(run.history.ran(heard, at) - silence.most, since_back_s)
        if late_s > PROMPT_S + LINK_S:
            yield f"{silence.record} at {at:.3f}, {late_s:.3f} s late after a restart"


# --- 6, a newer connection wins: nothing that an older one says ends its session ---------

# What the sidecar and a gateway make of one moment, by adding and taking away.
ROUNDING_S: Final = 1e-6


def newer_wins(run: RunEvidence) -> Iterator[str]:
    """Sessions are ended by a logout of their own, and displaced by what may be newer."""
    yield from run.log_breaches(6)
    for record in run.log.values():
        if record["kind"] == "moved":
            yield from _displaced(run, record)
        elif record["kind"] == "offline" and record["reason"] == "logout":
            at, conn = run.at[record["seq"]], run.history.conns[record["conn"]]
            if not run.sent(conn, at + STAMP_S, "logout"):
                yield f"{record}, and no logout was sent"


def _displaced(run: RunEvidence, record: Record) -> Iterator[str]:
    """A session is displaced by a connection that may be newer, and by no other."""
    history, at = run.history, run.at[record["seq"]]
    new, old = history.conns[record["conn"]], history.conns[record["from_conn"]]
    # What was read last may be the login of the older one.
    ages = run.ages(old if was_read_last(record) else new, at)
    if not ages:
        yield f"{record}, and no login was sent"
        return
    lost = run.log.get(record.get("from_session", 0))
    are_known = lost is not None and run.has_began(new, at) and run.is_exact(lost, at)
    if was_read_last(record) or are_known:
        newest_s = new.opened_at + ROUNDING_S
    elif history.sleeps or history.boots or history.stood_still(new.opened_at, at):
        # The sleeps of its host add to the age of a session over a restart; a time in
        # which the machine stood still adds to it, and not to the age that a gateway
        # sends. So does the error of a wall clock after a boot.
        return
    else:
        # In real time two clocks are read one after the other.
        newest_s = at - min(ages) + (STAMP_S if run.is_virtual else LINK_S)
    if old.opened_at > newest_s:
        yield f"{record}, and {old} is newer than {new}"
