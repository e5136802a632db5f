"""The server of links, users and timers, without I/O.

A shell gives it what happens: a link connects, bytes arrive, time passes, a row is read.
The server changes its state at once, and adds to `effects` what the shell is to do, in
order and before it calls the server again. Two shells run it: `service.engine` on sockets, clock and disk, and
`liveness.testing` on sockets and a scripted clock and disk.

A turn of a shell has four phases. It accounts for the time that passed (`advance`), reads
links (`received`, `read_empty`), fires what is due (`fire`), and commits (`commit`).
Reading comes before firing: a silent user goes offline only after its gateway's socket
was read empty past the user's deadline.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from liveness.core.access import Access, Peer
from liveness.core.changes import Decisions, Disk
from liveness.core.cursors import (
    FORGOTTEN,
    NOT_LINKED,
    PENDING,
    SENT,
    UNWANTED,
    Unacknowledged,
    losing_gateway,
)
from liveness.core.effects import Effect, LogLine, WriteAttempt
from liveness.core.links.back_pressure import BackPressure, DiskLimits
from liveness.core.links.cluster_questions import (
    ClusterSession,
    Partial,
    QuestionLimits,
)
from liveness.core.links.conversation import Conversation
from liveness.core.links.handshake import Handshake, Terms
from liveness.core.links.link import Link
from liveness.core.links.link_registry import (
    LinkCounts,
    LinkRegistry,
    LinkRegistryLimits,
)
from liveness.core.links.operator_warnings import OperatorWarnings
from liveness.core.links.outbox import Outbox, OutboxLimits, UnreadReplies
from liveness.core.links.requests import Requests
from liveness.core.links.skipped_ranges import SkippedRanges
from liveness.core.records import (
    GATEWAY,
    HostReading,
    Instant,
    Logged,
    OnlineFields,
    TimerRecord,
)
from liveness.core.sessions.attended_clock import AttendedClock
from liveness.core.sessions.clearance import GatewayState
from liveness.core.sessions.firing import Firing
from liveness.core.sessions.presence import Presence
from liveness.core.sessions.restore import restore_sessions
from liveness.core.sessions.storm_guard import Storm
from liveness.core.timers.timer_scheduler import Due, TimerScheduler
from liveness.core.wheel.restart import SessionRestorer
from liveness.core.wire.link_requests import Cancel
from liveness.errors import Code

# Timers read and fired at a time: some milliseconds of reading, and a page of the log.
TIMERS_AT_ONCE: Final = 1_000


class MayRead(Enum):
    """Whether a link may be read now."""

    YES = 1
    LATER = 2
    NO = 3  # it has ended, or is not welcomed yet


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What links may use."""

    registry: LinkRegistryLimits
    outbox: OutboxLimits
    disk: DiskLimits
    max_where_rows: int  # in one answer to where
    questions: QuestionLimits  # to the cluster


class Server:
    """Links, users and timers, and the rules for all of them.

    Args:
        presence: The users.
        firing: Ends the sessions of silent users.
        scheduler: The timers.
        decided: Where all put their decisions.
        attended: The clock of deadlines; the shell begins and pauses it.
        disk: How far the disk is.
        unread: The replies that links have not read.
        counts: What is counted of links.
        access: What each user of the host may do.
        terms: What `welcome` says.
        limits: What links may use.
        new_conversation: Makes the state machine of a new link.
    """

    def __init__(
        self,
        presence: Presence,
        firing: Firing,
        scheduler: TimerScheduler,
        *,
        decided: Decisions,
        attended: AttendedClock,
        disk: Disk,
        unread: UnreadReplies,
        counts: LinkCounts,
        access: Access,
        terms: Terms,
        limits: ServerLimits,
        new_conversation: Callable[[], Conversation],
    ) -> None:
        self.presence = presence
        self.gateways = presence.gateways
        self.firing = firing
        self.scheduler = scheduler
        self.effects: deque[Effect] = deque()
        self.skipped = SkippedRanges()
        self.registry = LinkRegistry(
            self.effects,
            decided,
            attended=attended,
            unread=unread,
            counts=counts,
            access=access,
            limits=limits.registry,
        )
        self.pressure = BackPressure(
            self.effects, disk, self.registry, counts=counts, limits=limits.disk
        )
        self._decided = decided
        self._attended = attended
        self._disk = disk
        self._counts = counts
        self.unread = unread
        self._limits = limits
        self._new_conversation = new_conversation
        self._requests = Requests(
            self.effects,
            presence,
            firing,
            scheduler,
            commit=lambda: self.commit(with_cursors=True),
            registry=self.registry,
            handshake=Handshake(
                self.effects,
                decided,
                self.skipped,
                disk=disk,
                terms=terms,
            ),
            disk=disk,
            counts=counts,
            max_where_rows=limits.max_where_rows,
            host=terms.host,
            question_limits=limits.questions,
        )
        self._warnings = OperatorWarnings(self.effects, self.gateways, firing.guard)

    def restore(
        self, online: Iterable[OnlineFields], at: Instant, restorer: SessionRestorer
    ) -> None:
        """Resume the sessions that were open when the last process ended.

        Args:
            online: The online set on disk, in order of sessions.
            at: Now.
            restorer: New, with their clocks at a planned stop, which a crash leaves empty.
        Raises:
            ValueError: A row of the online set is damaged.
        """
        gateways = self.gateways
        for (role, name), cursor in self._decided.cursors.items():
            timeout = cursor.timeout or gateways.timeout
            in_force = cursor.in_force or timeout
            if role == GATEWAY and (cursor.timeout or in_force > timeout):
                gateway = gateways.add(name)
                gateways.set_timeout(gateway, cursor.timeout, at.now, in_force=in_force)
        restore_sessions(self.presence, online, at, restorer)

    # --- links ----------------------------------------------------------------

    def connected(self, number: int, peer: Peer, at: Instant) -> Link:
        """Take a new link, or refuse it.

        Args:
            number: Identifies it; unique.
            peer: The process that connected.
            at: Now.
        """
        link = Link(
            number,
            peer,
            at.now,
            self._new_conversation(),
            Outbox(self._limits.outbox, self.unread, self._disk, self._decided.cursors),
        )
        # Read it after the links that have waited longer: otherwise an endless stream of
        # new links would keep others from being read.
        link.read_at = at.mono
        self.registry.opened(link, at.state_ms)
        return link

    def may_read(self, link: Link, *, must: bool = False) -> MayRead:
        """Whether to read a link now.

        Args:
            link: The link.
            must: Read it although its timer commands wait for the disk.
        """
        if not link.is_open or self._requests.defers(link):
            return MayRead.NO
        if not must and self._is_held_back(link):
            return MayRead.LATER
        if link.outbox.is_full:
            # It is read again once its replies are written, if it reads them.
            if not link.outbox.is_unread:
                return MayRead.LATER
            self.registry.overload(link, link.outbox.excess)
            return MayRead.NO
        return MayRead.YES

    def received(
        self, link: Link, data: bytes, at: Instant, host: HostReading | None
    ) -> None:
        """Apply the requests that these bytes complete.

        Args:
            link: The link.
            data: What was read; b"" at the end of the stream.
            at: Now.
            host: The host's clocks now, for a hello; None if they cannot be read.
        """
        link.must_read_bytes = max(0, link.must_read_bytes - len(data))
        link.read_at = at.mono
        if not data:
            self._requests.cluster_questions.give_up(link, Partial.ENDED, at)
            self.registry.end(link, why="closed by the other side")
            return
        if link.gateway is not None:
            link.gateway.heard(at.now)
        try:
            for request in link.conversation.receive(data, at.now):
                self._requests.take(link, request, at, host)
        except Exception as error:
            self._end_by_fault(link, error)
        self.registry.count_partial_frame(link)
        self.registry.shed_unread()

    def read_empty(self, link: Link, now: float) -> None:
        """Note that a link's socket had nothing to read at an attended second."""
        link.must_read_bytes = 0
        if link.gateway is not None:
            link.gateway.empty_at = now

    def replace(self, older: Link) -> None:
        """Go on after `ReadFirst`: end the link, and welcome the one that replaces it."""
        arrival = self._requests.successor_of(older)
        try:
            self._requests.replace(older, arrival)
        except Exception as error:
            self._end_by_fault(arrival.link, error)

    def closed(self, link: Link) -> None:
        """Forget a link whose socket is closed."""
        self._requests.cluster_questions.forget(link)
        self.registry.closed(link)

    def end_all(self, reason: str, at: Instant) -> None:
        """End all links with `bye`, once their requests are answered."""
        self._requests.cluster_questions.give_up_all(Partial.ENDED, at)
        self.registry.end_all(reason)

    def cluster_answered(
        self, ticket: int, found: Sequence[ClusterSession] | Partial, at: Instant
    ) -> None:
        """Go on after `AskCluster`: answer the question.

        Args:
            ticket: That of the effect.
            found: The sessions on all hosts; or why they are not known.
            at: Now.
        """
        self._requests.cluster_questions.answered(ticket, found, at)

    def failed(self, link: Link, error: Exception) -> None:
        """Note a fault of the sidecar that ended a link while it was written to."""
        self._counts.refused[Code.INTERNAL.value] += 1
        link.why_closed = Code.INTERNAL.value
        self._report_fault(link, error)

    def can_read_on(self, link: Link) -> bool:
        """Whether to read a link on in a turn that follows at once."""
        return not link.outbox.is_full and not self._is_held_back(link)

    def _end_by_fault(self, link: Link, error: Exception) -> None:
        """End a link by a bug of the sidecar; the others go on."""
        self._report_fault(link, error)
        message = "a fault of the sidecar, see its log; connect anew"
        self.registry.refuse(link, link.conversation.close(Code.INTERNAL, message))

    def _report_fault(self, link: Link, error: Exception) -> None:
        fields: dict[str, object] = {"link": link.number, "exc_info": error}
        message = "a fault of the sidecar"
        self.effects.append(LogLine("link", "error", message, fields))

    def links_to_read(self) -> list[Link]:
        """Links to read whether or not they are readable.

        These are gateways with due users, and all links while attended time is paused.
        """
        if self._attended.is_paused:
            return [*self.registry.links.values()]
        names = [(GATEWAY, gateway.name) for gateway in self.firing.due_gateways()]
        named = self.registry.named
        return [named[name] for name in names if name in named]

    def _is_held_back(self, link: Link) -> bool:
        return link.gateway is not None and link.gateway.reading_paused_at is not None

    # --- a turn ---------------------------------------------------------------

    def advance(self, at: Instant, *, cpu: float, asked: float) -> None:
        """Account for the time since the last turn, and find the users that are due.

        Args:
            at: Now; at the attended second of the last turn.
            cpu: CPU seconds that this process has used so far.
            asked: For how long the shell meant to sleep, in seconds.
        """
        attended, pressure = self._attended, self.pressure
        now = attended.turn(
            mono=at.mono,
            cpu=cpu,
            asked=asked,
            reading_paused=pressure.reading_is_paused,
        )
        were_held_back = pressure.held_back
        pressure.look(now)
        # Time in which a link is not read does not count as a missing answer to a timer.
        is_absent = attended.is_paused or pressure.reading_is_paused
        self.scheduler.turned(at, is_absent=is_absent, absent=were_held_back)
        self.firing.advance(now, self.presence.wheel.steps)

    def caught_up(self, mono: float, *, all_accepted: bool) -> None:
        """Let attended time run again, if it is paused and everything was read.

        Args:
            mono: Monotonic seconds now.
            all_accepted: No link waits in the backlog from before the start.
        """
        if self._attended.is_paused:
            links = self.registry.links.values()
            is_unread = any(link.must_read_bytes and link.is_open for link in links)
            all_read = all_accepted and not is_unread
            self._attended.resume_if_caught_up(mono=mono, all_read=all_read)

    @property
    def has_resets(self) -> bool:
        """Whether old sessions of gateways that said `fresh` are being ended."""
        return self._requests.has_resets

    def reset_sessions(self, at: Instant) -> list[Link]:
        """End some more of these sessions; return the links that were welcomed."""
        arrivals = self._requests.reset_sessions(at)
        for arrival in arrivals:
            try:
                self._requests.welcome(arrival, at.state_ms)
            except Exception as error:
                self._end_by_fault(arrival.link, error)
        return [arrival.link for arrival in arrivals]

    def fire(self, at: Instant, *, limit: int | None = None) -> int:
        """End the sessions of users that are due, and find the timers that are due.

        Args:
            at: Now.
            limit: How many users at most; None: as many as the disk allows.
        Returns:
            How many users were judged.
        """
        self.scheduler.advance(at)
        fired = 0
        if not self._attended.is_paused:
            limit = self.pressure.fire_limit if limit is None else limit
            fired = self.firing.fire(at, limit=limit)
        self._warnings.storms(at.now)
        return fired

    def commit(self, *, with_cursors: bool = False) -> int:
        """Commit what was decided; return the ticket that stands for everything so far."""
        commit = self._decided.commit(with_cursors=with_cursors)
        if commit is not None:
            self.effects.append(commit)
        return self._decided.ticket

    # --- from time to time ----------------------------------------------------

    def missed_promises(self, now: float) -> list[GatewayState]:
        """Gateways that seem to have missed a ping: read them, then call `missed`."""
        gateways = self.gateways.by_name.values()
        return [gateway for gateway in gateways if gateway.has_missed(now)]

    def missed(self, gateway: GatewayState, now: float) -> None:
        """Count a missed ping, unless it was read meanwhile."""
        if gateway.has_missed(now):
            self._warnings.missed_promise(gateway, now)

    def note_cursors(self, at: Instant) -> None:
        """Note for the disk what changes without an event: cursors and timeouts."""
        cursors = self._decided.cursors
        for link in self.registry.named.values():
            link.outbox.follow(at.state_ms)
        for gateway in [*self.gateways.by_name.values()]:
            if (GATEWAY, gateway.name) not in cursors and not (
                gateway.users or gateway.is_linked
            ):
                self.gateways.remove(gateway)
                if self.firing.guard is not None:
                    self.firing.guard.forget(gateway, at.now)
        for gateway in self.gateways.timeouts_over(at.now):
            cursors.store_longest_timeout(gateway.name, gateway.in_force)

    def warn(self, mono: float, now: float) -> None:
        """Warn of timeouts that are too short, and of links that take no more records."""
        self._warnings.look(mono, now, self.registry.named.values())

    # --- timers ---------------------------------------------------------------

    def take_timers(self, limit: int = TIMERS_AT_ONCE) -> list[int]:
        """Claim due timers, as far as the disk keeps up; pass their rows to `fire_timers`."""
        if self.pressure.is_firing_throttled:
            return []
        return self.scheduler.take(limit, self.pressure.gateways_without_timers)

    def fire_timers(self, rows: Iterable[Due], at: Instant) -> list[float]:
        """Fire claimed timers; return the lateness of each, in seconds."""
        rows = [*rows]
        names = {timer.gateway for timer, _ in rows}
        delivered = {name: self._delivered_seq(name) for name in names}
        lateness, waiting = self.scheduler.fire(rows, at, delivered)
        self.effects.extend(WriteAttempt(gateway, key) for gateway, key in waiting)
        self.commit()
        return lateness

    def fire_again(self, records: Iterable[TimerRecord], at: Instant) -> None:
        """Have timers fire again whose records their gateways will never receive."""
        for record in records:
            self.scheduler.fire_again(record.gateway, record.key, record.seq, at)
        self.commit()

    def _delivered_seq(self, gateway: str) -> int:
        """The seq up to which a gateway was sent its records."""
        link = self.registry.named.get((GATEWAY, gateway))
        cursor = self._decided.cursors.get((GATEWAY, gateway))
        if link is not None and link.outbox.position is not None:
            position = link.outbox.position
        elif cursor is not None:
            position = cursor.seq
        else:
            return 0  # a name that was forgotten; it may come back
        position = self.skipped.delivered(gateway, position)
        # Records that were trimmed will never be sent.
        return max(position, self._disk.first - 1)

    # --- for an operator ------------------------------------------------------

    def unacknowledged(self, record: Logged) -> Unacknowledged | None:
        """Why the gateway that loses a user by *record* has not acknowledged it.

        None if it has, or if there is no such gateway.
        """
        gateway = losing_gateway(record)
        if gateway is None:
            return None
        link = self.registry.named.get((GATEWAY, gateway))
        cursor = self._decided.cursors.get((GATEWAY, gateway))
        if cursor is None:
            return Unacknowledged(gateway, FORGOTTEN)
        if link is not None and link.hello and record.kind not in link.hello.kinds:
            return Unacknowledged(gateway, UNWANTED)
        if cursor.seq >= record.seq:
            return None
        if link is None:
            return Unacknowledged(gateway, NOT_LINKED)
        outbox = link.outbox
        is_sent = (outbox.position or 0) >= record.seq
        why = SENT if is_sent else outbox.stop or PENDING
        return Unacknowledged(gateway, why, outbox.unacked)

    def cancel_timer(self, gateway: str, key: str, at: Instant) -> None:
        """Cancel the live timer of a key."""
        self.scheduler.request(gateway, [Cancel(key, None)], at)
        self.commit()

    def retry_timer(self, gateway: str, key: str, at: Instant) -> None:
        """Try a failed or pending timer now."""
        self.scheduler.try_again(gateway, key, at)
        self.commit()

    def names_in_use(self) -> list[tuple[str, str]]:
        """The roles and names that have a link or users."""
        gateways = self.gateways.by_name.values()
        with_users = [(GATEWAY, gateway.name) for gateway in gateways if gateway.users]
        return [*self.registry.named, *with_users]

    def why_in_use(self, role: str, name: str) -> str | None:
        """Why a name cannot be forgotten now; None if it can."""
        if (role, name) in self.registry.named:
            return "is connected; stop it first"
        gateway = self.gateways.by_name.get(name) if role == GATEWAY else None
        if gateway is not None and gateway.users:
            return (
                f"has {gateway.users} users online; they go offline by themselves if it "
                "does not come back"
            )
        return None

    def forget(self, role: str, name: str) -> None:
        """Forget a name and its cursor."""
        assert self.why_in_use(role, name) is None
        self._decided.cursors.forget((role, name))
        self.commit(with_cursors=True)
        fields: dict[str, object] = {"role": role, "name": name}
        self.effects.append(LogLine("link", "info", "name forgotten", fields))

    def release(self, name: str | None) -> list[Storm]:
        """Let the users that the storm guard holds go offline.

        Args:
            name: The gateway; None for all.
        Returns:
            The storms that this ended; none without a guard or such a gateway.
        """
        guard, now = self.firing.guard, self._attended.now
        gateway = None if name is None else self.gateways.by_name.get(name)
        if guard is None or (name is not None and gateway is None):
            return []
        released = guard.release(gateway, now)
        self._warnings.storms(now)
        return released
