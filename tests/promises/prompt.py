"""2, prompt: the decision is made soon after the deadline, and delivered soon after that."""

from collections.abc import Iterator
from math import inf
from typing import Final

from tests.promises.run_evidence import LINK_S, SETTLE_S, RunEvidence, Silence

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
