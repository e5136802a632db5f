"""Notes which situations the outlets of a run came into, from what was seen of them."""

from tests.promises.delivery_history import Request
from tests.promises.run_history import History
from tests.simulation.situations import reached


def note_outlets(history: History) -> None:
    for outbound in history.outbound.values():
        last = dict[str, Request]()
        for request in outbound.requests:
            if (before := last.get(request.id)) is not None:
                _note_attempts(history, before, request)
            last[request.id] = request
            _note_request(history, request)
        for letter in outbound.letters:
            if letter.attempts == 1 and letter.status in range(400, 500):
                reached("outlets: a record that is refused at once is a dead letter")
            else:
                reached("outlets: a request dies after the last of its attempts")
        if len(outbound.letters) == outbound.terms.max_dead:
            reached("outlets: there are as many dead letters as may be kept")
    if history.cluster is not None and any(
        it.state == "away" and it.lag_records for it in history.cluster.readings
    ):
        reached("outlets: changes wait while Redis is away")


def _note_attempts(history: History, before: Request, after: Request) -> None:
    """Two that follow each other."""
    if before.process != after.process:
        if not before.is_accepted:
            reached("outlets: a request waits over a restart")
        elif not history.processes[before.process].is_planned:
            reached("outlets: a crash is between an answer and its commit")
    elif before.status is None:
        reached("outlets: an attempt without an answer is made again")
    if any(before.at < at < after.at for at in history.wall_steps()):
        reached("outlets: the wall clock is stepped while a request waits")
    if any(before.at < at < after.at for at, _ in history.sleeps):
        reached("outlets: the host sleeps while a request waits")
    if any(before.at < at < after.at for at in history.boots):
        reached("outlets: the host boots while a request waits")


def _note_request(history: History, request: Request) -> None:
    events, is_early = request.events, request.at < history.calm_from
    if len(events) > 1 and request.status in range(400, 500):
        reached("outlets: a batch is refused, and halved")
    if any(event.get("superseded") for event in events):
        if is_early:
            reached("outlets: an offline is not true any more when it is sent")
        else:
            reached("outlets: a dead letter is not true any more when it is sent")
    if any(event["data"]["kind"] == "gap" for event in events):
        reached("outlets: the retention passes a cursor")
    if history.put_backs and request.at > history.put_backs[0].at:
        reached("outlets: a receiver gets records of a state that was put back")
    if request.is_accepted and any(
        since <= request.at <= until and what in ("disk full", "disk fails")
        for since, until, what in history.troubles
    ):
        reached("outlets: a request is accepted while the disk takes nothing")
