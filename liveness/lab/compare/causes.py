"""Finds out, with the sidecar's help, why only the other detector reported an offline."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from liveness.core.records import OFFLINE, ONLINE, Record

ALIVE: Final = "alive"  # active again later, without another login
STILL_ONLINE: Final = "online"
ALREADY: Final = "already"  # it was offline
UNKNOWN: Final = "unknown"
UNLOOKED: Final = "unlooked"  # nobody searched
CAUSES: Final = (ALIVE, STILL_ONLINE, ALREADY, UNKNOWN, UNLOOKED)


class Evidence(NamedTuple):
    is_online: bool
    records: Sequence[Record]  # the user's newest, newest first
    is_complete: bool  # the search reached the beginning of the log


class Cause(NamedTuple):
    """Why only the other side reported an offline: one of `CAUSES`, and a sentence."""

    kind: str
    text: str


NO_CAUSE: Final = Cause(UNLOOKED, "")


def cause_of(at: int, evidence: Evidence) -> Cause:
    is_online, records, is_complete = evidence
    before = next((record for record in records if record.at <= at), None)
    after = next((record for record in reversed(records) if record.at > at), None)
    if before is not None:
        is_online = before.kind != OFFLINE
    elif after is not None:
        is_online = after.kind != ONLINE
    if not is_online and before is not None:
        ago = _seconds(at - before.at)
        text = f"offline here already, {ago} before that ({before.reason})"
        return Cause(ALREADY, text)
    if not is_online:
        searched = "" if is_complete else ", as far back as was searched"
        return Cause(UNKNOWN, f"not known here before that{searched}")
    text, seen = "online here", None
    if after is not None and after.kind == OFFLINE:
        seen = after.seen
        text += f", offline here {_seconds(after.at - at)} after that ({after.reason})"
    elif after is not None:
        seen = after.at  # a login on a newer connection proves the user alive, too
    if seen is None:
        return Cause(STILL_ONLINE, text)
    if seen > at:
        return Cause(ALIVE, f"{text}: heard {_seconds(seen - at)} after that")
    return Cause(STILL_ONLINE, f"{text}: last heard {_seconds(at - seen)} before that")


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.3f} s"
