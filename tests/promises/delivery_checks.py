"""Did every receiver get what its webhook owes it? Asked of what it got, and of the log.

Promise 4, and what `docs/webhooks.md` says of order, repeats, retries and dead letters.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from math import inf
from operator import itemgetter
from typing import Final

from liveness.lab.common.promises import Breach
from tests.promises.run_evidence import RunEvidence
from tests.promises.run_history import (
    ClusterOutbound,
    Letter,
    Outbound,
    OutletReading,
    Record,
    Request,
)

# Of waits, for the moments at which either side looks at its clock.
MOMENT_S: Final = 0.1
# So long Redis keeps what has changed.
KEPT_S: Final = 3_600.0
# A host knows Redis' clock within the half of a call's time, and a moment.
SINCE_S: Final = 2.5
# A record is written, read and put into a batch within this time, if the disk has no fault.
TAKEN_S: Final = 3.0
# Statuses that say that the receiver will never take the record.
_AGAIN: Final = (401, 403, 404, 405, 407, 408, 410, 425, 429)


def deliveries(run: RunEvidence) -> Iterator[Breach]:
    """The promises to receivers of webhooks, and to readers of a cluster of one host."""
    for name, outbound in run.history.outbound.items():
        for what in _WebhookChecks(outbound, run).check():
            yield Breach(4, f"webhook {name}: {what}")
    for what in _damped(run):
        yield Breach(4, f"a watch with settle_s: {what}")
    if run.history.cluster is not None:
        for what in _cluster(run.history.cluster, run):
            yield Breach(4, f"cluster: {what}")


def _absences(
    run: RunEvidence, user_of: Callable[[Record], str], log: Iterable[Record]
) -> dict[int, tuple[Record, float]]:
    """By the seq of an offline, the online that ended the absence, and how long it was."""
    found, left = dict[int, tuple[Record, float]](), dict[str, int]()
    for record in log:
        if record["kind"] == "timer":
            continue
        seq = left.pop(user_of(record), None)
        if seq is not None and record["kind"] == "online":
            found[seq] = record, run.at[record["seq"]] - run.at[seq]
        if record["kind"] == "offline":
            left[user_of(record)] = record["seq"]
    return found


def _gaps(records: Iterable[Record]) -> set[int]:
    """The ranges that were reported as missing."""
    gaps = [it for it in records if it["kind"] == "gap"]
    return {seq for it in gaps for seq in range(it["first"], it["until"])}


def _damped(run: RunEvidence) -> Iterator[str]:
    """It is given no offline of a user who came back before that had settled."""
    history, settle_s = run.history, run.plan.watch_settle_s
    absences = _absences(run, lambda it: str(it["uid"]), run.log.values())
    missing = history.rotten | _gaps(it.record for it in history.damped)
    # Of what it reads late, after a step, it takes the later of two moments.
    slack_s = max(2 * MOMENT_S, settle_s / 2 if history.is_wall_stepped else 0.0)
    flushed_at = inf
    for at, record in reversed(history.damped):
        if record["kind"] in ("gap", "log"):
            # All that waits is passed on first: what follows may lack who came back.
            flushed_at = at
        elif record["kind"] != "offline" or at < flushed_at - MOMENT_S:
            flushed_at = inf
        seq = record["seq"]
        if flushed_at < inf or seq not in absences or record != run.log[seq]:
            continue
        online, away_s = absences[seq]
        if away_s < settle_s - slack_s and online["seq"] not in missing:
            yield f"{record} at {at:.3f}, and its user was back after {away_s:.3f} s"


def _cluster(cluster: ClusterOutbound, run: RunEvidence) -> Iterator[str]:
    history, log, last = run.history, run.log, cluster.readings[-1]
    owed_until = last.at - cluster.linger_s - TAKEN_S
    there = _online_since(run, owed_until, lambda it: str(it.get("user", it["uid"])))
    has = set(cluster.online)
    if not set.intersection(*there) <= has <= set.union(*there):
        yield f"in the end Redis has {cluster.online} online, the log {there[-1]}"
    online = dict[str, int]()
    is_whole = history.passed(0.0, history.ended_at) < KEPT_S
    for kind, user, session, _since_s in cluster.events if is_whole else ():
        if session not in log and not history.put_backs:
            yield f"{kind} of {user} names {session}, which is not in the log"
        if (user in online) == (kind == "online"):
            yield f"{kind} of {user} follows {online.get(user)}"
        if kind == "offline":
            online.pop(user, None)
        else:
            online[user] = session
    if is_whole and online.keys() != has:
        yield f"by its stream {online} are online in the end, not {has}"
    yield from _since(cluster, run)
    yield from _readings(cluster.readings, run)
    is_behind = last.lag_records >= len(there) or last.lag_s > last.at - owed_until
    if is_behind or last.state != "following":
        yield f"in the end its lag was {last}"


def _since(cluster: ClusterOutbound, run: RunEvidence) -> Iterator[str]:
    """Sessions are as far apart on Redis as they began, however clocks were set."""
    history = run.history
    if history.sleeps or history.boots or history.put_backs:
        return  # Redis' clock ran on, or was another one
    # Of what was decided before a process, only the stamp is known.
    since = len(history.processes) - 1 if history.is_wall_stepped else 0
    ahead = sorted(
        (since_s - run.at[session], session)
        for _kind, _user, session, since_s in cluster.events
        if since_s is not None
        and session in run.log
        and history.process_at(run.at[session]) >= since
    )
    if ahead and ahead[-1][0] - ahead[0][0] > SINCE_S:
        yield f"{ahead[0]} and {ahead[-1]} are further apart than in the log"


def _readings(readings: Iterable[OutletReading], run: RunEvidence) -> Iterator[str]:
    """No step of a clock shows in what an outlet says of itself."""
    for reading in readings:
        most_s = run.history.passed(0.0, reading.at) + 1.0
        lags = reading.lag_s, reading.lease_age_s
        if not (0 <= min(lags) <= max(lags) <= most_s and reading.lag_records >= 0):
            yield f"at {reading.at:.3f} its lag was {reading}"
        if reading.latency_s > most_s * reading.sent:
            yield f"at {reading.at:.3f} its latencies are {reading}"


def _online_since(
    run: RunEvidence, since: float, user_of: Callable[[Record], str]
) -> list[set[str]]:
    """The users online at a moment, and after each later decision, which may still wait."""
    late = [seq for seq in run.log if run.at[seq] > since]
    return [
        {user_of(run.log[it.session]) for it in run.online_at(seq)}
        for seq in (len(run.log) - len(late), *late)
    ]


class _WebhookChecks:
    """The checks of one webhook: its requests against the log."""

    def __init__(self, outbound: Outbound, run: RunEvidence) -> None:
        self._outbound, self._terms, self._run = outbound, outbound.terms, run
        self._history, self._log, self._at = run.history, run.log, run.at
        self._waits_s = outbound.terms.waits_s
        self._attempts = defaultdict[str, list[Request]](list)
        # What came of the log: all but tests.
        self._sent: list[tuple[Request, Record]] = []
        for request in outbound.requests:
            self._attempts[request.id].append(request)
            records = [event["data"] for event in request.events]
            self._sent += [(request, it) for it in records if "seq" in it]
        self._records = [record for _, record in self._sent]
        self._records += [letter.record for letter in outbound.letters]
        self._gone = _gaps(self._records)

    def check(self) -> Iterator[str]:
        """Look for breaches."""
        for request in self._outbound.requests:
            yield from self._well_formed(request)
        for requests in self._attempts.values():
            yield from self._repeated(requests)
        yield from self._in_order()
        letters, most = self._outbound.letters, self._terms.max_dead
        if len(letters) > most:
            yield f"there are {len(letters)} dead letters, of at most {most}"
        for letter in letters:
            yield from self._is_dead(letter)
        if self._terms.settle_s and not (self._gone or self._history.put_backs):
            yield from self._last_of_each()
            yield from self._settled()
        yield from self._everything()
        yield from self._lag()

    # --- a request ------------------------------------------------------------

    def _well_formed(self, request: Request) -> Iterator[str]:
        when = f"{request.id} at {request.at:.3f}"
        if not request.is_signed:
            yield f"{when} is not signed as it should be"
        if not self._may_have_shown(request):
            yield f"{when} has the timestamp {request.stamp}, which no clock showed"
        events = request.events
        if not 0 < len(events) <= self._terms.batch:
            yield f"{when} has {len(events)} events, of at most {self._terms.batch}"
        for event in events:
            record = event["data"]
            is_of_log = record["kind"] not in ("test", "gap")
            if not is_of_log or self._is_lost(record["seq"], request.at):
                continue
            there = self._log.get(record["seq"])
            is_made = self._terms.settle_s and record["kind"] == "moved"
            if there != record and not is_made:
                yield f"{when} brings {record}, and the log has {there}"
            elif self._history.put_backs:
                continue  # it is then decided by who is online
            elif event.get("superseded") and not self._is_untrue(record, request.at):
                yield f"{when} says superseded of {record}, and nothing was newer"

    def _is_lost(self, seq: int, at: float) -> bool:
        """Whether a record that was there at a moment is lost, as a state was put back."""
        return any(seq > it.last for it in self._history.put_backs_after(at))

    def _may_have_shown(self, request: Request) -> bool:
        """Whether the wall clock can have shown its timestamp while the attempt lasted."""
        history, until = self._history, request.at + MOMENT_S
        paused_s = sum(ended - began for began, ended in history.pauses)
        since = request.at - self._terms.timeout_s - paused_s - MOMENT_S
        return any(
            max(since, began) + zero_ms / 1000 - 1
            <= request.stamp
            <= min(until, ended) + zero_ms / 1000
            for (began, zero_ms), (ended, _) in pairwise([*history.wall, (inf, 0)])
            if began <= until and ended >= since
        )

    def _is_untrue(self, record: Record, at: float) -> bool:
        """Whether a newer record may have made this one untrue by then.

        An online or a move is said to be so only of a dead letter.
        """
        is_offline = record["kind"] == "offline"
        return (is_offline or at >= self._history.calm_from) and any(
            seq > record["seq"]
            and "uid" in it
            and self._user(it) == self._user(record)
            and (it["kind"] != "offline" or not is_offline)
            and self._at[seq] <= at + MOMENT_S
            for seq, it in self._log.items()
        )

    def _user(self, record: Record) -> str:
        found = record.get("user") if self._terms.users_only else None
        return str(record["uid"] if found is None else found)

    def _repeated(self, attempts: list[Request]) -> Iterator[str]:
        """A request is the same in all attempts, and waits before each."""
        least_s = min(self._waits_s, default=inf)
        for before, after in pairwise(attempts):
            if after.body != before.body:
                yield f"{after.id} came with another body at {after.at:.3f}"
            is_failed = before.status is not None and not before.is_accepted
            waited_s = self._history.passed(before.at, after.at)
            is_of_one = before.process == after.process
            is_early = is_failed and is_of_one and waited_s < least_s - MOMENT_S
            if is_early and not self._is_tried_by_hand(before, after):
                yield f"{after.id} waited {waited_s} s, the shortest wait is {least_s} s"

    def _is_tried_by_hand(self, before: Request, after: Request) -> bool:
        """Whether another request was accepted meanwhile, which ends a wait.

        That was one by hand: of the log, one is in flight at a time.
        """
        return any(
            it.is_accepted and it is not after and before.at < it.at <= after.at
            for it in self._outbound.requests
        )

    # --- the whole ------------------------------------------------------------

    def _in_order(self) -> Iterator[str]:
        """New records are in the order of the log; damped ones, in that of each user."""
        for is_done in (False, True):
            newest, process = defaultdict[str, int](int), 0
            seen = set[tuple[int, int]]()
            for request, record in self._sent:
                # Later on, dead letters are sent again by hand.
                is_late = request.at >= self._history.calm_from
                if is_late or (is_done and not request.is_accepted):
                    continue
                # A power failure may take it back: it reads again, and sends again what
                # was begun before that, behind dead letters, too.
                ended = self._history.processes[process : request.process]
                is_as_it_was = all(it.is_planned for it in ended)
                # With settle_s it reads again from before what has waited.
                is_again = self._terms.settle_s or self._history.put_backs
                if ended and (is_again or not is_as_it_was):
                    newest.clear()
                process = request.process
                name = record["seq"], record["at"]
                if record["kind"] == "gap" or name in seen:
                    continue
                is_damped = self._terms.settle_s and "uid" in record
                whose = self._user(record) if is_damped else ""
                if record["seq"] < newest[whose]:
                    yield f"{name[0]} came at {request.at:.3f}, behind {newest[whose]}"
                seen.add(name)
                newest[whose] = record["seq"]

    def _everything(self) -> Iterator[str]:
        """Each record was accepted, or is a dead letter, or was said to be missing."""
        letters = self._outbound.letters
        done = {letter.record["seq"] for letter in letters} | self._accepted.keys()
        for seq, record in self._owed.items():
            if seq >= self._deleted_below and seq not in done:
                yield f"it was never sent {record}, decided at {self._at[seq]:.3f}"
        if self._history.put_backs:
            return
        for seq in self._gone - self._history.rotten:
            age_s = self._history.passed(self._at.get(seq, 0.0), self._history.ended_at)
            if age_s < self._run.plan.retention_s:
                yield f"{seq} was reported missing, and was {age_s:.0f} s old"

    @property
    def _deleted_below(self) -> int:
        """Dead letters below were deleted, if there is no room for more."""
        letters = self._outbound.letters
        is_full = len(letters) == self._terms.max_dead
        return min(letter.record["seq"] for letter in letters) if is_full else 0

    @cached_property
    def _accepted(self) -> dict[int, Request]:
        """The first request with which each record was accepted, by its seq."""
        found = dict[int, Request]()
        for request, record in self._sent:
            if request.is_accepted and not self._is_lost(record["seq"], request.at):
                found.setdefault(record["seq"], request)
        return found

    @cached_property
    def _owed(self) -> dict[int, Record]:
        """The records that it has to get one by one."""
        if self._terms.settle_s:
            return {}
        first = 0
        if self._terms.begin == "newest":
            # Where it began only it knows; but from what it sent first it goes on.
            first = min((it["seq"] for _, it in self._sent), default=2**63)
        missing = self._gone | self._history.rotten
        return {
            seq: it
            for seq, it in self._log.items()
            if seq >= first and seq not in missing and self._concerns(it)
        }

    def _concerns(self, record: Record) -> bool:
        terms, kind = self._terms, record["kind"]
        is_wanted = kind == "timer" or self._is_of_users(record)
        return is_wanted and kind in terms.kinds.split(",")

    def _last_of_each(self) -> Iterator[str]:
        """For a user offline at the end, the last record sent is an offline."""
        owed_until = self._outbound.readings[-1].at - self._terms.settle_s - TAKEN_S
        online = set.union(*_online_since(self._run, owed_until, self._user))
        last = dict[str, Record]()
        for record in sorted(self._records, key=itemgetter("seq")):
            if "uid" in record:
                last[self._user(record)] = record
        for user, record in last.items():
            is_said = record["kind"] == "offline" or user in online
            # Else its offline may be a dead letter that was deleted.
            if not is_said and record["seq"] >= self._deleted_below:
                yield f"the last that it was sent of {user} is {record}"

    def _settled(self) -> Iterator[str]:
        """No offline is sent of a user who came back before it had settled."""
        history, terms = self._history, self._terms
        log = [it for it in self._log.values() if self._is_of_users(it)]
        absences = _absences(self._run, self._user, log)
        for request, record in self._sent:
            if record["seq"] not in absences or record["kind"] != "offline":
                continue
            _, away_s = absences[record["seq"]]
            # Of what was decided before this process, only the stamp is known.
            process = history.process_at(self._at[record["seq"]])
            is_known = process == request.process or not history.is_wall_stepped
            is_short = away_s < terms.settle_s - 2 * MOMENT_S
            if is_short and is_known:
                yield f"{record} came, and its user was back after {away_s:.3f} s"

    def _is_of_users(self, record: Record) -> bool:
        """Whether it is wanted though only whole users are."""
        if not self._terms.users_only:
            return True
        of_users = {"online": 1, "offline": 0}.get(record["kind"])
        return of_users is not None and record.get("devices", of_users) == of_users

    def _is_dead(self, letter: Letter) -> Iterator[str]:
        """A letter was refused alone, or all attempts have failed."""
        status = letter.status
        is_refused = status in range(400, 500) and status not in _AGAIN
        attempts = len(self._waits_s) + 1
        if not (is_refused or letter.attempts == attempts):
            yield f"dead after {letter.attempts} of {attempts} attempts: {letter}"

    def _lag(self) -> Iterator[str]:
        """It says how far behind it is, and no step of a clock shows in that."""
        history, readings = self._history, self._outbound.readings
        yield from _readings(readings, self._run)
        owed = () if history.put_backs else self._accepted.keys() & self._owed.keys()
        for reading in readings:
            # The sidecar had run for a while then, and its disk with it.
            since = reading.at - 2 * TAKEN_S
            began_at = history.processes[reading.process].began_at
            troubles = history.troubles_in(since, reading.at)
            is_steady = began_at < since and not troubles
            for seq in owed if is_steady and reading.state != "stopped" else ():
                request, late_s = self._accepted[seq], reading.at - self._at[seq]
                # What comes later may be a dead letter: one that a power failure took
                # back, or that was sent again by hand.
                is_late = reading.at < request.at < history.calm_from
                is_late = is_late and request.process == reading.process
                if is_late and reading.lag_s < late_s - TAKEN_S:
                    yield f"{seq} was {late_s:.1f} s late, and the outlet said {reading}"
        if readings[-1].lag_records or readings[-1].lag_s:
            yield f"in the end its lag was {readings[-1]}"
