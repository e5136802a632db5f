"""Was every promise kept? Asked of what was sent and seen, and of nothing else.

Nothing of the product is used here: not its wheel, not its rules of sessions. Where the
moment at which the sidecar read a frame matters, it lies between that at which the frame
was in the socket and that of the record.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import Any, Final, NamedTuple

from liveness.promises.run_history import (
    STAMP_S,
    Conn,
    History,
    LinkHistory,
    ListedSession,
    Record,
    Sent,
    Told,
)
from liveness.promises.run_terms import RunTerms
from liveness.promises.timer_checks import broken_timers

# Reads are gathered for 20 ms, and then it has 50.
PROMPT_S: Final = 0.020 + 0.050
# The log gathers for 50 ms. Then two commits of it, as long as the disk takes for one in a
# quiet hour, and a page of it read by one that is behind.
DELIVERED_S: Final = 0.050 + 0.050
# What the sidecar and a gateway make of one moment, by adding and taking away.
ROUNDING_S: Final = 1e-6
# So long after its link began or ended a gateway may still be taken for there, or away.
LINK_S: Final = 0.1
# A promise to ping may be kept late by as much again, and by this at least.
LEAST_LATE_S: Final = 1.0
# The longest that a gateway is given to say what it had collected.
SETTLE_S: Final = 2.0

# Which names are in use is noted at least this often.
NOTED_S: Final = 10.0

# Around a time in which somebody did not read; it then takes a moment to read all.
CALM_S: Final = 5.0

_SIGNS: Final = frozenset({"login", "keepalive", "message"})


def broken_promises(
    terms: RunTerms, history: History, *, real_s: float | None = None
) -> list[str]:
    """Every breach that can be found, in words; none if all promises were kept.

    Args:
        terms: What held in the run.
        history: What it was.
        real_s: Of a run in real time how much later than it happened something may have
            been noted. Whether anything was prompt is not asked of such a run.
    """
    return [*Checker(terms, history, real_s).check()]


def _records(link: LinkHistory) -> list[Told]:
    """What a link was told that is in the log."""
    return [told for told in link.told if told.record["kind"] != "gap"]


def _was_read_last(record: Record) -> bool:
    """Whether it says that an older connection's login came after the newer one's."""
    return record["kind"] == "moved" and "from_session" not in record


class _Event(NamedTuple):
    at: float
    link: LinkHistory
    frame: list[Any]


class Checker:
    """Holds one run against the promises.

    Args:
        terms: What held in the run.
        history: What it was.
        real_s: As for `broken_promises`.
    """

    def __init__(
        self, terms: RunTerms, history: History, real_s: float | None = None
    ) -> None:
        self.terms = terms
        self.history = history
        self._is_virtual = real_s is None
        self._late_s = real_s or 0.0
        self.log: dict[int, Record] = {}
        self.at: dict[int, float] = {}  # of each record, the moment of its decision
        self._ends: dict[int, float] = {}  # of sessions
        self._sessions: dict[str, list[Record]] = defaultdict(list)
        # By conn: when it was said of a login that it came of an older connection.
        self._told_older: dict[int, list[float]] = defaultdict(list)
        # By conn and by frame's name: when each was in a socket.
        self.events: dict[int, dict[str, list[_Event]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def check(self) -> Iterator[str]:
        """Look for breaches, the plainest first."""
        for fault in self.history.faults:
            yield f"the sidecar tells of a fault of its own: {fault}"
        for link in self.history.links:
            expected = {"replaced"}
            is_greedy = any(it.link is link for it in self.history.unread)
            if is_greedy or self._asked_for_too_much(link):
                expected.add("overloaded")
            for error in link.errors:
                if error["code"] not in expected:
                    yield f"{link.name} was refused: {error}"
        yield from self._unread_in_time()
        yield from self._one_log()
        if not self.log or len(self.log) != max(self.log):
            return  # all else would only repeat it
        self._gather_events()
        yield from self._sessions_end_once()
        yield from self._devices_counted()
        for record in self.log.values():
            if record["kind"] == "offline":
                yield from self._end(record)
            elif record["kind"] == "moved":
                yield from self._newer_wins(record)
        for link in self.history.links:
            yield from self._delivered(link)
            yield from self._covered(link)
            yield from self._listed(link)
        yield from self._all_delivered()
        yield from broken_timers(self.history, self.log, self.at)

    # --- the log (3, 4) -------------------------------------------------------

    def _one_log(self) -> Iterator[str]:
        """There is one record for each seq, whoever tells it, whenever."""
        history = self.history
        readers = [link for link in history.links if link.name == "reader"]
        if not readers or readers[-1].welcomed_at == inf:
            yield "nobody could read the log at the end"
            return
        kept = {it.record["seq"]: it.record for it in _records(readers[-1])}
        all_kept = range(min(kept, default=1), max(kept, default=0) + 1)
        rotten = history.rotten
        # What is damaged on the disk may still be in memory.
        if [it for it in kept if it not in rotten] != [
            it for it in all_kept if it not in rotten
        ]:
            yield f"4: the log has gaps: {[*kept]}"
        seen = dict(kept)
        for link in history.links:
            for at, record in _records(link):
                seq = record["seq"]
                # What the retention has let go is as whoever was told first has it.
                is_kept = seq not in rotten and (not kept or seq >= min(kept))
                there = kept.get(seq) if is_kept else seen.setdefault(seq, record)
                if there != record:
                    yield (
                        f"4: {record} was told to {link.name} at {at:.3f}, "
                        f"and the log has {there}"
                    )
        self.log = {seq: seen[seq] for seq in sorted(seen)}
        self.at = {seq: history.virtual(it["at"]) for seq, it in self.log.items()}
        moments = [self.at[seq] for seq in sorted(self.at)]
        for before, after in pairwise(moments):
            if after < before - STAMP_S:
                yield f"4: decided at {before:.3f} and then at {after:.3f}"

    def _sessions_end_once(self) -> Iterator[str]:
        """Every session ends once, and only the user's current one does."""
        current: dict[str, int] = {}  # by the text of the uid
        for seq, record in self.log.items():
            if record["kind"] == "timer":
                continue
            user = str(record["uid"])
            open_session = current.get(user)
            began = self.log.get(open_session or 0, record)
            keeps_name = record["kind"] == "offline" or _was_read_last(record)
            if keeps_name and repr(record["uid"]) != repr(began["uid"]):
                yield f"3: {record} of a session of {began['uid']!r}"
            if _was_read_last(record):
                self._told_older[record["from_conn"]].append(self.at[seq])
                if record["session"] != open_session:
                    yield f"6: {record} while session {open_session} is open"
                continue
            if record["kind"] != "online":
                self._ends.setdefault(open_session or 0, self.at[seq])
            if record["kind"] != "offline":
                self._sessions[user].append(record)
            ends = {"moved": "from_session", "offline": "session"}.get(record["kind"])
            if (None if ends is None else record[ends]) != open_session:
                yield f"3: {record} while session {open_session} is open"
            current[user] = seq
            if record["kind"] == "offline":
                del current[user]
        for user, session in current.items():
            yield f"3: session {session} of {user} never ended"

    def _devices_counted(self) -> Iterator[str]:
        """Every record has the number of its user's devices that are online after it."""
        separator = self.terms.device_separator
        online: dict[str, set[str]] = defaultdict(set)
        for record in self.log.values():
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
                yield f"devices: {record}, and its user has {counted}"

    # --- ends (1, 2, 5, 6) ----------------------------------------------------

    def _gather_events(self) -> None:
        for link in self.history.links:
            if link.role != "gateway":
                continue
            for at, frame in link.sent:
                if frame[0] not in _SIGNS | {"logout"}:
                    continue
                options = frame[2]
                conns = options["conn"]
                for conn in conns if isinstance(conns, list) else [conns]:
                    self.events[conn][str(frame[0])].append(_Event(at, link, frame))

    def _end(self, record: Record) -> Iterator[str]:
        conn = self.history.conns[record["conn"]]
        at = self.at[record["seq"]]
        if record["reason"] == "logout":
            if not any(it.at <= at + STAMP_S for it in self._sent(conn, "logout")):
                yield f"6: {record}, and nobody said so"
            return
        if record["reason"] == "gateway_lost" and self._came_back_fresh(conn, at):
            return
        yield from self._put_off(record, conn, at)
        least = min(self._timeouts(conn))
        if record["silence"] < least - STAMP_S:
            yield f"1: {record}, and its timeout is {least:g}"
        heard = self._heard_by(conn, at)
        signs = [it.at for it in heard]
        yield from self._never_early(record, heard, at, least)
        yield from self._whose_fault(record, conn, signs, at, least)
        yield from self._away_in_time(record, conn, signs, at)
        yield from self._prompt(record, conn, signs, at)

    def _never_early(
        self, record: Record, heard: list[_Event], at: float, least: float
    ) -> Iterator[str]:
        """A whole timeout that the sidecar ran passed since everything heard."""
        before = -inf
        own = self.history.conns[record["conn"]].timeout
        for sign, link, _ in heard:
            whole = least
            if sign == heard[-1].at:
                # That of the link that it came by, whatever a later hello says.
                of_link = link.hello.get("timeout", self.terms.timeout_s)
                whole = min(own or of_link, of_link)
            # What came when the user was due already need not be waited for.
            was_due = before > -inf and self._most_silence(before, sign) >= least
            silence_s = self._most_silence(sign, at)
            if not was_due and silence_s < whole - STAMP_S:
                yield (
                    f"1, 5: {record} at {at:.3f}, and of its connection something was "
                    f"in the socket at {sign:.3f}, {silence_s:.3f} s before"
                )
            before = sign
        for process in self.history.crashes():
            since = process.began_at
            is_restored = self.at[record["session"]] < since <= at
            if is_restored and self._most_silence(since, at) < least - STAMP_S:
                yield f"5: {record} at {at:.3f}, and a crash was at {since:.3f}"

    def _most_silence(self, since: float, until: float) -> float:
        """Seconds between two moments in which the sidecar may have run."""
        return self.history.ran(since, until) + self.history.stood_still(since, until)

    def _whose_fault(
        self, record: Record, conn: Conn, signs: list[float], at: float, least: float
    ) -> Iterator[str]:
        """Silence is said of who has a link and talks, `gateway_lost` of others."""
        # One that hangs may not have noticed that the process at the other end is gone.
        now = self.history.process_at(at)
        links = [
            it for it in self.history.gateway_links(conn.gateway) if it.sidecar == now
        ]
        if record["reason"] == "gateway_lost":
            slack = LINK_S + self._late_s
            is_there = any(
                it.welcomed_at <= at - slack and at + self._late_s <= it.ended_at
                for it in links
            )
            since = signs[-1] if signs else -inf
            hold = least + self.terms.hold_s - STAMP_S
            was_there = is_there and not self._was_put_off(conn, since + least, at)
            if was_there and self.history.ran(since, at) < hold:
                yield f"5: {record} at {at:.3f}, and its gateway was there"
            return
        slack = LINK_S + self._late_s
        if not any(it.opened_at <= at and at - slack <= it.ended_at for it in links):
            yield f"5: {record} at {at:.3f}, and its gateway was not there"
        late_s = self._late_by(conn.gateway)
        for name, began, ended in self.history.hangs:
            if name != conn.gateway or not self._host_is_calm(began - 1, at):
                continue
            # What it had sent is heard when it is read, which its own orders put off.
            if self._gave_orders(name, began - 1, at):
                continue
            # A link that it was about to make is made, and its hello is a sign of life.
            heard = [sent.at for it in links for sent in it.sent if sent.at <= at]
            mute_from = max([began, *heard]) + late_s + LINK_S
            if mute_from < at < ended:
                yield f"5: {record} at {at:.3f}, and its gateway hung from {began:.3f}"
            since = signs[-1] if signs else -inf
            # Which of its timeouts it was under is not looked at: the longest ends in the
            # hang, and the hold is over no sooner than that of the shortest.
            was_held = mute_from < since + max(self._timeouts(conn)) < ended - LINK_S
            fresh = min(ended + least, since + least + self.terms.hold_s - SETTLE_S)
            if was_held and ended <= at < fresh - STAMP_S:
                yield f"5: {record} at {at:.3f}, and it was held until {ended:.3f}"

    def _put_off(self, record: Record, conn: Conn, at: float) -> Iterator[str]:
        """Whatever its gateway does, nobody waits for it longer than the hold."""
        signs = [it.at for it in self._heard_by(conn, at)]
        if not signs or not self._is_virtual:
            return
        most = max(self._timeouts(conn)) + self.terms.hold_s + PROMPT_S + LINK_S
        if self.history.ran(signs[-1], at) > most and self._host_is_calm(signs[-1], at):
            yield f"5: {record} at {at:.3f}, and it was last heard at {signs[-1]:.3f}"

    def _away_in_time(
        self, record: Record, conn: Conn, signs: list[float], at: float
    ) -> Iterator[str]:
        """Whose gateway has gone is not held for it: it had a moment to come back."""
        links = [
            it for it in self.history.gateway_links(conn.gateway) if it.opened_at <= at
        ]
        if not (signs and links and self._is_virtual):
            return
        since = signs[-1] + min(self._timeouts(conn))
        due = max(signs[-1] + max(self._timeouts(conn)), links[-1].ended_at + SETTLE_S)
        is_calm = self._host_is_calm(signs[-1], at + LINK_S)
        if (
            at > due + PROMPT_S + LINK_S
            and is_calm
            and not self._was_put_off(conn, since, at)
        ):
            yield f"5: {record} at {at:.3f}, and its gateway went {at - due:.3f} s before"

    def _late_by(self, name: str) -> float:
        """After how long a gateway that says nothing has broken its promise."""
        ping = self.terms.gateways[name].ping
        return inf if ping is None else ping + max(ping, LEAST_LATE_S)

    def _gave_orders(self, gateway: str, since: float, until: float) -> bool:
        """Whether a gateway may have been left unread, as its orders filled the disk."""
        return any(
            what.startswith("gateway orders") and began < until and since < ended
            for began, ended, what in self.history.troubles_of.get(gateway, ())
        )

    def _asked_for_too_much(self, link: LinkHistory) -> bool:
        """Whether a link asked for a list that had no room on the disk."""
        asked = [sent.at for sent in link.sent if sent.frame[0] == "list"]
        return any(
            what == "disk full" and began - LINK_S <= at <= ended
            for began, ended, what in self.history.troubles
            for at in asked
        )

    def _was_put_off(self, conn: Conn, due: float, at: float) -> bool:
        """Whether its gateway may have been mute since a user was due, and heard again.

        Such a user has had its fresh timeout: it does not wait for a second absence.
        """
        gateway = self.terms.gateways[conn.gateway]
        # It is heard again with its next ping at the latest.
        heard_s = LINK_S + gateway.pings_every
        return not self._host_is_calm(due, at) or any(
            name == conn.gateway and due < ended + heard_s and ended < at
            for name, _began, ended in self.history.hangs
        )

    def _prompt(
        self, record: Record, conn: Conn, signs: list[float], at: float
    ) -> Iterator[str]:
        if not signs or not self._is_virtual:
            return
        began, ended = signs[-1] - LINK_S, at + DELIVERED_S + LINK_S
        if not self.history.is_calm(began, ended, conn.gateway):
            return
        late = at - signs[-1] - max(self._timeouts(conn))
        if late > PROMPT_S:
            yield f"2: {record} at {at:.3f}, {late:.3f} s late"
        for link in self.history.gateway_links(conn.gateway):
            if link.welcomed_at > began or link.ended_at < ended:
                continue
            told = [it.at for it in link.told if it.record["seq"] == record["seq"]]
            if not told or told[0] - at > DELIVERED_S:
                yield f"2: {record} at {at:.3f} was told at {told}"

    def _newer_wins(self, record: Record) -> Iterator[str]:
        """A session is displaced by a connection that may be newer, and by no other."""
        conns, at = self.history.conns, self.at[record["seq"]]
        new, old = conns[record["conn"]], conns[record["from_conn"]]
        if _was_read_last(record):
            yield from self._is_older(record, old, new, at)
            return
        ages = self._ages(new, at)
        if not ages:
            yield f"6: {record}, and nobody logged in"
            return
        lost = self.log.get(record["from_session"])
        if lost is not None and self._has_began(new, at) and self._is_exact(lost, at):
            if old.opened_at > new.opened_at + ROUNDING_S:
                yield f"6: {record}, and {old} began after {new}, as both had said"
            return
        # The sleeps of its host add to the age of a session over a restart; a time in which
        # the machine stood still adds to it, and not to the age that a gateway tells.
        if self.history.sleeps or self.history.stood_still(new.opened_at, at):
            return
        # In real time two clocks are read one after the other.
        slack = STAMP_S if self._is_virtual else LINK_S
        if old.opened_at > at - min(ages) + slack:
            yield f"6: {record}, and {old} is newer than {new}"

    def _is_older(
        self, record: Record, old: Conn, new: Conn, at: float
    ) -> Iterator[str]:
        """Who is to close its connection, as another has the user, has an older one."""
        if not self._ages(old, at):
            yield f"6: {record}, and nobody logged in"
        if old.opened_at > new.opened_at + ROUNDING_S:
            yield f"6: {record}, and {old} is newer than {new}"

    # --- delivery (4) ---------------------------------------------------------

    def _delivered(self, link: LinkHistory) -> Iterator[str]:
        """On each link all that concerns it follows, from where it had acknowledged."""
        if link.welcomed_at == inf or link.name == "reader":
            return
        yield from self._gaps(link)
        yield from self._ended_by_fresh(link)
        concerning = self._concerning(link)
        told = [it.record["seq"] for it in _records(link)]
        known = self.seen_before(link.opened_at)
        if link.welcome["next"] <= known:
            yield f"4: {link.name} is welcomed at {link.welcome['next']} after {known}"
        if not told:
            return
        first = bisect_left(concerning, told[0])
        if told != concerning[first : first + len(told)]:
            yield f"4: {link.name} was told {told} of {concerning}"
        base = self._position(link)
        if first > bisect_right(concerning, base):
            yield f"4: {link.name} had everything up to {base} and was told {told[0]}"
        after = link.hello.get("after", 0)
        if told[0] <= after:
            yield f"4: {link.name} asked for what is above {after}, was told {told[0]}"

    def _gaps(self, link: LinkHistory) -> Iterator[str]:
        """A gap is told of what concerned the reader and is no longer kept."""
        for at, gap in link.told:
            if gap["kind"] != "gap":
                continue
            lost = [
                seq
                for seq in self._in_scope(link)
                if gap["first"] <= seq < gap["until"]
            ]
            rotten = self.history.rotten.intersection(range(gap["first"], gap["until"]))
            if not lost and not rotten:
                yield f"4: {link.name} was told {gap}, which hides nothing from it"
            lost = [seq for seq in lost if seq not in rotten]
            if rotten and not lost:
                continue
            age = self.history.passed(self.at[lost[-1]], at) if lost else inf
            if age < self.terms.retention_s:
                yield f"4: {link.name} was told {gap} {age:.3f} s after its last record"

    def _ended_by_fresh(self, link: LinkHistory) -> Iterator[str]:
        """A gateway that comes back fresh holds nothing once it is welcomed."""
        if not link.hello.get("fresh"):
            return
        for session in self._online_at(link.welcome["next"] - 1):
            conn = self.history.conns[session.conn or 0]
            if session.gateway == link.name and conn.life < link.life:
                yield f"4: {link.name} is welcomed fresh, and {session} is open"

    def _is_forgotten(self, link: LinkHistory) -> bool:
        """Whether a name was away for so long that it is taken for a new one.

        Or came back fresh on a link of which it never heard anything.
        """
        for it in self.history.links:
            is_earlier = it.name_and_role == link.name_and_role and it is not link
            if is_earlier and it.hello.get("fresh") and it.welcomed_at == inf:
                return True
        if self.terms.retention_s > self.history.passed(0.0, self.history.ended_at):
            return False
        used = [
            (it.welcomed_at, self._used_until(it))
            for it in self.history.links
            if it.name_and_role == link.name_and_role
            and it.number < link.number
            and it.welcomed_at < inf  # else it may never have been read
        ]
        if link.role == "gateway":
            # It is kept for as long as there is something for it to read.
            decided = [self.at[seq] for seq in self._in_scope(link)]
            used += [(at, at) for at in decided if at < link.welcomed_at]
        # A use after it was forgotten does not bring its cursor back.
        used_at, unused_s = min(used, default=(0.0, 0.0))[0], 0.0
        for began, ended in sorted([*used, (link.welcomed_at, inf)]):
            unused_s = max(unused_s, self.history.passed(used_at, began))
            used_at = max(used_at, ended)
        return unused_s >= self.terms.retention_s

    def _used_until(self, link: LinkHistory) -> float:
        """When the name of a link was used last, as far as the next process can know."""
        process = self.history.processes[link.sidecar]
        ended = min(link.ended_at, process.ended_at)
        if not process.is_planned:
            for began, until, what in self.history.troubles:
                if what.startswith("disk") and began < ended <= until + NOTED_S:
                    ended = max(began, link.welcomed_at)
        return ended

    def _listed(self, link: LinkHistory) -> Iterator[str]:
        """Whoever is listed is whom the log has online at that seq."""
        for seq, listed in link.lists:
            there = set(self._online_at(seq))
            if link.role == "gateway":
                there = {it for it in there if it.gateway == link.name}
            told = set(listed)
            if told != there or len(told) != len(listed):
                yield f"4: {link.name} was listed {told ^ there} wrong at {seq}"

    def _online_at(self, until: int) -> Iterator[ListedSession]:
        sessions = dict[int, ListedSession]()
        for seq, it in self.log.items():
            if seq > until:
                break
            if it["kind"] == "offline":
                del sessions[it["session"]]
            elif it["kind"] != "timer" and not _was_read_last(it):
                sessions.pop(it.get("from_session", 0), None)
                sessions[seq] = ListedSession(it["uid"], it["gateway"], seq, it["conn"])
        yield from sessions.values()

    def _all_delivered(self) -> Iterator[str]:
        """At the end everyone has been told everything."""
        last = {link.name_and_role: link for link in self.history.links}
        for link in last.values():
            if link.name == "reader" or link.name.startswith("greedy"):
                continue  # they do not stay until the end
            concerning = self._concerning(link)
            due = [seq for seq in concerning if seq > self._position(link)]
            told = [it.record["seq"] for it in _records(link)]
            if due and (not told or told[-1] != due[-1]):
                yield f"4: at the end {link.name} lacks {due[-1]}, has {told[-3:]}"

    def seen_before(self, at: float) -> int:
        """The newest seq that anybody had been told before a moment."""
        seen = 0
        for link in self.history.links:
            upto = bisect_left(link.told, at, key=lambda it: it.at)
            if upto:
                seen = max(seen, link.told[upto - 1].record["seq"])
        return seen

    def _concerning(self, link: LinkHistory) -> list[int]:
        """What a link is to be told: what its reader asked for, but for gaps."""
        gaps = [it.record for it in link.told if it.record["kind"] == "gap"]
        return [
            seq
            for seq in self._of_interest(link)
            if not any(gap["first"] <= seq < gap["until"] for gap in gaps)
        ]

    def _of_interest(self, link: LinkHistory) -> list[int]:
        in_scope = self._in_scope(link)
        if link.role == "watcher":
            return in_scope
        return [seq for seq in in_scope if self.log[seq]["kind"] != "online"]

    def _in_scope(self, link: LinkHistory) -> list[int]:
        """Records that concern a link, of whatever kind."""
        if link.role == "watcher":
            return [*self.log]
        return [
            seq
            for seq, it in self.log.items()
            if link.name in (it["gateway"], it.get("from"))
        ]

    def _position(self, link: LinkHistory) -> int:
        """The highest seq at which a link may begin without losing anything."""
        position = -1
        for it in self.history.links:
            if it.name_and_role != link.name_and_role or it.number > link.number:
                continue
            is_first = position < 0
            is_anew = is_first or it.hello.get("fresh") or self._is_forgotten(it)
            if it.welcomed_at < inf and is_anew:
                position = max(position, it.welcome["next"] - 1)
            if it is not link:
                acks = [int(frame[1]) for _, frame in it.sent if frame[0] == "ack"]
                if not it.hello.get("ack", True):
                    acks = [told.record["seq"] for told in it.told]
                position = max([position, *acks])
        return position

    def _covered(self, link: LinkHistory) -> Iterator[str]:
        """What a pong covers is in the log, and stays there."""
        reached = 0
        asked = [n for n, it in enumerate(link.sent) if it.frame[0] == "ping"]
        for (at, number), place in zip(link.pongs, asked, strict=False):
            if link.sent[place].frame[1] != number:
                yield f"4: {link.name} was answered {number} out of its turn"
            for sent in link.sent[reached:place]:
                yield from self._took_effect(link, sent, at)
            reached = place

    def _took_effect(
        self, link: LinkHistory, sent: Sent, covered_at: float
    ) -> Iterator[str]:
        kind = sent.frame[0]
        if kind not in ("login", "logout") or not isinstance(sent.frame[1], str | int):
            return
        conn = self.history.conns[sent.frame[2]["conn"]]
        open_then = [
            it
            for it in self._sessions[str(conn.uid)]
            if self.at[it["seq"]] <= covered_at + STAMP_S
            and self._ends.get(it["seq"], inf) >= sent.at - STAMP_S - self._late_s
        ]
        own = [it for it in open_then if it["conn"] == conn.conn]
        if kind == "login":
            # If it changed nothing, a connection that may be newer was there; where both
            # had said when they began, that is told.
            is_told = any(
                sent.at - STAMP_S - self._late_s <= at <= covered_at + STAMP_S
                for at in self._told_older[conn.conn]
            )
            says_began = self._has_began(conn, covered_at)
            may_be_newer = any(
                self._starts(it) >= conn.opened_at
                and not (says_began and self._is_exact(it, covered_at))
                for it in open_then
            )
            if not (own or is_told or may_be_newer or self.history.sleeps):
                yield f"4: login of {conn} was covered at {covered_at:.3f}, and lost"
            return
        for it in own:
            ended_at = self._ends.get(it["seq"], inf)
            is_earlier = self.at[it["seq"]] <= sent.at and it["gateway"] == link.name
            if is_earlier and ended_at > covered_at + STAMP_S:
                yield f"4: logout of {conn} covered at {covered_at:.3f}, ends {ended_at}"

    def _starts(self, session: Record) -> float:
        """The latest that the connection of a session may be taken to have begun."""
        at, conn = self.at[session["seq"]], self.history.conns[session["conn"]]
        ages = self._ages(conn, at)
        if session["reason"] != "login" or not ages:
            return at + STAMP_S
        if self._is_exact(session, at):
            return conn.opened_at + 2 * STAMP_S
        return at - min(ages) + 2 * STAMP_S

    # --- what is asked of the history -----------------------------------------

    def _sent(self, conn: Conn, *kinds: str) -> list[_Event]:
        return [it for kind in kinds for it in self.events[conn.conn][kind]]

    def _ages(self, conn: Conn, at: float) -> list[float]:
        """The ages that its logins gave it which were written by then.

        When they were written follows from them, and not from when they are noted to
        have been in the socket, which in real time is later.
        """
        ages = [it.frame[2]["age"] for it in self._sent(conn, "login")]
        return [age for age in ages if conn.opened_at + age <= at + STAMP_S]

    def _is_exact(self, session: Record, until: float) -> bool:
        """Whether its beginning was told on the host's clock, to the process of then."""
        began, conn = self.at[session["seq"]], self.history.conns[session["conn"]]
        return (
            session["reason"] == "login"
            and self._has_began(conn, began)
            and self.history.process_at(began) == self.history.process_at(until)
        )

    def _has_began(self, conn: Conn, until: float) -> bool:
        """Whether every login of a connection said when it began, so as to be used."""
        logins = [it for it in self._sent(conn, "login") if it.at <= until + STAMP_S]
        return bool(logins) and all(
            it.link.welcome.get("began") and "began" in it.frame[2] for it in logins
        )

    def _timeouts(self, conn: Conn) -> list[float]:
        """Its own, and those that hold after a sign of life began its session."""
        of = self.terms.timeouts_of
        return [*of(conn.gateway, conn.timeout), *of(conn.gateway, None)]

    def _heard_by(self, conn: Conn, at: float) -> list[_Event]:
        """Signs of life in sockets that have been read since, in order, until *at*."""
        now = self.history.process_at(at)
        found = [
            it
            for it in self._sent(conn, *_SIGNS)
            if it.at <= at - self._late_s and self._was_read(it, now)
        ]
        return sorted(found, key=lambda it: it.at)

    def _unread_in_time(self) -> Iterator[str]:
        """Who reads in time is answered, and who does not is ended."""
        terms = self.terms
        for it in self.history.unread:
            if not self._host_is_calm(it.since - CALM_S, it.until + CALM_S):
                continue
            took = it.until - it.since
            is_whole = it.answers == it.asked
            alone = len(self.history.unread) == 1
            if took < terms.unread_s - 1 and alone and not is_whole:
                yield f"{it.link.name} read after {took:.1f} s, and was not answered"
            if took > terms.unread_s + 3 and is_whole:
                yield f"{it.link.name} read nothing for {took:.1f} s, and was not ended"

    def _was_read(self, event: _Event, now: int) -> bool:
        link, processes = event.link, self.history.processes
        if link.errors and not self._is_before_replacement(event):
            return False
        # By a process that has ended only if it took its time to end.
        then = link.sidecar
        return all(
            it.is_planned and event.at < it.asked_at for it in processes[then:now]
        )

    def _is_before_replacement(self, event: _Event) -> bool:
        """Whether a link was ended only as a newer one said hello, after that."""
        later = [
            it.opened_at
            for it in self.history.gateway_links(event.link.name)
            if it.number > event.link.number
        ]
        codes = {error["code"] for error in event.link.errors}
        return codes == {"replaced"} and bool(later) and event.at < later[0]

    def _came_back_fresh(self, conn: Conn, at: float) -> bool:
        return any(
            it.hello.get("fresh")
            and it.life > conn.life
            and it.opened_at <= at + STAMP_S
            for it in self.history.gateway_links(conn.gateway)
        )

    def _host_is_calm(self, since: float, until: float) -> bool:
        return not any(
            what.startswith(("sidecar", "disk", "gateway floods"))
            and began < until
            and since < ended
            for began, ended, what in self.history.troubles
        )
