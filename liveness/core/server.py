"""The server of links, users and timers, without I/O.

A shell gives it what happens: a link connects, bytes arrive, time passes, a row is read.
The server changes its state at once, and adds to `effects` what the shell is to do, in
order and before it calls the server again (`Shell`). Two shells run it:
`service.engine` on sockets, clock and disk, and `liveness.testing` on sockets and a
scripted clock and disk.

A turn of a shell has four phases. It accounts for the time that passed (`advance`), reads
links (`received`, `read_empty`), fires what is due (`fire`), and commits (`commit`).
Reading comes before firing: a silent user goes offline only after its gateway's socket
was read empty past the user's deadline.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from liveness.core.access import Peer
from liveness.core.changes import Decisions
from liveness.core.disk import Disk
from liveness.core.effects import Effect, LogLine
from liveness.core.limits import Limits
from liveness.core.links.back_pressure import BackPressure
from liveness.core.links.cluster_questions import ClusterSession, Partial
from liveness.core.links.handshake import Handshake, SkippedRanges
from liveness.core.links.link import Link
from liveness.core.links.link_registry import LinkCounts, LinkRegistry
from liveness.core.links.outbox import UnreadReplies
from liveness.core.links.requests import Requests
from liveness.core.records import GATEWAY, HostReading, Instant, OnlineFields
from liveness.core.sessions.attended_clock import AttendedClock
from liveness.core.sessions.firing import Firing
from liveness.core.sessions.gateway_table import GatewayTable
from liveness.core.sessions.presence import Presence
from liveness.core.sessions.restore import restore_sessions
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


class ServerParts(NamedTuple):
    """The parts of the server, for others to read.

    Calls that have effects are made in a block of the `Shell`.
    """

    gateways: GatewayTable
    presence: Presence
    firing: Firing
    scheduler: TimerScheduler
    registry: LinkRegistry
    pressure: BackPressure
    skipped: SkippedRanges
    unread: UnreadReplies
    attended: AttendedClock


class Server:
    """Links, users and timers, and the rules for all of them.

    It and its parts share *effects* and *decided*. *new_link* makes a link of its number,
    its peer and attended seconds.
    """

    def __init__(
        self,
        parts: ServerParts,
        effects: deque[Effect],
        *,
        decided: Decisions,
        disk: Disk,
        counts: LinkCounts,
        terms: dict[str, object],
        host: str,
        limits: Limits,
        new_link: Callable[[int, Peer, float], Link],
    ) -> None:
        self.effects = effects
        self._gateways, self._presence = parts.gateways, parts.presence
        self._firing, self._scheduler = parts.firing, parts.scheduler
        self._registry, self._skipped = parts.registry, parts.skipped
        self._pressure = parts.pressure
        self._decided = decided
        self._disk = disk
        self._attended = parts.attended
        self._counts = counts
        self._new_link = new_link
        self._requests = Requests(
            effects,
            parts.presence,
            parts.firing,
            parts.scheduler,
            commit=lambda: self.commit(with_cursors=True),
            registry=parts.registry,
            handshake=Handshake(
                effects, decided, parts.skipped, disk=disk, terms=terms
            ),
            disk=disk,
            counts=counts,
            host=host,
            limits=limits,
        )

    def restore(
        self, online: Iterable[OnlineFields], at: Instant, restorer: SessionRestorer
    ) -> None:
        """Resume the sessions that were open when the last process ended.

        *online* is the online set on disk, in order of sessions. *restorer* is new, with
        their clocks at a planned stop, which a crash leaves empty.

        Raises:
            ValueError: A row of the online set is damaged.
        """
        gateways = self._gateways
        for (role, name), cursor in self._decided.cursors.items():
            timeout = cursor.timeout or gateways.timeout
            in_force = cursor.in_force or timeout
            if role == GATEWAY and (cursor.timeout or in_force > timeout):
                gateway = gateways.add(name)
                gateways.set_timeout(gateway, cursor.timeout, at.now, in_force=in_force)
        restore_sessions(self._presence, online, at, restorer)

    # --- links ----------------------------------------------------------------

    def connected(self, number: int, peer: Peer, at: Instant) -> Link:
        """Take a new link of a process, or refuse it; no other may have its number."""
        link = self._new_link(number, peer, at.now)
        # Read it after the links that have waited longer: otherwise an endless stream of
        # new links would keep others from being read.
        link.read_at = at.mono
        self._registry.opened(link, at.state_ms)
        return link

    def may_read(self, link: Link, *, must: bool = False) -> MayRead:
        """Whether to read a link now; if it *must*, although timer commands wait."""
        if not link.is_open or self._requests.defers(link):
            return MayRead.NO
        if not must and link.is_held_back:
            return MayRead.LATER
        if link.outbox.is_full:
            # It is read again once its replies are written, if it reads them.
            if not link.outbox.is_unread:
                return MayRead.LATER
            self._registry.overload(link, link.outbox.excess)
            return MayRead.NO
        return MayRead.YES

    def received(
        self, link: Link, data: bytes, at: Instant, host: HostReading | None
    ) -> None:
        """Apply the requests that these bytes complete; b"" is the end of the stream.

        A hello needs the host's clocks now, which are None if they cannot be read.
        """
        link.must_read_bytes = max(0, link.must_read_bytes - len(data))
        link.read_at = at.mono
        if not data:
            self._requests.cluster_questions.give_up(link, Partial.ENDED, at)
            self._registry.end(link, why="closed by the other side")
            return
        if link.gateway is not None:
            link.gateway.heard(at.now)
        try:
            for request in link.conversation.receive(data, at.now):
                self._requests.take(link, request, link.conversation.n, at, host)
        except Exception as error:
            self._end_by_fault(link, error)
        self._registry.count_partial_frame(link)
        self._registry.shed_unread()

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
        self._requests.cluster_questions.forget(link)
        self._registry.closed(link)

    def end_all(self, reason: str, at: Instant) -> None:
        self._requests.cluster_questions.give_up_all(Partial.ENDED, at)
        self._registry.end_all(reason)

    def cluster_answered(
        self, ticket: int, found: Sequence[ClusterSession] | Partial, at: Instant
    ) -> None:
        """Answer the question of `AskCluster`, or say why the answer is not known."""
        self._requests.cluster_questions.answered(ticket, found, at)

    def failed(self, link: Link, error: Exception) -> None:
        """Note a fault of the sidecar that ended a link while it was written to."""
        self._counts.refused[Code.INTERNAL.value] += 1
        link.why_closed = Code.INTERNAL.value
        self._report_fault(link, error)

    def _end_by_fault(self, link: Link, error: Exception) -> None:
        self._report_fault(link, error)
        message = "a fault of the sidecar, see its log; connect anew"
        self._registry.refuse(link, link.conversation.close(Code.INTERNAL, message))

    def _report_fault(self, link: Link, error: Exception) -> None:
        fields: dict[str, object] = {"link": link.number, "exc_info": error}
        message = "a fault of the sidecar"
        self.effects.append(LogLine("link", "error", message, fields))

    def links_to_read(self) -> list[Link]:
        """Links to read whether or not they are readable.

        These are gateways with due users, and all links while attended time is paused.
        """
        if self._attended.is_paused:
            return [*self._registry.links.values()]
        names = [(GATEWAY, gateway.name) for gateway in self._firing.due_gateways()]
        named = self._registry.named
        return [named[name] for name in names if name in named]

    # --- a turn ---------------------------------------------------------------

    def advance(self, at: Instant, *, cpu: float, asked: float) -> None:
        """Account for the time since the last turn, and find the users that are due.

        *at* has the attended second of the last turn. *cpu* is the CPU time that this
        process has used so far, and *asked* is how long the shell meant to sleep since
        the last turn, both in seconds.
        """
        attended, pressure = self._attended, self._pressure
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
        self._scheduler.turned(at, is_absent=is_absent, absent=were_held_back)
        wheel = self._presence.wheel
        wheel.advance(now, wheel.steps)

    def caught_up(self, mono: float, *, all_accepted: bool) -> None:
        """Let attended time run again, if it is paused and everything was read.

        *all_accepted*: no link waits in the backlog from before the start.
        """
        if self._attended.is_paused:
            links = self._registry.links.values()
            is_unread = any(link.must_read_bytes and link.is_open for link in links)
            all_read = all_accepted and not is_unread
            self._attended.resume_if_caught_up(mono=mono, all_read=all_read)

    @property
    def has_resets(self) -> bool:
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

        Returns how many users were judged, at most *limit*; None: as the disk allows.
        """
        self._scheduler.advance(at)
        fired = 0
        if not self._attended.is_paused:
            limit = self._pressure.fire_limit if limit is None else limit
            fired = self._firing.fire(at, limit=limit)
        self.effects.extend(self._firing.guard.take())
        return fired

    def commit(self, *, with_cursors: bool = False) -> int:
        """Commit what was decided; return the ticket that stands for everything so far."""
        commit = self._decided.commit(with_cursors=with_cursors)
        if commit is not None:
            self.effects.append(commit)
        return self._decided.ticket

    # --- from time to time ----------------------------------------------------

    def note_cursors(self, at: Instant) -> None:
        """Note for the disk what changes without an event: cursors and timeouts."""
        cursors = self._decided.cursors
        for link in self._registry.named.values():
            link.outbox.follow(at.state_ms)
        for gateway in [*self._gateways.by_name.values()]:
            if (GATEWAY, gateway.name) not in cursors and not (
                gateway.users or gateway.is_linked
            ):
                self._firing.forget(gateway, at.now)
        for gateway in self._gateways.timeouts_over(at.now):
            cursors.store_longest_timeout(gateway.name, gateway.in_force)

    # --- timers ---------------------------------------------------------------

    def take_timers(self, limit: int = TIMERS_AT_ONCE) -> list[int]:
        """Claim due timers, as far as the disk keeps up; pass their rows to `fire_timers`."""
        if self._pressure.is_firing_throttled:
            return []
        return self._scheduler.take(limit, self._pressure.gateways_without_timers)

    def fire_timers(self, rows: Iterable[Due], at: Instant) -> list[float]:
        """Fire claimed timers; return the lateness of each, in seconds."""
        rows = [*rows]
        names = {timer.gateway for timer, _ in rows}
        delivered = {name: self._delivered_seq(name) for name in names}
        lateness = self._scheduler.fire(rows, at, delivered)
        self.commit()
        return lateness

    def _delivered_seq(self, gateway: str) -> int:
        """The seq up to which a gateway was sent its records."""
        link = self._registry.named.get((GATEWAY, gateway))
        cursor = self._decided.cursors.get((GATEWAY, gateway))
        if link is not None and link.outbox.position is not None:
            position = link.outbox.position
        elif cursor is not None:
            position = cursor.seq
        else:
            return 0  # a name that was forgotten; it may come back
        position = self._skipped.delivered(gateway, position)
        # Records that were trimmed will never be sent.
        return max(position, self._disk.first - 1)

    def fire_again(
        self, gateway: str, attempts: Iterable[tuple[str, int]], at: Instant
    ) -> None:
        """Have timers fire again whose records their gateway will never receive.

        *attempts* are their keys and seqs.
        """
        for key, seq in attempts:
            self._scheduler.fire_again(gateway, key, seq, at)
        self.commit()

    # --- for an operator ------------------------------------------------------

    def cancel_timer(self, gateway: str, key: str, at: Instant) -> None:
        self._scheduler.request(gateway, Cancel(key, None), at)
        self.commit()

    def retry_timer(self, gateway: str, key: str, at: Instant) -> None:
        self._scheduler.try_again(gateway, key, at)
        self.commit()

    def forget(self, role: str, name: str) -> None:
        assert self._registry.why_in_use(role, name) is None
        self._decided.cursors.forget((role, name))
        self.commit(with_cursors=True)
        fields: dict[str, object] = {"role": role, "name": name}
        self.effects.append(LogLine("link", "info", "name forgotten", fields))


class Shell(ABC):
    """Calls a server, and carries out its effects.

        with shell as server:
            server.forget(role, name)

    The effects are carried out at the end of the block, in order; after an error too, as
    the server has changed its state. Blocks may be nested: to carry out `ReadFirst`, for
    one, a shell calls the server again.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._effects = server.effects

    def __enter__(self) -> Server:
        return self._server

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        effects = self._effects
        while effects:
            self._carry_out(effects.popleft())

    @abstractmethod
    def _carry_out(self, effect: Effect) -> None:
        """Do what an effect says."""
