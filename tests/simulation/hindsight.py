"""Which situations a run came into, as its sidecar's counters and its history tell."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from math import inf
from typing import Any, Final

from liveness.promises.run_history import History, LinkHistory, Record
from liveness.service.components import SidecarService
from tests.simulation.plan import DAY_S, WEEK_S, Fault, Plan, Remind, Visit
from tests.simulation.situations import reached

# Above it a timeout lies in the upper layers of every wheel that is drawn.
LONG_S: Final = 3_600.0
# Shorter than this a standstill is not noticed.
UNNOTICED_S: Final = 0.25
# Two moments that a sidecar cannot tell apart, as it gathers what it reads.
AT_ONCE_S: Final = 0.02
SOON_S: Final = 1.0


def look_at(sidecar: SidecarService) -> None:
    """Notice what a sidecar has counted up to now, and what it is in."""
    presence, server = sidecar.presence, sidecar.server
    held = presence.held(sidecar.engine.attended)
    if held["away"]:
        reached("core: a due user waits for a gateway that is away")
    if held["mute"]:
        reached("core: a due user waits for a gateway that is mute")
    if held["unread"]:
        reached("core: a due user waits for what its gateway has sent", rarely=True)
    if held["storm"]:
        reached("core: the storm guard holds a due user")
    if presence.guard is not None and presence.guard.begun:
        reached("core: a storm begins")
    if any(gateway.mutes for gateway in presence.gateways.values()):
        reached("core: a gateway is mute")
    if presence.ignored["other_gateway"]:
        reached("core: an event is of a user who is online through another gateway")
    if presence.ignored["other_conn"]:
        reached("core: an event is of an older connection")
    if presence.ignored["older"]:
        reached("core: a login is older than the session that is there")
    if presence.ignored["offline"]:
        reached("core: a logout is of a user who is offline")
    if presence.began_unused["other_clock"]:
        reached("core: a login tells its beginning by another clock")
    if presence.opened["keepalive"]:
        reached("core: a keepalive opens a session")
    if presence.opened["message"]:
        reached("core: a message opens a session")
    if sidecar.engine.unattended:
        reached("core: time passes unattended")
    _look_at_limits(sidecar, sidecar.counts.limits_met)
    if server.unread.memory > 1 << 20:
        reached("core: a MiB of answers waits in memory")
    _look_at_timers(sidecar)
    _look_at_disk(sidecar)


def _look_at_limits(sidecar: SidecarService, met: Counter[str]) -> None:
    if met["limits.pause_firing"]:
        reached("core: offlines wait for the disk, and firing is throttled")
    if sidecar.server.pressure.fire_limit == 0:
        reached("core: offlines wait for the disk, and nobody is fired", rarely=True)
    if met["limits.pause_reading"]:
        reached("core: records wait for the disk, and no socket is read")
    if met["timers.max_pending"]:
        reached("core: a gateway is not read, as its timer commands wait")
    if met["limits.unread_s"]:
        reached("core: a link ends that reads no answers")
    if met["limits.max_unread_bytes"]:
        reached("core: all links together leave too much unread", rarely=True)
    if sidecar.counts.refused["replaced"]:
        reached("core: a link is replaced by a newer one of its name")


def _look_at_timers(sidecar: SidecarService) -> None:
    results, states = sidecar.scheduler.results, sidecar.scheduler.states
    if results["done"]:
        reached("core: a timer is done")
    if results["fail"]:
        reached("core: an attempt of a timer fails")
    if results["unanswered"]:
        reached("core: an attempt of a timer is not answered")
    if results["late"]:
        reached("core: an attempt of a timer is answered too late")
    if states["failed"]:
        reached("core: all attempts of a timer have failed")
    if states["cancelled"]:
        reached("core: a timer is cancelled")
    if states["pending"] > sidecar.scheduler.loaded:
        reached("core: a timer is not yet in memory")


def _look_at_disk(sidecar: SidecarService) -> None:
    writer = sidecar.log_writer
    if writer.write_failures["log"]:
        reached("storage: a commit of the log fails")
    if writer.write_failures["timers"]:
        reached("storage: a commit of timers fails")
    if writer.store.damaged_records:
        reached("storage: a damaged record is found")
    if sidecar.counts.files_lost["gateway"]:
        reached("storage: the socket's file is missed")
    if writer.pending > 100:
        reached("storage: a hundred records wait to be written")


def look_back(plan: Plan, history: History, logs: Iterable[str]) -> None:
    """Notice what a whole run was."""
    faults = [it for it in plan.steps if isinstance(it, Fault)]
    _look_at_log_lines(frozenset(logs))
    _look_at_users(plan, history)
    _look_at_time(plan, history)
    _look_at_states(history)
    _look_at_readers(plan, history)
    _look_at_faults(history, {it.what for it in faults})
    _look_at_orders(plan, history)


def _look_at_log_lines(lines: frozenset[str]) -> None:
    def said(part: str) -> bool:
        return any(part in line for line in lines)

    if said("the log lacks records that were shown"):
        reached("storage: the log is below its mark, and gets a new id")
    if said("the host or its runtime folder is new"):
        reached("storage: there is no mark, and the log gets a new id")
    if said("the clocks file could not be written"):
        reached("storage: the clocks of a stop cannot be written", rarely=True)
    if said("restored"):
        reached("storage: users of the last process are online again")
    if said("could not be written; gateways send again"):
        reached("storage: a stop leaves records unwritten", rarely=True)
    if said("cannot be written; nothing is dropped"):
        reached("storage: it is said that nothing can be written")
    if said("is written again"):
        reached("storage: what could not be written is written again")


def _records(history: History) -> list[Record]:
    """What the last reader found in the log."""
    links = [link for link in history.links if link.name == "reader"]
    return [it.record for link in links[-1:] for it in link.told]


def _look_at_users(plan: Plan, history: History) -> None:
    records = _records(history)
    ends = Counter(it.get("reason") for it in records if it["kind"] == "offline")
    if ends["silence"] > 10:
        reached("core: ten users fall silent")
    if ends["gateway_lost"]:
        reached("core: a user ends with its gateway")
    moves = [it for it in records if it["kind"] == "moved"]
    if any("from_session" in it for it in moves):
        reached("core: a newer connection displaces a session")
    if any("from_session" not in it for it in moves):
        reached("core: an older connection is told of a newer one")
    if any(it["gateway"] != it.get("from") for it in moves if "from" in it):
        reached("core: a user moves from one gateway to another")
    if any(it.get("devices") for it in records if it["kind"] == "offline"):
        reached("core: a device goes offline, and its user does not")
    names = {repr(it["uid"]) for it in records if it["kind"] != "gap" and "uid" in it}
    if {"7", "'7'"} <= names:
        reached("core: one user is named by a number and by text")
    for before, after in pairwise(records):
        if (
            after["kind"] == before["kind"] == "offline"
            and after["at"] - before["at"] < AT_ONCE_S * 1000
        ):
            reached("core: two users go offline at once")
            break
    _look_at_timeouts(plan, history, records)


def _look_at_timeouts(plan: Plan, history: History, records: list[Record]) -> None:
    own = {conn.timeout for conn in history.conns.values()} - {None}
    if any(it is not None and it > LONG_S for it in own):
        reached("core: a user has a timeout of hours")
    if plan.timeout_s > LONG_S:
        reached("core: the timeout is hours", rarely=True)
    if any(it.timeout != it.other_timeout for it in plan.gateways):
        reached("core: a gateway says another timeout on its next link")
    if plan.slots < 10:
        reached("core: the wheel has few slots")
    if plan.slots > 1_000:
        reached("core: the wheel has a thousand slots")
    hold = plan.hold_s
    if any(
        it.get("reason") == "gateway_lost" and it.get("silence", 0.0) >= hold
        for it in records
    ):
        reached("core: a hold runs out")


def _look_at_time(plan: Plan, history: History) -> None:
    if any(until - since < UNNOTICED_S for since, until in history.pauses):
        reached("core: a pause is too short to be noticed")
    if any(until - since > plan.timeout_s for since, until in history.pauses):
        reached("core: a pause is longer than the timeout")
    if any(seconds > DAY_S for _, seconds in history.sleeps):
        reached("core: the host sleeps for days", rarely=True)
    if history.sleeps:
        reached("core: the host sleeps")
    steps = [
        (at, (after_ms - before_ms) / 1000)
        for (_, before_ms), (at, after_ms) in pairwise(history.wall)
        if after_ms != before_ms and not any(at == slept for slept, _ in history.sleeps)
    ]
    if any(by_s > 0 for _, by_s in steps):
        reached("core: the wall clock is set ahead")
    if any(by_s < 0 for _, by_s in steps):
        reached("core: the wall clock is set back")
    if any(abs(by_s) < SOON_S for _, by_s in steps):
        reached("core: the wall clock is set by less than a second")
    if any(abs(by_s) > WEEK_S * 52 for _, by_s in steps):
        reached("core: the wall clock is set by more than a year")
    asked = _timer_waits(history)
    if any(since < at < due for at, _ in steps for since, due in asked):
        reached("core: the wall clock is set while a timer waits")
    if any(
        since < at < began.began_at < due
        for at, _ in steps
        for began in history.processes[1:]
        for since, due in asked
    ):
        reached(
            "core: the wall clock is set between an order for a timer and a restart"
        )
    if any(since < at < due for at, _ in history.sleeps for since, due in asked):
        reached("core: the host sleeps while a timer waits")
    if any(since < at < due for at in history.boots for since, due in asked):
        reached("core: the host boots while a timer waits")


def _timer_waits(history: History) -> list[tuple[float, float]]:
    return [
        (sent.at, sent.at + sent.frame[2])
        for link in history.links
        for sent in link.sent
        if sent.frame[0] == "after"
    ]


def _look_at_states(history: History) -> None:
    """What was found at the starts."""
    if any(not it.is_planned for it in history.processes[:-1]):
        reached("storage: a process goes on after a crash")
    if any(it.is_planned for it in history.processes[:-1]):
        reached("storage: a process goes on after a stop")
    if any(it.ended_at - it.began_at < SOON_S for it in history.processes):
        reached("storage: a process lives for less than a second")
    wall = [zero_ms for _, zero_ms in history.wall]
    for booted_at in history.boots:
        before = [it for (at, it) in history.wall if at < booted_at]
        after = [it for (at, it) in history.wall if at <= booted_at]
        if after[-1] > before[-1]:
            reached("storage: the host boots with a clock that is ahead")
        if after[-1] < before[-1]:
            reached("storage: the host boots with a clock that is behind")
        if after[-1] < before[-1] and after[-1] != wall[-1]:
            reached("storage: a clock that was behind after a boot is set right")
    if len(history.boots) > 1:
        reached("storage: the host boots twice")
    shown = [
        (link, max((it.record.get("seq", 0) for it in link.told), default=0))
        for link in history.links
    ]
    for put_back in history.put_backs:
        lost = [
            link
            for link, seq in shown
            if link.opened_at < put_back.at and seq > put_back.last
        ]
        if lost:
            reached("storage: an earlier state lacks records that were shown")
        else:
            reached("storage: an earlier state lacks no record")
        if put_back.last == 0:
            reached("storage: an earlier state has no record")
        if any(put_back.copied_at < it < put_back.at for it in history.boots):
            reached("storage: a state of before a boot is put back")
    if len(history.put_backs) > len({it.copied_at for it in history.put_backs}):
        reached("storage: one copy is put back twice", rarely=True)


def _look_at_readers(plan: Plan, history: History) -> None:
    logs = dict[tuple[str, str], list[LinkHistory]]()
    for link in history.links:
        if link.welcomed_at < inf:
            logs.setdefault(link.name_and_role, []).append(link)
        gaps = [it.record for it in link.told if it.record["kind"] == "gap"]
        if gaps and history.rotten:
            reached("storage: a reader is told of damaged records")
        if gaps and plan.retention_s < WEEK_S:
            reached("storage: a reader is told of records that are no longer kept")
    for links in logs.values():
        for before, link in pairwise(links):
            _look_at_return(before, link)
    if any(it.hello.get("fresh") for it in history.links):
        reached("core: a gateway comes back fresh")
    if any(
        it.record["kind"] == "offline" and it.record.get("reason") == "gateway_lost"
        for link in history.links
        if link.hello.get("fresh")
        for it in link.told
    ):
        reached("core: a gateway that came back fresh is told of its lost users")


def _look_at_return(before: LinkHistory, link: LinkHistory) -> None:
    """A name has a link again."""
    log, hello = link.welcome["log"], link.hello
    if log == before.welcome["log"] and link.sidecar > before.sidecar:
        reached("storage: a log keeps its id over a restart")
    if "after" in hello and hello["log"] != log and hello["after"]:
        reached("storage: a reader asks for a position in an earlier log")
        if hello["after"] >= link.welcome["next"]:
            reached("storage: a reader asks for what the log has lost")
        if link.told and link.told[0].record.get("seq") == 1:
            reached("storage: a reader of a log that is not known begins anew")
    if link.welcome.get("known") is False:
        reached("storage: a reader's name is forgotten")
    told = {it.record.get("seq") for it in before.told}
    if told & {it.record.get("seq") for it in link.told}:
        reached("storage: a record is delivered again")


def _look_at_faults(history: History, drawn: set[str]) -> None:
    """Faults that met."""
    troubles = history.troubles
    crashes = [it.began_at for it in history.crashes()]

    def met(what: str, others: list[float]) -> bool:
        return any(
            began < at < ended
            for began, ended, it in troubles
            if it == what
            for at in others
        )

    ends = [it.ended_at for it in history.processes[:-1]]
    if met("disk full", ends):
        reached("storage: a process ends while the disk is full")
    if met("disk stalls", ends):
        reached("storage: a process ends while the disk stalls")
    if met("disk fails", crashes):
        reached(
            "storage: a process goes on after a crash while the disk fails", rarely=True
        )
    if met("disk gets no threads", ends):
        reached("storage: a process ends while there are no threads", rarely=True)
    if "disk rots" in drawn and history.rotten:
        reached("storage: a page of the log is damaged")
    if any(what == "disk stalls" and b - a > 30 for a, b, what in troubles):
        reached("storage: the disk stalls for longer than any timeout")
    hangs = [(a, b) for _, a, b in history.hangs]
    if any(a < it < b for a, b in hangs for it in ends):
        reached("core: the sidecar restarts while a gateway hangs")
    if any(c < b and a < d and (a, b) != (c, d) for a, b in hangs for c, d in hangs):
        reached("core: two gateways hang at once")
    if any(a < c < b for a, b in hangs for c, _ in history.pauses):
        reached("core: the sidecar is paused while a gateway hangs")
    if any(a < it < b for a, b in hangs for it, _ in history.sleeps):
        reached("core: the host sleeps while a gateway hangs")


def _look_at_orders(plan: Plan, history: History) -> None:
    seconds = [it.seconds for it in plan.steps if isinstance(it, Remind)]
    if any(it > DAY_S for it in seconds):
        reached("core: a timer is asked for in days")
    runs: Counter[Any] = Counter(
        it["key"] for it in _records(history) if it["kind"] == "timer"
    )
    if any(count > 1 for count in runs.values()):
        reached("core: a timer is tried again")
    if any(count == 4 for count in runs.values()):
        reached("core: a timer is tried for the last time")
    visits = [it for it in plan.steps if isinstance(it, Visit)]
    if any(it.talks_for_s == 0 and not it.logs_out for it in visits):
        reached("core: a user says nothing after its login")
