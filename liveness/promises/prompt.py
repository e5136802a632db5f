"""2, prompt: the decision is made soon after the deadline, and delivered soon after that."""

from collections.abc import Iterator
from typing import Final

from liveness.promises.breach import Breach
from liveness.promises.run_evidence import LINK_S, RunEvidence, Silence

# Reads are gathered for 20 ms, and then it has 50.
PROMPT_S: Final = 0.020 + 0.050
# The log gathers for 50 ms. Then two commits of it, as long as the disk takes for one in a
# quiet hour, and a page of it read by one that is behind.
DELIVERED_S: Final = 0.050 + 0.050
# What a gateway is given to say what it had collected, once it is back after a restart.
BACK_S: Final = 2.0


def is_late(late_s: float, most_s: float) -> bool:
    """Whether something came later than it may."""
    return late_s > most_s


def prompt(run: RunEvidence) -> Iterator[Breach]:
    """Silence is decided, and its record delivered, in time where nothing delays either."""
    for it in run.silences:
        if run.is_virtual and it.signs:
            yield from _prompt(run, it)
            yield from _over_restarts(run, it)


def _prompt(run: RunEvidence, silence: Silence) -> Iterator[Breach]:
    record, at, heard = silence.record, silence.at, silence.signs[-1]
    began, ended = heard - LINK_S, at + DELIVERED_S + LINK_S
    if not run.history.is_calm(began, ended, silence.conn.gateway):
        return
    late_s = at - heard - silence.most
    if is_late(late_s, PROMPT_S):
        yield Breach(2, f"{record} at {at:.3f}, {late_s:.3f} s late")
    for link in run.history.gateway_links(silence.conn.gateway):
        if link.welcomed_at > began or link.ended_at < ended:
            continue
        told = [it.at for it in link.told if it.record["seq"] == record["seq"]]
        if not told or is_late(told[0] - at, DELIVERED_S):
            yield Breach(2, f"{record} at {at:.3f} was told at {told}")


def _over_restarts(run: RunEvidence, silence: Silence) -> Iterator[Breach]:
    """A stop in order keeps everyone's clock: it goes on where it was."""
    record, at, history = silence.record, silence.at, run.history
    heard, gateway = silence.signs[-1], silence.conn.gateway
    troubles = history.troubles + history.troubles_of.get(gateway, [])
    is_calm = all(
        what == "sidecar restarts" or began >= at or ended <= heard - LINK_S
        for began, ended, what in troubles
    )
    links = [it for it in history.gateway_links(gateway) if it.welcomed_at < at]
    # The storm guard holds anew after a restart, and who is not back is waited for.
    if run.terms.guard_hold_s or not (is_calm and links):
        return
    if links[-1].sidecar != history.process_at(at):
        return
    since_back_s = at - links[-1].welcomed_at - BACK_S
    late_s = min(history.ran(heard, at) - silence.most, since_back_s)
    if is_late(late_s, PROMPT_S + LINK_S):
        yield Breach(2, f"{record} at {at:.3f}, {late_s:.3f} s late after a restart")
