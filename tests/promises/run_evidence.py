"""The evidence of a run: its log, and what had been heard of a user at each decision.

It only gathers; the promises judge. Where the moment at which the sidecar read a frame
matters, it lies between that at which the frame was in the socket and that of the record.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, Final, NamedTuple

from liveness.lab.common.promises import Breach, SessionLog, was_read_last
from tests.promises.run_history import (
    STAMP_S,
    Conn,
    Delivered,
    History,
    LinkHistory,
    ListedSession,
    Record,
)
from tests.simulation.plan import Plan

# So long after its link began or ended a gateway may still be taken for there, or away.
LINK_S: Final = 0.1
# The longest that a gateway is given to say what it had collected.
SETTLE_S: Final = 2.0

# Its own orders that wait for the disk keep a gateway unread.
ORDERS: Final = "gateway orders"

_SIGNS: Final = frozenset({"login", "keepalive", "message"})


class SentEvent(NamedTuple):
    """An event of a connection: its moment, and the link that it was written to."""

    at: float
    link: LinkHistory
    frame: list[Any]


class Recent(NamedTuple):
    """An event of a user less than a whole timeout before it was judged."""

    at: float
    silence_s: float  # in which the sidecar may have run
    whole_s: float


class Silence(NamedTuple):
    """The facts about a session that ended by silence."""

    record: Record
    conn: Conn
    at: float
    least: float  # the whole timeouts that may hold
    most: float  # with what the storm guard may hold a user
    heard_at: float  # when what was heard of it last was in a socket; or -inf
    recent: list[Recent]


def records_of(link: LinkHistory) -> list[Delivered]:
    """The records that a link got."""
    return [it for it in link.delivered if it.record["kind"] != "gap"]


class RunEvidence:
    """The facts about one run.

    Args:
        plan: Its settings say what held in it.
        history: The run's history.
        real_s: As for `broken_promises`.
    """

    def __init__(
        self, plan: Plan, history: History, real_s: float | None = None
    ) -> None:
        self.plan = plan
        self.history = history
        self.is_virtual = real_s is None
        self.late_s = real_s or 0.0
        self.kept: dict[int, Record] = {}  # what the log has at the end, by seq
        self.log: dict[int, Record] = {}  # with what the retention has let go
        # All records that were delivered, by their `version`.
        self.versions: dict[tuple[int, int], Record] = {}
        self.at: dict[int, float] = {}  # of each record, the moment of its decision
        self.ends: dict[int, int] = {}  # of sessions, by seq: that of the end
        self.sessions: dict[str, list[Record]] = defaultdict(list)
        # By conn: when a record said that its login is that of an older connection.
        self.older_at: dict[int, list[float]] = defaultdict(list)
        # By conn and by frame's name: when each was in a socket.
        self.events: dict[int, dict[str, list[SentEvent]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._of_sessions: list[Breach] = []  # what the log by itself breaks
        self._gather_log()
        self.is_whole = bool(self.log) and len(self.log) == max(self.log)
        self.silences: list[Silence] = []
        if self.is_whole:
            self._gather_events()
            self._gather_sessions()
            self.silences += self._gather_silences()

    def log_breaches(self, promise: int) -> list[str]:
        """The promises that the log alone breaks."""
        return [it.what for it in self._of_sessions if it.promise == promise]

    # --- gathering ------------------------------------------------------------

    @property
    def reader(self) -> LinkHistory | None:
        """The link that read the whole log at the end; None if none could."""
        readers = [link for link in self.history.links if link.name == "reader"]
        return readers[-1] if readers and readers[-1].welcomed_at < inf else None

    def version(self, link: LinkHistory, seq: int) -> tuple[int, int]:
        """What names a record of a link: with 0, unless it was lost after that.

        Else with how often an earlier state was put back after that.
        """
        put_backs = self.history.put_backs_after(link.opened_at)
        return len(put_backs) if any(it.last < seq for it in put_backs) else 0, seq

    def _gather_log(self) -> None:
        if self.reader is None:
            return
        self.kept = {it.record["seq"]: it.record for it in records_of(self.reader)}
        self.versions = {(0, seq): record for seq, record in self.kept.items()}
        delivered_at, oldest = (
            defaultdict[int, float](lambda: inf),
            min(self.kept, default=0),
        )
        for link in self.history.links:
            for at, record in records_of(link):
                seq = record["seq"]
                version = times_lost, _ = self.version(link, seq)
                # What the log has no more is as it was delivered first.
                if times_lost or seq < oldest or seq in self.history.rotten:
                    self.versions.setdefault(version, record)
                if not times_lost:
                    delivered_at[seq] = min(delivered_at[seq], at)
        log = sorted(seq for times_lost, seq in self.versions if not times_lost)
        self.log = {seq: self.versions[0, seq] for seq in log}
        until = self.history.ended_at
        for seq in reversed(log):
            until = min(until, delivered_at[seq])
            self.at[seq] = until = self.history.virtual(self.log[seq]["at"], until)
        self.at = dict(reversed(self.at.items()))

    def _gather_sessions(self) -> None:
        sessions = SessionLog()
        for seq, record in self.log.items():
            if record["kind"] == "timer":
                continue
            user = str(record["uid"])
            before = sessions.open.get(user)
            self._of_sessions += sessions.take(record)
            if was_read_last(record):
                self.older_at[record["from_conn"]].append(self.at[seq])
                continue
            if record["kind"] != "online" and before is not None:
                self.ends.setdefault(before["seq"], seq)
            if record["kind"] != "offline":
                self.sessions[user].append(record)
        self._of_sessions += [
            Breach(3, f"session {began['seq']} of {user} never ended")
            for user, began in sessions.open.items()
            if not self._may_go_on(began)
        ]

    def _may_go_on(self, session: Mapping[str, Any]) -> bool:
        """Whether the end of a session may be due after that of the run."""
        conn, until = self.history.conns[session["conn"]], self.history.ended_at
        heard = self.heard_by(conn, until)
        since = [self.at[session["seq"]], self.history.processes[-1].began_at]
        since += [it.at for it in heard]
        held_s = self.plan.hold_s + self.plan.guard_hold_s + LINK_S
        # While the disk takes nothing it may not read, and that is no silence.
        waited_s = self.history.decided(max(since), until)
        links = self._links_of(conn, heard, until)
        return waited_s <= max(self._timeouts(session, conn, links)) + held_s

    def _gather_silences(self) -> Iterator[Silence]:
        for record in self.log.values():
            if record["kind"] != "offline" or record["reason"] == "logout":
                continue
            conn, at = self.history.conns[record["conn"]], self.at[record["seq"]]
            if record["reason"] == "gateway_lost" and self._came_back_fresh(conn, at):
                continue
            heard = recent = self.heard_by(conn, at)
            session = self.log[record["session"]]
            links = self._links_of(conn, heard, at)
            timeouts = self._timeouts(session, conn, links)
            least, most = min(timeouts), max(timeouts)
            # Its users are held only so long for what is not read as it orders too much.
            held_from = at - least - self.plan.hold_s
            is_lost = record["reason"] == "gateway_lost"
            if is_lost and self.gave_orders(conn.gateway, held_from, at):
                recent = []
            yield Silence(
                record=record,
                conn=conn,
                at=at,
                least=least,
                most=most + self.plan.guard_hold_s,
                heard_at=heard[-1].at if heard else -inf,
                recent=[*self._recent(session, conn, recent, at)],
            )

    def _recent(
        self, session: Record, conn: Conn, heard: list[SentEvent], at: float
    ) -> Iterator[Recent]:
        links = self.history.gateway_links(conn.gateway)
        before, shortest = -inf, min(self._timeouts(session, conn, links))
        for sign, link, _ in heard:
            whole = shortest
            if sign == heard[-1].at:  # whatever a later hello says
                whole = min(self._timeouts(session, conn, [link]))
            # What came when the user was due already need not be waited for.
            was_due = before > -inf and self.most_silence(before, sign) >= shortest
            silence_s = self.most_silence(sign, at)
            if not was_due and silence_s < whole - STAMP_S:
                yield Recent(sign, silence_s, whole)
            before = sign

    def _gather_events(self) -> None:
        for link in self.history.links:
            for at, frame in link.sent if link.role == "gateway" else ():
                if frame[0] in _SIGNS | {"logout"}:
                    event, conns = SentEvent(at, link, frame), frame[2]["conn"]
                    for conn in conns if isinstance(conns, list) else [conns]:
                        self.events[conn][str(frame[0])].append(event)

    def most_silence(self, since: float, until: float) -> float:
        """Seconds between two moments in which the sidecar may have run."""
        return self.history.ran(since, until) + self.history.stood_still(since, until)

    def was_put_off(self, conn: Conn, due: float, at: float) -> bool:
        """Whether its gateway may have been mute since a user was due, and heard again.

        Such a user has had its fresh timeout: it does not wait for a second absence.
        """
        sent_at = [
            sent.at
            for link in self.history.gateway_links(conn.gateway)
            for sent in link.sent
        ]
        return not self.host_is_calm(due, at) or any(
            ended < at
            and due < min((it for it in sent_at if it >= ended), default=ended) + LINK_S
            for name, _began, ended in self.history.hangs
            if name == conn.gateway
        )

    def gave_orders(self, gateway: str, since: float, until: float) -> bool:
        """Whether a gateway may be unread as its orders wait for the disk."""
        orders = self.history.troubles_in(-inf, until, ORDERS, gateway=gateway)
        return any(
            since < ended or not self.host_is_calm(ended, since)
            for _began, ended, _what in orders
        )

    def online_at(self, until: int) -> set[ListedSession]:
        """The sessions that were open after a record."""
        return {
            ListedSession(it["uid"], it["gateway"], it["seq"], it["conn"])
            for of_user in self.sessions.values()
            for it in of_user
            if it["seq"] <= until < self.ends.get(it["seq"], inf)
        }

    def ended_at(self, session: Record) -> float:
        """When a session was ended; inf if it is open."""
        return self.at.get(self.ends.get(session["seq"], 0), inf)

    def sent(self, conn: Conn, until: float, *kinds: str) -> list[SentEvent]:
        """The events of these kinds about a connection that were in a socket by then."""
        of = self.events[conn.conn]
        return [it for kind in kinds for it in of[kind] if it.at <= until]

    def ages(self, conn: Conn, at: float) -> list[float]:
        """The ages that its logins gave it which were written by then.

        When they were written follows from them, and not from when they are noted to
        have been in the socket, which in real time is later.
        """
        ages = [it.frame[2]["age"] for it in self.sent(conn, inf, "login")]
        return [age for age in ages if conn.opened_at + age <= at + STAMP_S]

    def is_exact(self, session: Record, until: float) -> bool:
        """Whether the process of then knows its beginning, by the host's clock."""
        began, conn = self.at[session["seq"]], self.history.conns[session["conn"]]
        return (
            session["reason"] == "login"
            and self.has_began(conn, began)
            and self.history.process_at(began) == self.history.process_at(until)
        )

    def has_began(self, conn: Conn, until: float) -> bool:
        """Whether every login of a connection said when it began, so as to be used."""
        logins = self.sent(conn, until + STAMP_S, "login")
        return bool(logins) and all(
            it.link.welcome.get("began") and "began" in it.frame[2] for it in logins
        )

    def _timeouts(
        self, session: Mapping[str, Any], conn: Conn, links: list[LinkHistory]
    ) -> set[float]:
        """Those that may hold for a user that was heard by these links: its own, or theirs.

        A session that a keepalive began has none of its own until the next login.
        """
        is_of_login = session["reason"] == "login" and session["conn"] == conn.conn
        if is_of_login and conn.timeout:
            return {conn.timeout}
        found = {float(it.hello.get("timeout", self.plan.timeout_s)) for it in links}
        return found if is_of_login else found | {conn.timeout or min(found)}

    def _links_of(
        self, conn: Conn, heard: list[SentEvent], at: float
    ) -> list[LinkHistory]:
        """The links whose timeouts may hold: after a crash those of old links, too."""
        has_crashed = any(it.began_at <= at for it in self.history.crashes())
        if heard and self.is_virtual and not has_crashed:
            return [it.link for it in heard]
        return self.history.gateway_links(conn.gateway)

    def heard_by(self, conn: Conn, at: float) -> list[SentEvent]:
        """Signs of life in sockets that have been read since, in order, until *at*."""
        now = self.history.process_at(at)
        sent = self.sent(conn, at - self.late_s, *_SIGNS)
        found = [it for it in sent if self._was_read(it, now)]
        return sorted(found, key=lambda it: it.at)

    def _was_read(self, event: SentEvent, now: int) -> bool:
        if event.link.errors:
            # Unless it was ended only as a newer one said hello, after that.
            later = [
                it.opened_at
                for it in self.history.gateway_links(event.link.name)
                if it.number > event.link.number
            ]
            is_replaced = all(it["code"] == "replaced" for it in event.link.errors)
            if not (is_replaced and later and event.at < later[0]):
                return False
        # By a process that has ended only if it took its time to end.
        return all(
            it.is_planned and event.at < it.asked_at
            for it in self.history.processes[event.link.sidecar : now]
        )

    def _came_back_fresh(self, conn: Conn, at: float) -> bool:
        # Even if the process that says so is another one, or dead by then.
        logins = self.sent(conn, at + STAMP_S, "login")
        newest = max((it.link.number for it in logins), default=-1)
        return any(
            it.hello.get("fresh")
            and it.number > newest
            and it.opened_at <= at + STAMP_S
            for it in self.history.gateway_links(conn.gateway)
        )

    def host_is_calm(self, since: float, until: float) -> bool:
        """Whether nothing made the sidecar late, or kept it from reading or writing."""
        kinds = "sidecar", "disk", "gateway floods", "host boots", "state is back"
        return not self.history.troubles_in(since, until, *kinds)
