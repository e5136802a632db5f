"""The engine: runs the server on sockets, clock and disk, in turns.

All of it is synchronous, so trio never switches tasks in the middle of a change. A turn
has four phases (see `core.server`): account for the time that passed, read links, fire
what is due, and commit. The server is called through `EngineShell`, which does what the
server wants done: it queues commits for the disk, and wakes the tasks that write to links.
"""

from dataclasses import replace
from socket import socket as Socket
from typing import Final, NoReturn

import trio

from liveness.cluster.connection import CallError
from liveness.cluster.format import Place
from liveness.cluster.questions import ClusterQuestions
from liveness.core.access import Peer
from liveness.core.effects import AskCluster
from liveness.core.links.cluster_questions import ClusterSession, Partial
from liveness.core.records import GATEWAY, Instant, Uid
from liveness.core.server import Server, ServerParts
from liveness.core.sessions.attended_clock import WindowedMax
from liveness.core.sessions.clearance import DISK, PAUSED
from liveness.core.sessions.firing import UserStatus
from liveness.service.common.clock import Clock
from liveness.service.common.notifier import Notifier
from liveness.service.engine.engine_shell import EngineShell
from liveness.service.links.link_socket import PIECE_BYTES, Delivery, LinkSocket
from liveness.service.storage.log_tail import LogTail
from liveness.service.timers.state_writer import StateWriter
from liveness.service.timers.timer_loop import SkippedAttempts

# Reads are gathered for this long, unless a deadline comes before. Waking up for each of
# 3,000 one-uid frames a second would cost several times what fifty turns do.
GATHER_S: Final = 0.020
# The shortest sleep: a turn that comes too early finds nothing due. Far below the
# promised resolution.
LEAST_SLEEP_S: Final = 0.0005
# Due users that wait for their gateway are checked this often.
HELD_SLEEP_S: Final = 0.05
# How late a turn was is shown for this long: Prometheus scrapes every 15 s as a rule.
LAG_SHOWN_S: Final = 15.0
# The longest sleep. An absence (`AttendedClock`) that ends within a sleep goes unnoticed;
# short absences that follow each other take up at most this part of each second.
MOST_SLEEP_S: Final = 0.1
# How often promises to ping are checked; a gateway may be late by at least a second.
PROMISES_EVERY_S: Final = 0.25
# How often links are checked for unread replies, and users for how often they send.
UNREAD_EVERY_S: Final = 1.0
# How often the cursors of readers that got no records are stored. After a crash such a
# reader has up to this much more of the log to search.
CURSORS_EVERY_S: Final = 10.0


class Engine:
    """Decides when to call the server."""

    def __init__(
        self,
        server: Server,
        parts: ServerParts,
        *,
        clock: Clock,
        log_writer: StateWriter,
        feed: LogTail,
        skipped_attempts: SkippedAttempts,
    ) -> None:
        self.shell = EngineShell(
            server,
            parts,
            clock=clock,
            log_writer=log_writer,
            skipped_attempts=skipped_attempts,
        )
        self.parts = parts
        self._presence, self._firing = parts.presence, parts.firing
        self._gateways, self._registry = parts.gateways, parts.registry
        self._scheduler, self._pressure = parts.scheduler, parts.pressure
        self.turn_wanted = Notifier()  # before the next turn is due
        self.timers_wanted = Notifier()  # timers are due, or must be loaded
        self.handshakes_expired = Notifier()  # pending handshakes were checked
        self.accepting = trio.CancelScope()  # cancelled by `close_links`
        self.all_closed = trio.Event()  # set after `close_links`
        # Until the links that connected before this process listened are accepted.
        self.is_draining_backlog = False
        self._sockets = self.shell.sockets
        self._links = 0  # how many have connected
        self._turns_at = clock.mono()  # when the next turn is due
        self._lags = WindowedMax(LAG_SHOWN_S)
        self._attended = parts.attended
        self.clock = clock
        self.log_writer = log_writer
        self.feed = feed
        self._cursors_at = self._unread_at = self._promises_at = 0.0
        self._asked = 0.0  # the last sleep that was asked for, in seconds

    @property
    def hand_lag(self) -> float:
        """The most seconds by which a recent turn was late, or the next one is by now.

        Recent turns count, since this is read between turns, when none is late.
        """
        mono = self.clock.mono()
        return max(mono - self._turns_at, self._lags.recent(mono), 0.0)

    def start(self) -> None:
        """Start attended time, and with it all timeouts.

        If sessions were restored, it is paused until the links that connected before this
        process listened are accepted and read.
        """
        self._turns_at = self.clock.mono()
        self._attended.begin(mono=self._turns_at, cpu=self.clock.cpu())
        if len(self._presence):
            self._attended.pause(self._turns_at, reconnect_grace=0.0)
            self.is_draining_backlog = True
        # A gateway cannot answer its timers before it is back.
        self._scheduler.will_be_absent(self.instant(), self._attended.reconnect_grace)

    def instant(self) -> Instant:
        return self.clock.instant(self._attended.now, self.clock.mono())

    # --- links come and go ----------------------------------------------------

    def connected(self, sock: Socket, peer: Peer, delivery: Delivery) -> LinkSocket:
        self._links += 1
        with self.shell as server:
            link = server.connected(self._links, peer, self.instant())
            socket = LinkSocket(sock, link, delivery)
            self._sockets[link.number] = socket
            if self.is_draining_backlog:
                link.must_read_bytes = socket.unread()
        return socket

    def readable(self, socket: LinkSocket) -> None:
        self.shell.add(socket.link)
        self.turn_wanted.notify()

    def failed(self, socket: LinkSocket, error: Exception) -> None:
        """Report a fault of the sidecar that ended a link while it was written to."""
        with self.shell as server:
            server.failed(socket.link, error)
        socket.send_fault()

    def closed(self, socket: LinkSocket) -> None:
        with self.shell as server:
            server.closed(socket.link)
            hello = socket.link.hello
            if hello is not None:  # the host may have slept for long just before
                self.log_writer.note_use((hello.role, hello.name))
        self.shell.discard(socket.link)
        del self._sockets[socket.link.number]
        if self.accepting.cancel_called and not self._sockets:
            self.all_closed.set()
        self.turn_wanted.notify()

    def close_links(self, reason: str) -> None:
        """Accept no more links, and end all with `bye`, once their requests are answered."""
        self.accepting.cancel()
        if not self._sockets:
            self.all_closed.set()
        with self.shell as server:
            server.end_all(reason, self.instant())

    # --- the turn -------------------------------------------------------------

    def turn(self) -> float:
        """Account for time, read, fire, commit; return when to turn next, as `mono`."""
        mono = self.clock.mono()
        now = self._account_time(mono)
        has_more = self._read(now)
        fired = self._fire()
        with self.shell as server:
            if not self._pressure.firing_was_throttled:
                has_more |= fired > 0 and bool(self._firing.due_gateways())
                # A hello that was read just now may have begun a reset.
                has_more |= server.has_resets
            self._do_periodic_work(server, mono, now)
            server.commit()
        self._committed()
        return self._next_turn(mono, now, has_more=has_more, has_fired=fired > 0)

    def _account_time(self, mono: float) -> float:
        """Advance the clocks and the wheel; return attended seconds."""
        self._lags.note(max(0.0, mono - self._turns_at), mono)
        paused_since = self._attended.paused_since
        at = self.clock.instant(self._attended.now, mono)
        with self.shell as server:
            server.advance(at, cpu=self.clock.cpu(), asked=self._asked)
        if self._attended.paused_since != paused_since:
            # Bytes that arrived before the pause: they must be read before anyone goes
            # offline. Only these, since a link that floods is never read empty.
            self.shell.note_unread()
        return self._attended.now

    def _read(self, now: float) -> bool:
        """Read links and apply their requests; return whether there is more to read."""
        if not self._pressure.firing_was_throttled:
            self._reset_sessions()
        return not self._pressure.reading_is_paused and self.shell.read_ready(now)

    def _fire(self) -> int:
        """Fire due users and request due timers; return how many users were judged."""
        scheduler = self._scheduler
        with self.shell as server:
            if not self._pressure.reading_is_paused:
                server.caught_up(
                    self.clock.mono(), all_accepted=not self.is_draining_backlog
                )
            fired = server.fire(self.instant())
        if scheduler.has_due or scheduler.wants_filling:
            self.timers_wanted.notify()
        return fired

    def _do_periodic_work(self, server: Server, mono: float, now: float) -> None:
        if not self._pressure.reading_is_paused:
            self._expire_handshakes(now)
            if mono >= self._promises_at:
                self._promises_at = mono + PROMISES_EVERY_S
                self._check_promises(now)
        if mono >= self._unread_at:
            self._unread_at = mono + UNREAD_EVERY_S
            self._registry.end_unread(now)
            self._gateways.look_at_cadence(now)
        if mono >= self._cursors_at:
            self._cursors_at = mono + CURSORS_EVERY_S
            server.note_cursors(self.instant())

    def _committed(self) -> None:
        """Have moved cursors written, and the next turn wait for the disk if it must."""
        if self.log_writer.cursors.has_moved:
            self.log_writer.cursors_moved()
        pressure = self._pressure
        if (
            pressure.firing_was_throttled
            or pressure.reads_small_pieces
            or pressure.held_back
        ):
            self.feed.notify_at_commit(self.turn_wanted.notify)

    def _check_promises(self, now: float) -> None:
        """Read gateways that seem to have missed a ping; count those that have."""
        gateways = self._gateways.by_name.values()
        for gateway in [gateway for gateway in gateways if gateway.has_missed(now)]:
            link = self._registry.named.get((GATEWAY, gateway.name))
            if link is not None:
                self.shell.read_sent(link, now)
            gateway.count_miss(now)

    def _expire_handshakes(self, now: float) -> None:
        for link in self._registry.expired_handshakes(now):
            # Its hello may still be unread, as after a long turn. Only the first piece is
            # read: all that many links send behind their hellos could take seconds.
            self.shell.read_sent(link, now, most=PIECE_BYTES)
            with self.shell:
                self._registry.expire_handshake(link, now)
        self.handshakes_expired.notify()

    def _reset_sessions(self) -> None:
        with self.shell as server:
            for link in server.reset_sessions(self.instant()):
                self.shell.add(link)

    def _next_turn(
        self, mono: float, now: float, *, has_more: bool, has_fired: bool
    ) -> float:
        """Choose when to turn next; return it, in monotonic seconds."""
        pressure, scheduler = self._pressure, self._scheduler
        if has_more and not pressure.reading_is_paused:
            wait = LEAST_SLEEP_S
        elif self._attended.is_paused:
            wait = HELD_SLEEP_S
        else:
            wait = min(self._presence.wheel.next_due() - now, MOST_SLEEP_S)
            wait = min(wait, scheduler.next_due() - self.clock.state_s())
            if scheduler.has_due:
                wait = min(wait, GATHER_S)
            if self.shell.has_ready or self._firing.due_gateways():
                wait = min(wait, HELD_SLEEP_S)
            if (self.shell.expects_more and not pressure.reading_is_paused) or (
                has_fired and pressure.firing_was_throttled
            ):
                wait = min(wait, GATHER_S)
            wait = max(wait, LEAST_SLEEP_S)
        self._asked = wait
        self._turns_at = mono + wait
        return self._turns_at

    def drain(self) -> bool:
        """At a stop: read every link once; return whether all were read empty."""
        self._reset_sessions()
        is_empty = self.shell.read_all(self._attended.now)
        with self.shell as server:
            server.commit()
        self._committed()
        return is_empty and not server.has_resets

    # --- timers ---------------------------------------------------------------

    def timers_changed(self) -> None:
        """Note that timers were loaded or changed: one may be due before the next turn."""
        due_in = self._scheduler.next_due() - self.clock.state_s()
        if due_in < self._turns_at - self.clock.mono():
            self.turn_wanted.notify()

    def fire_again(self, gateway: str, attempts: list[tuple[str, int]]) -> None:
        with self.shell as server:
            server.fire_again(gateway, attempts, self.instant())

    # --- for an operator ------------------------------------------------------

    def cancel_timer(self, gateway: str, key: str) -> None:
        with self.shell as server:
            server.cancel_timer(gateway, key, self.instant())

    def retry_timer(self, gateway: str, key: str) -> None:
        with self.shell as server:
            server.retry_timer(gateway, key, self.instant())

    def forget(self, role: str, name: str) -> None:
        with self.shell as server:
            server.forget(role, name)

    def status_of(self, uid: Uid) -> UserStatus | None:
        status = self._firing.status_of(uid, self.instant())
        if status is None:
            return None
        if self._attended.is_paused:
            return replace(status, held=PAUSED)
        if status.slot is None and self._pressure.is_firing_throttled:
            return replace(status, held=DISK)
        return status


async def run_turns(engine: Engine) -> NoReturn:
    """Run each turn when due; on request sooner, but not within `GATHER_S` of the last."""
    while True:
        began = trio.current_time()
        engine.turn_wanted.clear()
        due_at = engine.turn()
        # Gather first: notifications in this time do not end the sleep. Sleep in any case,
        # at least for a checkpoint, so that other tasks run.
        await trio.sleep_until(min(began + GATHER_S, due_at))
        if trio.current_time() < due_at:
            with trio.move_on_at(due_at):
                await engine.turn_wanted.wait()


async def ask_cluster(
    engine: Engine, questions: ClusterQuestions, max_rows: int
) -> NoReturn:
    """Ask what the engine wants asked, all at once; the server bounds how many there are.

    An answer has at most *max_rows* sessions, unless there are more users.
    """

    async def ask(question: AskCluster) -> None:
        most = max(max_rows, len(question.uids))
        found: list[ClusterSession] | Partial
        try:
            places = await questions.places(question.uids, limit=most + 1)
        except CallError as error:
            found = Partial.SLOW if error.kind == "timeout" else Partial.AWAY
        else:
            found = Partial.LARGE if len(places) > most else [*map(_session, places)]
        with engine.shell as server:
            server.cluster_answered(question.ticket, found, engine.instant())

    async with trio.open_nursery() as nursery:
        while True:
            await engine.shell.cluster_wanted.wait()
            while engine.shell.cluster_questions:
                nursery.start_soon(ask, engine.shell.cluster_questions.popleft())


def _session(place: Place) -> ClusterSession:
    return ClusterSession(
        place.uid, place.gateway, place.session, place.host, place.since
    )
