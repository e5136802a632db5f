"""Faults that belong to no single promise, and must not happen."""

from collections import defaultdict
from collections.abc import Iterator
from math import inf
from typing import Final

from tests.promises.run_evidence import LINK_S, RunEvidence

# Around a time in which a link did not read; it then takes a moment to read all.
CALM_S: Final = 5.0


def conduct(run: RunEvidence) -> Iterator[str]:
    """Links that keep to the protocol are not refused, nor left without an answer."""
    yield from run.history.faults
    for link in run.history.links:
        passed_at = [it.at for it in link.sent if it.frame[0] != "hello"]
        passed_at += [it.at for it in link.delivered] + [at for at, _ in link.pongs]
        if min(passed_at, default=inf) < link.welcomed_at:
            yield f"{link.name} had more than a hello before it was welcomed"
        expected = {"replaced"}
        # A list may have no room on the disk.
        asked = [sent.at for sent in link.sent if sent.frame[0] == "list"]
        if any(it.link is link for it in run.history.unread) or any(
            run.history.troubles_in(at, at + LINK_S, "disk full") for at in asked
        ):
            expected.add("overloaded")
        for error in link.errors:
            if error["code"] not in expected:
                yield f"{link.name} was refused: {error}"
    yield from _unread_in_time(run)
    if run.is_whole:
        yield from _devices_counted(run)


def _unread_in_time(run: RunEvidence) -> Iterator[str]:
    """A link that reads in time is answered, and one that does not is ended."""
    unread, most_s = run.history.unread, run.plan.unread_s
    for it in unread:
        if not run.host_is_calm(it.since - CALM_S, it.until + CALM_S):
            continue
        took = it.until - it.since
        is_whole = it.answers == it.asked
        if took < most_s - 1 and len(unread) == 1 and not is_whole:
            yield f"{it.link.name} read after {took:.1f} s, and was not answered"
        if took > most_s + 3 and is_whole:
            yield f"{it.link.name} read nothing for {took:.1f} s, and was not ended"


def _devices_counted(run: RunEvidence) -> Iterator[str]:
    """Every record has the number of its user's devices that are online after it."""
    separator = run.plan.device_separator
    online: dict[str, set[str]] = defaultdict(set)
    for record in run.log.values():
        if record["kind"] == "timer":
            continue
        uid = record["uid"]
        user = uid.partition(separator)[0] if separator and uid == f"{uid}" else uid
        devices = online[str(user)]
        if record["kind"] == "online":
            devices.add(str(uid))
        elif record["kind"] == "offline":
            devices.discard(str(uid))
        counted = (user, len(devices)) if separator else (None, None)
        if (record.get("user"), record.get("devices")) != counted:
            yield f"devices of {record}: its user has {counted}"
