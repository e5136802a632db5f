"""Which situations a run came into, as its sidecar's counters and its history show."""

from collections.abc import Iterable
from itertools import pairwise
from math import inf
from typing import Final

from liveness.service.components import SidecarService
from tests.promises.run_history import History, LinkHistory, PutBack, Record, Request
from tests.simulation.plan import DAY_S, RETRIES_S, WEEK_S, Plan
from tests.simulation.situations import reached, reached_of

# Shorter than this a standstill is not noticed.
UNNOTICED_S: Final = 0.25
# Two moments that a sidecar cannot tell apart, as it gathers what it reads.
AT_ONCE_MS: Final = 20
SOON_S: Final = 1.0


def note_counters(sidecar: SidecarService) -> None:
    """Notice what a sidecar has counted up to now, and what it is in."""
    presence, counts, disk = sidecar.presence, sidecar.counts, sidecar.log_writer
    parts = sidecar.parts
    held, ignored = parts.firing.held(parts.attended.now), presence.ignored
    met = counts.limits_met
    timers, results = sidecar.scheduler, sidecar.scheduler.results
    reached_of(
        {
            "core: a due user waits for a gateway that is away": held["away"],
            "core: a due user waits for a gateway that is mute": held["mute"],
            "core, rarely: a due user waits for what is unread": held["unread"],
            "core: the storm guard holds a due user": held["storm"],
            "core: an event is of a user of another gateway": ignored["other_gateway"],
            "core: an event is of an older connection": ignored["other_conn"],
            "core: a login is older than the session": ignored["older"],
            "core: a login says its beginning by another clock": presence.began_unused[
                "other_clock"
            ],
            "core: a keepalive opens a session": presence.opened["keepalive"],
            "core: time passes unattended": sidecar.parts.attended.unattended,
            "core: offlines wait for the disk": met["limits.pause_firing"],
            "core, rarely: nobody is fired until the disk has caught up": (
                sidecar.parts.pressure.fire_limit == 0
            ),
            "core: no socket is read until the disk has caught up": met[
                "limits.pause_reading"
            ],
            "core: a gateway is not read, as its timers wait": met[
                "timers.max_pending"
            ],
            "core: a link ends that reads no answers": met["limits.unread_s"],
            "core, rarely: all links leave too much unread": met[
                "limits.max_unread_bytes"
            ],
            "core: a link is replaced by a newer one": counts.refused["replaced"],
            "core: an attempt of a timer is not answered": results["unanswered"],
            "core: an attempt of a timer is answered too late": results["late"],
            "core: all attempts of a timer have failed": timers.states["failed"],
            "core: a timer is not yet in memory": (
                timers.states["pending"] > timers.loaded
            ),
            "storage: a commit of the log fails": disk.write_failures["log"],
            "storage: a commit of timers fails": disk.write_failures["timers"],
            "storage: a damaged record is found": disk.store.damaged_records(0),
            "storage: the socket's file is missed": counts.files_lost["gateway"],
        }
    )


def note_run(plan: Plan, history: History, logs: Iterable[str]) -> None:
    """Notice what a whole run was."""
    _note_log_lines("\n".join(logs))
    _note_users(plan, history)
    _note_time(plan, history)
    _note_starts(history)
    for put_back in history.put_backs:
        _note_put_back(history, put_back)
    _note_readers(history)
    _note_faults(history)


def _note_log_lines(said: str) -> None:
    reached_of(
        {
            "storage: the log is below its mark, and gets a new id": (
                "the log lacks records that were shown" in said
            ),
            "storage: there is no mark, and the log gets a new id": (
                "the host or its runtime folder is new" in said
            ),
            "storage, rarely: the clocks of a stop cannot be written": (
                "the clocks file could not be written" in said
            ),
            "storage: a stop leaves records unwritten": (
                "could be written; gateways send again" in said
            ),
            "storage: what could not be written is written again": (
                "is written again" in said
            ),
        }
    )


def _note_users(plan: Plan, history: History) -> None:
    readers = [link for link in history.links if link.name == "reader"]
    records = [it.record for link in readers[-1:] for it in link.delivered]
    offlines = [it for it in records if it["kind"] == "offline"]
    moves = [it for it in records if it["kind"] == "moved"]
    lost = [it for it in offlines if it["reason"] == "gateway_lost"]
    reached_of(
        {
            "core: a hold runs out": any(
                it.get("silence", 0.0) >= plan.hold_s + _timeout_s(plan, history, it)
                for it in lost
            ),
            "core: a newer connection displaces a session": any(
                "from_session" in it for it in moves
            ),
            "core: an older connection is read after a newer one": any(
                "from_session" not in it for it in moves
            ),
            "core: a user moves from one gateway to another": any(
                it["gateway"] != it.get("from", it["gateway"]) for it in moves
            ),
            "core: a device goes offline, and its user does not": any(
                it.get("devices") for it in offlines
            ),
            "core: one user is named by a number and by text": (
                {"7", "'7'"} <= {repr(it.get("uid")) for it in records}
            ),
            "core: two users go offline at once": any(
                after["kind"] == before["kind"] == "offline"
                and after["at"] - before["at"] < AT_ONCE_MS
                for before, after in pairwise(records)
            ),
            "core: a timer is tried for the last time": any(
                it.get("attempt") == 1 + len(RETRIES_S) for it in records
            ),
        }
    )


def _timeout_s(plan: Plan, history: History, record: Record) -> float:
    """The longest timeout that the user of a record may have had."""
    conn = history.conns[record["conn"]]
    links = history.gateway_links(conn.gateway)
    return conn.timeout or max(it.hello.get("timeout", plan.timeout_s) for it in links)


def _note_time(plan: Plan, history: History) -> None:
    sleeps = [at for at, _ in history.sleeps]
    steps = [
        (at, (after_ms - before_ms) / 1000)
        for (_, before_ms), (at, after_ms) in pairwise(history.wall)
        if after_ms != before_ms and at not in sleeps
    ]
    stepped, starts = [at for at, _ in steps], [it.began_at for it in history.processes]
    timers = [
        (sent.at, sent.at + sent.frame[2])
        for link in history.links
        for sent in link.sent
        if sent.frame[0] == "after"
    ]
    reached_of(
        {
            "core: a pause is too short to be noticed": any(
                until - since < UNNOTICED_S for since, until in history.pauses
            ),
            "core: a pause is longer than the timeout": any(
                until - since > plan.timeout_s for since, until in history.pauses
            ),
            "core, rarely: the host sleeps for days": any(
                seconds > DAY_S for _, seconds in history.sleeps
            ),
            "core: the wall clock is set by less than a second": any(
                abs(by_s) < SOON_S for _, by_s in steps
            ),
            "core: the wall clock is set by more than a year": any(
                abs(by_s) > WEEK_S * 52 for _, by_s in steps
            ),
            "core: the wall clock is set while a timer waits": _is_any_in(
                stepped, timers
            ),
            "core: the wall clock is set between an order for a timer and a restart": any(
                since < at < began_at < due
                for since, due in timers
                for at in stepped
                for began_at in starts[1:]
            ),
            "core: the host sleeps while a timer waits": _is_any_in(sleeps, timers),
            "core: the host boots while a timer waits": _is_any_in(
                history.boots, timers
            ),
        }
    )


def _is_any_in(moments: Iterable[float], spans: Iterable[tuple[float, float]]) -> bool:
    return any(a < at < b for a, b in spans for at in moments)


def _note_starts(history: History) -> None:
    boots = [
        (
            booted_at,
            [zero_ms for at, zero_ms in history.wall if at < booted_at][-1],
            [zero_ms for at, zero_ms in history.wall if at <= booted_at][-1],
        )
        for booted_at in history.boots
    ]
    behind = [(at, after) for at, before, after in boots if after < before]
    reached_of(
        {
            "storage: a process lives for less than a second": any(
                it.ended_at - it.began_at < SOON_S for it in history.processes
            ),
            "storage: the host boots with a clock that is ahead": any(
                after > before for _, before, after in boots
            ),
            "storage: the host boots with a clock that is behind": behind,
            "storage: a clock that was behind after a boot is set right": any(
                booted_at < at and after < zero_ms == _right_ms(history, at)
                for booted_at, after in behind
                for at, zero_ms in history.wall
            ),
            "storage: the host boots twice": len(boots) > 1,
            "storage, rarely: one copy is put back twice": (
                len(history.put_backs) > len({it.copied_at for it in history.put_backs})
            ),
        }
    )


def _right_ms(history: History, at: float) -> int:
    """The time of a wall clock that was never set, at 0."""
    slept_s = [seconds for slept_at, seconds in history.sleeps if slept_at <= at]
    return history.wall[0][1] + sum(round(seconds * 1000) for seconds in slept_s)


def _note_put_back(history: History, put_back: PutBack) -> None:
    shown = [
        it.record.get("seq", 0)
        for link in history.links
        if link.opened_at < put_back.at
        for it in link.delivered
    ]
    lacks = max(shown, default=0) > put_back.last
    reached_of(
        {
            "storage: an earlier state lacks records that were shown": lacks,
            "storage: an earlier state has no record": put_back.last == 0,
            "storage: a state of before a boot is put back": _is_any_in(
                history.boots, [(put_back.copied_at, put_back.at)]
            ),
        }
    )


def _note_readers(history: History) -> None:
    links = dict[tuple[str, str], list[LinkHistory]]()
    for link in history.links:
        if link.welcomed_at < inf:
            links.setdefault(link.name_and_role, []).append(link)
    for of_one in links.values():
        for before, link in pairwise(of_one):
            _note_return(before, link)
    delivered = [(link, it.record) for link in history.links for it in link.delivered]
    gaps = [record for _, record in delivered if record["kind"] == "gap"]
    hidden = {seq for gap in gaps for seq in range(gap["first"], gap["until"])}
    reached_of(
        {
            "storage: a reader gets a gap for damaged records": hidden & history.rotten,
            "storage: a reader gets a gap for records that are no longer kept": (
                hidden - history.rotten
            ),
            "core: a gateway that came back fresh gets the ends of its lost users": any(
                link.hello.get("fresh") and record.get("reason") == "gateway_lost"
                for link, record in delivered
            ),
        }
    )


def _note_return(before: LinkHistory, link: LinkHistory) -> None:
    """A name has a link again."""
    log, hello = link.welcome["log"], link.hello
    says_other = hello.get("timeout") != before.hello.get("timeout")
    is_other = bool(hello.get("after")) and hello["log"] != log
    seqs = [it.record.get("seq") for it in link.delivered]
    reached_of(
        {
            "core: a gateway says another timeout on its next link": says_other,
            "storage: a log keeps its id over a restart": (
                log == before.welcome["log"] and link.sidecar > before.sidecar
            ),
            "storage: a reader asks for a position in an earlier log": is_other,
            "storage: a reader asks for what the log has lost": (
                is_other and hello["after"] >= link.welcome["next"]
            ),
            "storage: a reader of a log that is not known begins anew": (
                is_other and seqs[:1] == [1]
            ),
            "storage: a reader's name is forgotten": (
                link.welcome.get("known") is False
            ),
            "storage: a record is delivered again": (
                {it.record.get("seq") for it in before.delivered} & {*seqs}
            ),
        }
    )


def _note_faults(history: History) -> None:
    """Faults that met."""

    def times(what: str) -> list[tuple[float, float]]:
        return [(began, ended) for began, ended, it in history.troubles if it == what]

    ends = [it.ended_at for it in history.processes[:-1]]
    crashes = [it.began_at for it in history.crashes()]
    hangs = [(a, b) for _, a, b in history.hangs]
    reached_of(
        {
            "storage: a process ends while the disk is full": _is_any_in(
                ends, times("disk full")
            ),
            "storage: a process ends while the disk stalls": _is_any_in(
                ends, times("disk stalls")
            ),
            "storage: a process goes on after a crash while the disk fails": _is_any_in(
                crashes, times("disk fails")
            ),
            "storage: a process ends while there are no threads": _is_any_in(
                ends, times("disk gets no threads")
            ),
            "storage: the disk stalls for longer than any timeout": any(
                ended - began > 30 for began, ended in times("disk stalls")
            ),
            "core: the sidecar restarts while a gateway hangs": _is_any_in(ends, hangs),
            "core: two gateways hang at once": any(
                c < b and a < d and (a, b) != (c, d) for a, b in hangs for c, d in hangs
            ),
            "core: the host sleeps while a gateway hangs": _is_any_in(
                [at for at, _ in history.sleeps], hangs
            ),
        }
    )


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
