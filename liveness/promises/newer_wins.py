"""6, a newer connection wins: nothing that an older one says ends a newer session."""

from collections.abc import Iterator
from typing import Final

from liveness.promises.breach import Breach
from liveness.promises.run_evidence import LINK_S, RunEvidence
from liveness.promises.run_history import STAMP_S, Conn, Record
from liveness.promises.session_log import was_read_last

# What the sidecar and a gateway make of one moment, by adding and taking away.
ROUNDING_S: Final = 1e-6


def newer_wins(run: RunEvidence) -> Iterator[Breach]:
    """Sessions are ended by a logout of their own, and displaced by what may be newer."""
    yield from run.log_breaches(6)
    for record in run.log.values():
        if record["kind"] == "moved":
            yield from _newer_wins(run, record)
        elif record["kind"] == "offline" and record["reason"] == "logout":
            at, conn = run.at[record["seq"]], run.history.conns[record["conn"]]
            if not any(it.at <= at + STAMP_S for it in run.sent(conn, "logout")):
                yield Breach(6, f"{record}, and nobody said so")


def _newer_wins(run: RunEvidence, record: Record) -> Iterator[Breach]:
    """A session is displaced by a connection that may be newer, and by no other."""
    conns, at = run.history.conns, run.at[record["seq"]]
    new, old = conns[record["conn"]], conns[record["from_conn"]]
    if was_read_last(record):
        yield from _is_older(run, record, old, new, at)
        return
    ages = run.ages(new, at)
    if not ages:
        yield Breach(6, f"{record}, and nobody logged in")
        return
    lost = run.log.get(record["from_session"])
    if lost is not None and run.has_began(new, at) and run.is_exact(lost, at):
        if old.opened_at > new.opened_at + ROUNDING_S:
            yield Breach(6, f"{record}, and {old} began after {new}, as both had said")
        return
    # The sleeps of its host add to the age of a session over a restart; a time in which
    # the machine stood still adds to it, and not to the age that a gateway tells. So does
    # what a wall clock is wrong by after a boot.
    history = run.history
    if history.sleeps or history.boots or history.stood_still(new.opened_at, at):
        return
    # In real time two clocks are read one after the other.
    slack = STAMP_S if run.is_virtual else LINK_S
    if old.opened_at > at - min(ages) + slack:
        yield Breach(6, f"{record}, and {old} is newer than {new}")


def _is_older(
    run: RunEvidence, record: Record, old: Conn, new: Conn, at: float
) -> Iterator[Breach]:
    """Who is to close its connection, as another has the user, has an older one."""
    if not run.ages(old, at):
        yield Breach(6, f"{record}, and nobody logged in")
    if old.opened_at > new.opened_at + ROUNDING_S:
        yield Breach(6, f"{record}, and {old} is newer than {new}")
