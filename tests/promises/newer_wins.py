"""6, a newer connection wins: nothing that an older one says ends a newer session."""

from collections.abc import Iterator
from typing import Final

from liveness.lab.common.promises import was_read_last
from tests.promises.run_evidence import LINK_S, RunEvidence
from tests.promises.run_history import STAMP_S, Record

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
