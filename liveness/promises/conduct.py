"""What is of no single promise, and must not happen where any is kept."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from liveness.promises.breach import BESIDES, Breach
from liveness.promises.run_evidence import LINK_S, RunEvidence
from liveness.promises.run_history import LinkHistory

# Around a time in which somebody did not read; it then takes a moment to read all.
CALM_S: Final = 5.0


def conduct(run: RunEvidence) -> Iterator[Breach]:
    """Nobody is refused who keeps to the protocol, or left without an answer."""
    for fault in run.history.faults:
        yield Breach(BESIDES, fault)
    for link in run.history.links:
        expected = {"replaced"}
        is_greedy = any(it.link is link for it in run.history.unread)
        if is_greedy or _asked_for_too_much(run, link):
            expected.add("overloaded")
        for error in link.errors:
            if error["code"] not in expected:
                yield Breach(BESIDES, f"{link.name} was refused: {error}")
    yield from _unread_in_time(run)
    if run.is_whole:
        yield from _devices_counted(run)


def _asked_for_too_much(run: RunEvidence, link: LinkHistory) -> bool:
    """Whether a link asked for a list that had no room on the disk."""
    asked = [sent.at for sent in link.sent if sent.frame[0] == "list"]
    return any(
        what == "disk full" and began - LINK_S <= at <= ended
        for began, ended, what in run.history.troubles
        for at in asked
    )


def _unread_in_time(run: RunEvidence) -> Iterator[Breach]:
    """Who reads in time is answered, and who does not is ended."""
    terms = run.terms
    for it in run.history.unread:
        if not run.host_is_calm(it.since - CALM_S, it.until + CALM_S):
            continue
        took = it.until - it.since
        is_whole = it.answers == it.asked
        alone = len(run.history.unread) == 1
        if took < terms.unread_s - 1 and alone and not is_whole:
            what = f"read after {took:.1f} s, and was not answered"
            yield Breach(BESIDES, f"{it.link.name} {what}")
        if took > terms.unread_s + 3 and is_whole:
            what = f"read nothing for {took:.1f} s, and was not ended"
            yield Breach(BESIDES, f"{it.link.name} {what}")


def _devices_counted(run: RunEvidence) -> Iterator[Breach]:
    """Every record has the number of its user's devices that are online after it."""
    separator = run.terms.device_separator
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
            yield Breach(BESIDES, f"devices of {record}: its user has {counted}")
