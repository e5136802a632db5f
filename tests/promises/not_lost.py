"""4, not lost: a record is in the log, and is delivered in order until acknowledged."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import Final

from tests.promises.delivery_checks import deliveries
from tests.promises.run_evidence import RunEvidence, records_of
from tests.promises.run_history import STAMP_S, LinkHistory, Record, Sent

# Which names are in use is noted at least this often.
NOTED_S: Final = 10.0


def not_lost(run: RunEvidence) -> Iterator[str]:
    """Records stay in the log, and every reader gets them."""
    yield from _one_log(run)
    if not run.is_whole:
        return
    for link in run.history.links:
        if not run.history.put_backs_after(link.opened_at):
            yield from _delivered(run, link)
            yield from _covered(run, link)
            yield from _listed(run, link)
    yield from _all_delivered(run)
    yield from (it.what for it in deliveries(run))


def _one_log(run: RunEvidence) -> Iterator[str]:
    """There is one record for each seq, on whatever link it comes."""
    if run.reader is None:
        yield "no link could read the log at the end"
        return
    kept = run.kept
    # Records damaged on the disk may still be in memory.
    missing = {*range(min(kept, default=1), max(kept, default=0))} - {*kept}
    if missing - run.history.rotten or [*kept] != sorted(kept):
        yield f"the log has gaps: {[*kept]}"
    for link in run.history.links:
        for at, record in records_of(link):
            there = run.versions.get(run.version(link, record["seq"]))
            if there != record:
                got = f"{record} was delivered to {link.name} at {at:.3f}"
                yield f"{got}, and the log has {there}"
    for before, after in pairwise(run.at.values()):
        if after < before - STAMP_S:
            yield f"decided at {before:.3f} and then at {after:.3f}"


def _delivered(run: RunEvidence, link: LinkHistory) -> Iterator[str]:
    """On each link all that concerns it follows, from where it had acknowledged."""
    if link.welcomed_at == inf:
        return
    yield from _gaps(run, link)
    if link.name == "reader":
        return
    yield from _ended_by_fresh(run, link)
    known, names = link.welcome.get("known"), _earlier(run, link)
    is_kept = any(it.welcomed_at < inf for it in names) and not _is_forgotten(run, link)
    # Which names a copy that was put back has is not known.
    is_wrong = is_kept if known is False else known and not names
    if is_wrong and not run.history.put_backs:
        yield f"{link.name} was welcomed as known: {known}"
    concerning = _concerning(run, link)
    got = [it.record["seq"] for it in records_of(link)]
    seen = _seen_before(run, link.opened_at)
    if link.welcome["next"] <= seen:
        yield f"{link.name} is welcomed at {link.welcome['next']} after {seen}"
    if not got:
        return
    first = bisect_left(concerning, got[0])
    if got != concerning[first : first + len(got)]:
        yield f"{link.name} got {got} of {concerning}"
    base = _position(run, link)
    if first > bisect_right(concerning, base):
        yield f"{link.name} had everything up to {base} and got {got[0]}"
    after = _common_until(run, link)
    if got[0] <= after:
        yield f"{link.name} asked for what is above {after}, got {got[0]}"


def _common_until(run: RunEvidence, link: LinkHistory) -> int:
    """Up to where the log that a reader asks for is that of its sidecar."""
    after, log = int(link.hello.get("after", 0)), link.hello.get("log")
    if log == link.welcome["log"]:
        return after
    of_log = [it.opened_at for it in run.history.links if it.welcome.get("log") == log]
    began = min(of_log, default=-inf)
    for put_back in run.history.put_backs:
        if began < put_back.at < link.opened_at:
            # What is laid out knows the ids that it had.
            after = min(after, put_back.last) if began < put_back.copied_at else 0
    return after


def _gaps(run: RunEvidence, link: LinkHistory) -> Iterator[str]:
    """A gap stands for what concerned the reader and is no longer kept."""
    for at, gap in link.delivered:
        if gap["kind"] != "gap":
            continue
        hidden = {*range(gap["first"], gap["until"])}
        lost, rotten = hidden.intersection(_in_scope(run, link)), run.history.rotten
        # What is not kept may have concerned a name that is new here, and was elsewhere.
        is_new = not link.welcome.get("known", True) and "after" in link.hello
        if not (lost or hidden & rotten or is_new):
            yield f"{link.name} got {gap}, which hides nothing from it"
        if lost := lost - rotten:
            age = run.history.passed(run.at[max(lost)], at)
            if age < run.plan.retention_s:
                yield f"{link.name} got {gap} {age:.3f} s after its last record"


def _ended_by_fresh(run: RunEvidence, link: LinkHistory) -> Iterator[str]:
    """A gateway that comes back fresh holds nothing once it is welcomed."""
    if not link.hello.get("fresh"):
        return
    for session in run.online_at(link.welcome["next"] - 1):
        conn = run.history.conns[session.conn or 0]
        if session.gateway == link.name and conn.life < link.life:
            yield f"{link.name} is welcomed fresh, and {session} is open"


def _earlier(run: RunEvidence, link: LinkHistory) -> list[LinkHistory]:
    """The links before it of its name and role."""
    return [
        it
        for it in run.history.links
        if it.name_and_role == link.name_and_role and it.number < link.number
    ]


def _is_forgotten(run: RunEvidence, link: LinkHistory) -> bool:
    """Whether a name was away for so long that it counts as a new one.

    Or came back fresh on a link that it never got an answer on.
    """
    earlier = _earlier(run, link)
    if any(it.hello.get("fresh") and it.welcomed_at == inf for it in earlier):
        return True
    if run.plan.retention_s > run.history.passed(0.0, run.history.ended_at):
        return False
    used = [
        (it.welcomed_at, _used_until(run, it))
        for it in earlier
        if it.welcomed_at < inf  # else it may never have been read
    ]
    if link.role == "gateway":
        # It is kept for as long as there is something for it to read.
        decided = [run.at[seq] for seq in _in_scope(run, link)]
        used += [(at, at) for at in decided if at < link.welcomed_at]
    # A use after it was forgotten does not bring its cursor back.
    used_at, unused_s = min(used, default=(0.0, 0.0))[0], 0.0
    for began, ended in sorted([*used, (link.welcomed_at, inf)]):
        unused_s = max(unused_s, run.history.passed(used_at, began))
        used_at = max(used_at, ended)
    return unused_s >= run.plan.retention_s


def _used_until(run: RunEvidence, link: LinkHistory) -> float:
    """When the name of a link was used last, as far as the next process can know."""
    process = run.history.processes[link.sidecar]
    ended = min(link.ended_at, process.ended_at)
    if not process.is_planned:
        for began, _, _ in run.history.troubles_in(ended - NOTED_S, ended, "disk"):
            ended = min(ended, max(began, link.welcomed_at))
    return ended


def _listed(run: RunEvidence, link: LinkHistory) -> Iterator[str]:
    """The listed users are those that the log has online at that seq."""
    for seq, listed in link.lists:
        there, found = run.online_at(seq), set(listed)
        if link.role == "gateway":
            there = {it for it in there if it.gateway == link.name}
        if found != there or len(found) != len(listed):
            yield f"{link.name} was listed {found ^ there} wrong at {seq}"


def _all_delivered(run: RunEvidence) -> Iterator[str]:
    """At the end every reader has got everything."""
    last = {link.name_and_role: link for link in run.history.links}
    for link in last.values():
        if link.name == "reader" or link.name.startswith("greedy"):
            continue  # they do not stay until the end
        concerning = _concerning(run, link)
        due = [seq for seq in concerning if seq > _position(run, link)]
        got = [it.record["seq"] for it in records_of(link)]
        if due and (not got or got[-1] != due[-1]):
            yield f"at the end {link.name} lacks {due[-1]}, has {got[-3:]}"


def _seen_before(run: RunEvidence, at: float) -> int:
    """The newest seq that was delivered before a moment, and that was kept."""
    seen = 0
    for link in run.history.links:
        lost = run.history.put_backs_after(link.opened_at)
        if lost and lost[0].at < at:
            continue
        upto = bisect_left(link.delivered, at, key=lambda it: it.at)
        if upto:
            seen = max(seen, link.delivered[upto - 1].record["seq"])
    return seen


def _concerning(run: RunEvidence, link: LinkHistory) -> list[int]:
    """The records to deliver on a link: the requested ones, without gaps."""
    gaps = [it.record for it in link.delivered if it.record["kind"] == "gap"]
    return [
        seq
        for seq in _in_scope(run, link)
        if (link.role == "watcher" or run.log[seq]["kind"] != "online")
        and not any(gap["first"] <= seq < gap["until"] for gap in gaps)
    ]


def _in_scope(run: RunEvidence, link: LinkHistory) -> list[int]:
    """Records that concern a link, of whatever kind."""
    if link.role == "watcher":
        return [*run.log]
    return [
        seq
        for seq, it in run.log.items()
        if link.name in (it["gateway"], it.get("from"))
    ]


def _position(run: RunEvidence, link: LinkHistory) -> int:
    """The highest seq at which a link may begin without losing anything."""
    position, put_backs = -1, [*run.history.put_backs]
    first_at = inf
    for it in (*_earlier(run, link), link):
        while put_backs and put_backs[0].at < it.opened_at:
            copied_at, _, last = put_backs.pop(0)
            # A name that came after the copy was made is a new one.
            position = min(position, last) if first_at < copied_at else -1
        first_at = min(first_at, it.welcomed_at)
        if it.welcomed_at < inf:
            if position < 0 or it.hello.get("fresh") or _is_forgotten(run, it):
                position = max(position, it.welcome["next"] - 1)
            # A gateway's `after` acknowledges what its last link was too short for.
            position = max(position, _common_until(run, it))
        if it is not link:
            acks = [int(frame[1]) for _, frame in it.sent if frame[0] == "ack"]
            if not it.hello.get("ack", True):
                acks = [delivered.record["seq"] for delivered in it.delivered]
            position = max([position, *acks])
    return position


def _covered(run: RunEvidence, link: LinkHistory) -> Iterator[str]:
    """Everything before a pong is in the log, and stays there."""
    reached = 0
    asked = [n for n, it in enumerate(link.sent) if it.frame[0] == "ping"]
    for (at, number), place in zip(link.pongs, asked, strict=False):
        if link.sent[place].frame[1] != number:
            yield f"{link.name} was answered {number} out of its turn"
        for sent in link.sent[reached:place]:
            yield from _took_effect(run, link, sent, at)
        reached = place


def _took_effect(
    run: RunEvidence, link: LinkHistory, sent: Sent, covered_at: float
) -> Iterator[str]:
    kind = sent.frame[0]
    if kind not in ("login", "logout") or not isinstance(sent.frame[1], str | int):
        return
    conn = run.history.conns[sent.frame[2]["conn"]]
    since = sent.at - STAMP_S - run.late_s
    open_then = [
        it
        for it in run.sessions[str(conn.uid)]
        if run.at[it["seq"]] <= covered_at + STAMP_S and run.ended_at(it) >= since
    ]
    own = [it for it in open_then if it["conn"] == conn.conn]
    if kind == "login":
        # If it changed nothing, a connection that may be newer was there; where both
        # had said when they began, a record says so.
        older_at = run.older_at[conn.conn]
        is_logged = any(since <= at <= covered_at + STAMP_S for at in older_at)
        says_began = run.has_began(conn, covered_at)
        may_be_newer = any(
            (
                _starts(run, it) >= conn.opened_at
                or run.history.may_lose_time(run.at[it["seq"]], covered_at)
            )
            and not (says_began and run.is_exact(it, covered_at))
            for it in open_then
        )
        if not (own or is_logged or may_be_newer or run.history.sleeps):
            yield f"login of {conn} was covered at {covered_at:.3f}, and lost"
        return
    for it in own:
        is_earlier = run.at[it["seq"]] <= sent.at and it["gateway"] == link.name
        if is_earlier and run.ended_at(it) > covered_at + STAMP_S:
            yield f"logout of {conn} covered at {covered_at:.3f} does not end {it}"


def _starts(run: RunEvidence, session: Record) -> float:
    """The latest that the connection of a session may be taken to have begun."""
    at, conn = run.at[session["seq"]], run.history.conns[session["conn"]]
    ages = run.ages(conn, at)
    if session["reason"] != "login" or not ages:
        return at + STAMP_S
    if run.is_exact(session, at):
        return conn.opened_at + 2 * STAMP_S
    return at - min(ages) + 2 * STAMP_S
