"""5, no false silence: who is held, for how long, and whose fault a silence is."""

from collections.abc import Iterator
from math import inf
from typing import Final

from liveness.promises.breach import Breach
from liveness.promises.never_early import is_early
from liveness.promises.prompt import PROMPT_S
from liveness.promises.run_evidence import LINK_S, RunEvidence, Silence
from liveness.promises.run_history import STAMP_S

# The longest that a gateway is given to say what it had collected.
SETTLE_S: Final = 2.0
# The least that it is given to be back after a start of the sidecar.
BACK_S: Final = 1.0


def no_false_silence(run: RunEvidence) -> Iterator[Breach]:
    """Time in which the sidecar did not run is nobody's silence; who is held, is in time."""
    for it in run.silences:
        yield from _put_off(run, it)
        yield from _unattended(run, it)
        yield from _whose_fault(run, it)
        yield from _away_in_time(run, it)


def _unattended(run: RunEvidence, silence: Silence) -> Iterator[Breach]:
    """A whole timeout that the sidecar ran passed since what was heard, and since a crash."""
    record, at, least = silence.record, silence.at, silence.least
    for sign, silence_s, whole_s in silence.recent:
        if not is_early(run.history.passed(sign, at), whole_s, STAMP_S):
            yield Breach(
                5,
                f"{record} at {at:.3f}, and it ran for {silence_s:.3f} s since "
                f"something was in the socket at {sign:.3f}",
            )
    for process in run.history.crashes():
        since = process.began_at
        is_restored = run.at.get(record["session"], at) < since <= at
        if is_restored and is_early(run.most_silence(since, at), least, STAMP_S):
            yield Breach(5, f"{record} at {at:.3f}, and a crash was at {since:.3f}")


def _whose_fault(run: RunEvidence, silence: Silence) -> Iterator[Breach]:
    """Silence is said of who has a link and talks, `gateway_lost` of others."""
    record, at, signs = silence.record, silence.at, silence.signs
    gateway, least = silence.conn.gateway, silence.least
    # One that hangs may not have noticed that the process at the other end is gone.
    now = run.history.process_at(at)
    links = [it for it in run.history.gateway_links(gateway) if it.sidecar == now]
    if record["reason"] == "gateway_lost":
        slack = LINK_S + run.late_s
        is_there = any(
            it.welcomed_at <= at - slack and at + run.late_s <= it.ended_at
            for it in links
        )
        since = signs[-1] if signs else -inf
        hold = least + run.terms.hold_s - STAMP_S
        if run.history.ran(since, at) >= hold:
            return  # nobody waits longer for anything
        if is_there and not run.was_put_off(silence.conn, since + least, at):
            yield Breach(5, f"{record} at {at:.3f}, and its gateway was there")
        began_at = run.history.processes[now].began_at
        if now and is_early(run.history.ran(began_at, at), BACK_S, STAMP_S):
            yield Breach(
                5, f"{record} at {at:.3f}, just after a start at {began_at:.3f}"
            )
        return
    slack = LINK_S + run.late_s
    if not any(it.opened_at <= at and at - slack <= it.ended_at for it in links):
        yield Breach(5, f"{record} at {at:.3f}, and its gateway was not there")
    late_s = run.late_by(gateway)
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
            yield Breach(
                5, f"{record} at {at:.3f}, and its gateway hung from {began:.3f}"
            )
        since = signs[-1] if signs else -inf
        # Which of its timeouts it was under is not looked at: the longest ends in the
        # hang, and the hold is over no sooner than that of the shortest.
        was_held = mute_from < since + silence.most < ended - LINK_S
        fresh = min(ended + least, since + least + run.terms.hold_s - SETTLE_S)
        if was_held and ended <= at < fresh - STAMP_S:
            yield Breach(5, f"{record} at {at:.3f}, and it was held until {ended:.3f}")


def _put_off(run: RunEvidence, silence: Silence) -> Iterator[Breach]:
    """Whatever its gateway does, nobody waits for it longer than the hold."""
    record, at, signs = silence.record, silence.at, silence.signs
    if not signs or not run.is_virtual:
        return
    most = silence.most + run.terms.hold_s + PROMPT_S + LINK_S
    if run.history.ran(signs[-1], at) > most and run.host_is_calm(signs[-1], at):
        yield Breach(
            5, f"{record} at {at:.3f}, and it was last heard at {signs[-1]:.3f}"
        )


def _away_in_time(run: RunEvidence, silence: Silence) -> Iterator[Breach]:
    """Whose gateway has gone is not held for it: it had a moment to come back."""
    record, at, signs = silence.record, silence.at, silence.signs
    conn = silence.conn
    links = [it for it in run.history.gateway_links(conn.gateway) if it.opened_at <= at]
    if not (signs and links and run.is_virtual):
        return
    since = signs[-1] + silence.least
    due = max(signs[-1] + silence.most, links[-1].ended_at + SETTLE_S)
    is_calm = run.host_is_calm(signs[-1], at + LINK_S)
    if (
        at > due + PROMPT_S + LINK_S
        and is_calm
        and not run.was_put_off(conn, since, at)
    ):
        yield Breach(
            5, f"{record} at {at:.3f}, and its gateway went {at - due:.3f} s before"
        )
