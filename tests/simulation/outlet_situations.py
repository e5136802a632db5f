"""Notes which situations the outlets of a run came into, from what was seen of them."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from liveness.promises.delivery_history import Outbound, Request
from liveness.promises.run_history import History, Record
from tests.simulation.situations import reached


def note_outlets(history: History) -> None:
    """Count what all the outlets of a run met."""
    log = {
        it.record["seq"]: it.record
        for link in history.links
        for it in link.told
        if it.record["kind"] != "gap"
    }
    for outbound in history.outbound.values():
        attempts = defaultdict[str, list[Request]](list)
        for request in outbound.requests:
            attempts[request.id].append(request)
        for requests in attempts.values():
            _note_attempts(history, requests)
        _note_records(history, outbound, log)
        _note_state(history, outbound)
    _note_cluster(history)


def _note_attempts(history: History, attempts: list[Request]) -> None:
    for before, after in pairwise(attempts):
        ended = history.processes[before.process]
        if before.process == after.process:
            if before.status is None:
                reached("outlets: an attempt without an answer is made again")
        elif before.is_accepted and not ended.is_planned:
            reached("outlets: a crash is between an answer and its commit")
        elif before.is_accepted:
            reached("outlets: a stop is between an answer and its commit", rarely=True)
        else:
            reached("outlets: a request waits over a restart")
        if _any_between(before, after, history.wall_steps()):
            reached("outlets: the wall clock is stepped while a request waits")
        if _any_between(before, after, (at for at, _ in history.sleeps)):
            reached("outlets: the host sleeps while a request waits")
        if _any_between(before, after, history.boots):
            reached("outlets: the host boots while a request waits")


def _any_between(before: Request, after: Request, moments: Iterable[float]) -> bool:
    return any(before.at < at < after.at for at in moments)


def _note_records(history: History, outbound: Outbound, log: dict[int, Record]) -> None:
    process_of = dict[str, int]()  # by the id of an event: which sent it first
    for request in outbound.requests:
        events, is_early = request.events, request.at < history.calm_from
        if len(events) == outbound.terms.batch > 1:
            reached("outlets: a batch is full")
        if len(events) > 1 and request.status in range(400, 500) and is_early:
            reached("outlets: a batch is refused, and halved")
        for event in events:
            record = event["data"]
            if record["kind"] == "test":
                if is_early:
                    reached("outlets: a test tells whether any record would be refused")
                continue
            if process_of.setdefault(event["id"], request.process) != request.process:
                reached("outlets: a record comes again from a later process")
            if event.get("superseded") and is_early:
                reached("outlets: an offline is not true any more when it is sent")
            elif event.get("superseded"):
                reached("outlets: a dead letter is not true any more when it is sent")
            if record["kind"] == "gap":
                missing = range(record["first"], record["until"])
                if history.rotten & {*missing}:
                    reached("outlets: damaged records come as a gap", rarely=True)
                else:
                    reached("outlets: the retention passes a cursor")
            elif record["kind"] == "moved" and record != log.get(record["seq"], record):
                reached("outlets: a move takes the place of an offline and an online")
            if history.put_backs and request.at > history.put_backs[0].at:
                reached("outlets: a receiver gets records of a state that was put back")
        if request.is_accepted and _takes_nothing(history, request.at):
            reached("outlets: a request is accepted while the disk takes nothing")
    for letter in outbound.letters:
        if letter.status in range(400, 500) and letter.attempts == 1:
            reached("outlets: a record that is refused at once is a dead letter")
        elif letter.status is None:
            reached("outlets: a request dies that never had an answer")
        else:
            reached("outlets: a request dies after the last of its attempts")


def _note_state(history: History, outbound: Outbound) -> None:
    for before, after in pairwise(outbound.readings):
        if after.dead_deleted:
            reached("outlets: the oldest dead letters are deleted")
        has_died = after.process == before.process and after.dead > before.dead
        if has_died and _takes_nothing(history, after.at):
            reached("outlets: a record dies while the disk takes nothing")
        if after.state == "stopped":
            reached("outlets: an outlet stops", rarely=True)
        if after.state == "retrying":
            others = [it for it in history.outbound.values() if it is not outbound]
            if any(
                before.at < request.at < after.at and request.is_accepted
                for it in others
                for request in it.requests
            ):
                reached("outlets: one receiver fails while another takes records")
            if not after.lag_records:
                reached(
                    "outlets: an outlet has no lag while it tries again", rarely=True
                )


def _note_cluster(history: History) -> None:
    if history.cluster is None:
        return
    for before, after in pairwise(history.cluster.readings):
        if after.state == "away" and after.process != before.process:
            reached("outlets: the sidecar starts while Redis is away", rarely=True)
        if after.state == "away" and after.lag_records:
            reached("outlets: changes wait while Redis is away")
        if before.state == "beginning" and after.state == "following":
            reached("outlets: the cluster has a list of all sessions")
        if after.state == "refused":
            reached("outlets: Redis refuses the outlet for some time", rarely=True)


def _takes_nothing(history: History, at: float) -> bool:
    return any(
        since <= at <= until and what in ("disk full", "disk fails")
        for since, until, what in history.troubles
    )
