"""The engine: it owns the core's state and runs it in turns.

All of it is synchronous, so trio never switches tasks in the middle of a change. A turn
has four phases: account for the time that passed, read links and apply their requests
(`link_reader`, `dispatch`), fire what is due, and commit the decisions to the log's
writer. Reading comes before firing: a silent user goes offline only after its gateway's
socket was read empty past the user's deadline.
"""

from dataclasses import dataclass, replace
from typing import Final, NoReturn

import structlog
import trio

from liveness.compiled import Reader
from liveness.core.attended_clock import AttendedClock, WindowedMax
from liveness.core.clearance import DISK, PAUSED
from liveness.core.conversation import Conversation
from liveness.core.presence import Presence, UserStatus
from liveness.core.records import GATEWAY, Cancel, Instant, Uid
from liveness.core.storm_guard import Storm
from liveness.core.timer_scheduler import TimerScheduler
from liveness.metrics import Counts
from liveness.service.common.clock import Clock
from liveness.service.common.notifier import Notifier
from liveness.service.engine.dispatch import Dispatcher
from liveness.service.engine.link_reader import LinkReader
from liveness.service.engine.warnings import Warnings
from liveness.service.links.handshake import Handshake
from liveness.service.links.link import PIECE_BYTES, SocketLink
from liveness.service.links.registry import LinkRegistry
from liveness.service.storage.log_writer import LogWriter

# Offlines decided in one turn, over all gateways. Turns follow each other at once while
# there are more, so this bounds the length of a turn, not the rate.
FIRE_PER_TURN: Final = 1_000
# Offlines decided in one turn between limits.pause_firing and twice as many that wait for
# the disk. A mass offline of one gateway then does not hold up the few of another, which
# come first in an equal share.
FIRE_WHILE_THROTTLED: Final = 50
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
# How often links are checked for unread replies.
UNREAD_EVERY_S: Final = 1.0
# How often the cursors of readers that got no records are stored. After a crash such a
# reader has up to this much more of the log to search.
CURSORS_EVERY_S: Final = 10.0

_log = structlog.get_logger("link")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """How much may wait for the disk before the engine waits too."""

    pause_firing: int  # decisions
    pause_reading: int  # records
    max_pending_commands: int  # of timers


class Engine:
    """Applies the requests of links, and decides who is offline and which timers fire."""

    def __init__(
        self,
        presence: Presence,
        scheduler: TimerScheduler,
        *,
        attended: AttendedClock,
        clock: Clock,
        log_writer: LogWriter,
        registry: LinkRegistry,
        counts: Counts,
        limits: EngineLimits,
        handshake: Handshake,
    ) -> None:
        self.presence = presence
        self.scheduler = scheduler
        self.registry = registry
        self.turn_wanted = Notifier()  # before the next turn is due
        self.timers_wanted = Notifier()  # timers are due, or must be loaded
        self.last_turn_at = clock.mono()
        # Until the links that connected before this process listened are accepted.
        self.draining_backlog = False
        self._turns_at = self.last_turn_at  # when the next turn is due
        self._lags = WindowedMax(LAG_SHOWN_S)
        self._attended = attended
        self._clock = clock
        self._log_writer = log_writer
        self._counts = counts
        self._limits = limits
        self._handshake = handshake
        self._dispatcher = Dispatcher(
            presence,
            scheduler,
            log_writer=log_writer,
            registry=registry,
            handshake=handshake,
            clock=clock,
            read_sent=lambda link, now: self._reader.read_sent(link, now),
        )
        self._reader = LinkReader(
            registry,
            presence,
            self._dispatcher,
            attended=attended,
            clock=clock,
            log_writer=log_writer,
            counts=counts,
            max_pending_commands=limits.max_pending_commands,
        )
        self._warnings = Warnings(presence, clock)
        self._cursors_at = self._unread_at = self._promises_at = 0.0
        self._asked = 0.0  # the last sleep that was asked for, in seconds
        self._reading_paused = False
        self._firing_throttled = False

    # --- links come and go ----------------------------------------------------

    @property
    def attended(self) -> float:
        """Attended seconds at the last turn."""
        return self._attended.now

    @property
    def unattended(self) -> float:
        """Seconds so far in which links were not read."""
        return self._attended.unattended

    @property
    def is_paused(self) -> bool:
        """Whether attended time is paused, until gateways had time to reconnect."""
        return self._attended.is_paused

    @property
    def hand_lag(self) -> float:
        """The most seconds by which a recent turn was late, or the next one is by now.

        Recent turns count, since this is read between turns, when none is late.
        """
        mono = self._clock.mono()
        return max(mono - self._turns_at, self._lags.recent(mono), 0.0)

    def new_conversation(self) -> Conversation:
        """Make the state machine of a new link."""
        return Conversation(self._handshake.limits, Reader)

    def start(self) -> None:
        """Start attended time, and with it all timeouts.

        If sessions were restored, it is paused until the links that connected before this
        process listened are accepted and read.
        """
        self._turns_at = self.last_turn_at = self._clock.mono()
        self._attended.begin(mono=self._turns_at, cpu=self._clock.cpu())
        if len(self.presence):
            self._attended.pause(self._turns_at, reconnect_grace=0.0)
            self.draining_backlog = True
        # A gateway cannot answer its timers before it is back.
        self.scheduler.was_absent(
            self._turns_at, self._turns_at + self._attended.reconnect_grace
        )

    def readable(self, link: SocketLink) -> None:
        """Note that a link has something to read."""
        self._reader.add(link)
        self.turn_wanted.notify()

    def closed(self, link: SocketLink) -> None:
        """Forget a link whose socket is closed."""
        self.registry.closed(link)
        self._reader.discard(link)
        self.turn_wanted.notify()

    # --- the turn -------------------------------------------------------------

    def turn(self) -> float:
        """Account for time, read, fire, commit; return when to turn next, as `mono`."""
        mono = self._clock.mono()
        now = self._account_time(mono)
        has_more = self._read(now)
        fired = self._fire(mono, now)
        if not self._firing_throttled:
            has_more |= fired > 0 and bool(self.presence.due_gateways())
        self._expire_handshakes(now)
        self._do_periodic_work(mono, now)
        self.commit()
        return self._next_turn(mono, now, has_more=has_more, has_fired=fired > 0)

    def _account_time(self, mono: float) -> float:
        """Advance the clocks and the wheel; return attended seconds."""
        self._lags.note(max(0.0, mono - self._turns_at), mono)
        attended, paused_since = self._attended, self._attended.paused_since
        now = attended.turn(
            mono=mono,
            cpu=self._clock.cpu(),
            asked=self._asked,
            reading_paused=self._reading_paused,
        )
        if attended.paused_since != paused_since:
            # Bytes that arrived before the pause: they must be read before anyone goes
            # offline. Only these, since a link that floods is never read empty.
            for link in self.registry.links.values():
                link.must_read_bytes = link.unread()
        self._check_disk()
        # Time in which a link is not read does not count as a missing answer to a timer.
        if attended.is_paused or self._reading_paused:
            self.scheduler.was_absent(self.last_turn_at, mono)
        else:
            for name in self._reader.held_back:
                self.scheduler.was_absent(self.last_turn_at, mono, name)
        self._reader.hold_back(now)
        self.last_turn_at = mono
        self.presence.advance(now, self.presence.wheel.steps)
        return now

    def _check_disk(self) -> None:
        """Compare what waits for the disk with the bounds; count when one is reached."""
        log_writer, limits = self._log_writer, self._limits
        was_throttled, was_paused = self._firing_throttled, self._reading_paused
        self._firing_throttled = self.is_firing_throttled
        self._reading_paused = log_writer.records_pending >= limits.pause_reading
        met = self._counts.limits_met
        met["limits.pause_firing"] += self._firing_throttled and not was_throttled
        met["limits.pause_reading"] += self._reading_paused and not was_paused
        # From half of that bound on a storm of logins fills the queue no faster than the
        # disk empties it, while links that send little are read as before.
        self._reader.disk_is_behind = (
            2 * log_writer.records_pending >= limits.pause_reading
        )

    def _read(self, now: float) -> bool:
        """Read links and apply their requests; return whether there is more to do."""
        has_more = False
        if not self._firing_throttled:
            self._reset_sessions()
        if not self._reading_paused:
            has_more = self._reader.read_ready(now)
            if self._attended.is_paused:
                self._attended.resume_if_caught_up(
                    mono=self._clock.mono(),
                    all_read=not self.draining_backlog
                    and not any(
                        link.must_read_bytes and link.is_open
                        for link in self.registry.links.values()
                    ),
                )
        # A hello that was read just now may have begun a reset.
        return has_more or (self._dispatcher.has_resets and not self._firing_throttled)

    def _fire(self, mono: float, now: float) -> int:
        """Fire due users and request due timers; return how many users went offline."""
        self.scheduler.advance(mono)
        if self.scheduler.has_due or self.scheduler.wants_filling:
            self.timers_wanted.notify()
        fired = 0
        if not self._attended.is_paused:
            fired = self.presence.fire(self.instant(), limit=self._fire_limit())
        self._warnings.log_storms(now)
        return fired

    def _expire_handshakes(self, now: float) -> None:
        """End links that have sent no hello in time."""
        if self._reading_paused:
            return
        for link in self.registry.expired_handshakes(now):
            # Its hello may still be unread, as after a long turn. Only the first piece is
            # read: all that many links send behind their hellos could take seconds.
            self._reader.read(
                link, now, must_read_bytes=min(link.unread(), PIECE_BYTES)
            )
            self.registry.expire_handshake(link, now)
        self.registry.handshakes_expired.notify()

    def _do_periodic_work(self, mono: float, now: float) -> None:
        if mono >= self._promises_at and not self._reading_paused:
            self._promises_at = mono + PROMISES_EVERY_S
            self._check_promises(now)
        if mono >= self._unread_at:
            self._unread_at = mono + UNREAD_EVERY_S
            self.registry.end_unread(now)
        if mono >= self._cursors_at:
            self._cursors_at = mono + CURSORS_EVERY_S
            for link in self.registry.named.values():
                link.outbox.follow()
            self._forget_gateways(now)
            for gateway in self.presence.timeouts_over(now):
                self._log_writer.store_longest_timeout(gateway.name, gateway.in_force)
        self._warnings.check_timeouts(mono, now)

    def commit(self) -> None:
        """Pass the decisions to the log's writer."""
        self._log_writer.take_over(self.presence.decided)

    def written(self) -> None:
        """Note a commit; request a turn if the last one waited for the disk."""
        if (
            self._firing_throttled
            or self._reader.disk_is_behind
            or self._reader.held_back
        ):
            self.turn_wanted.notify()

    def drain(self) -> bool:
        """At a stop: read every link once; return whether all were read empty."""
        now = self._attended.now
        self._reset_sessions()
        is_empty = self._reader.read_all(now)
        self.commit()
        return is_empty and not self._dispatcher.has_resets

    def instant(self) -> Instant:
        """This moment, at the attended second of the turn."""
        return self._clock.instant(self._attended.now, self._clock.mono())

    # --- timers ---------------------------------------------------------------

    def timers_changed(self) -> None:
        """Note that timers were loaded or changed: one may be due before the next turn."""
        if self.scheduler.next_due() < self._turns_at:
            self.turn_wanted.notify()

    @property
    def commands_per_gateway(self) -> int:
        """How many timer commands of one gateway may wait for the disk now."""
        return self._reader.commands_per_gateway

    def cancel_timer(self, gateway: str, key: str) -> None:
        """Cancel the live timer of a key, for an operator."""
        self.scheduler.cancel(gateway, Cancel(key, None), self.instant())
        self.commit()

    def retry_timer(self, gateway: str, key: str) -> None:
        """Try a failed or pending timer now, for an operator."""
        self.scheduler.try_again(gateway, key, self.instant())
        self.commit()

    # --- users ----------------------------------------------------------------

    def status_of(self, uid: Uid) -> UserStatus | None:
        """The status of a user; None if it is not online."""
        status = self.presence.status_of(uid, self.instant())
        if status is None:
            return None
        if self._attended.is_paused:
            return replace(status, held=PAUSED)
        if status.slot is None and self.is_firing_throttled:
            return replace(status, held=DISK)
        return status

    # --- names ----------------------------------------------------------------

    def names_in_use(self) -> list[tuple[str, str]]:
        """The roles and names that have a link or users."""
        gateways = self.presence.gateways.values()
        with_users = [(GATEWAY, gateway.name) for gateway in gateways if gateway.users]
        return [*self.registry.named, *with_users]

    def why_in_use(self, role: str, name: str) -> str | None:
        """Why a name cannot be forgotten now; None if it can."""
        if (role, name) in self.registry.named:
            return "is connected; stop it first"
        gateway = self.presence.gateways.get(name) if role == GATEWAY else None
        if gateway is not None and gateway.users:
            return (
                f"has {gateway.users} users online; they go offline by themselves if it "
                "does not come back"
            )
        return None

    def forget(self, role: str, name: str) -> None:
        """Forget a name and its cursor."""
        assert self.why_in_use(role, name) is None
        self._log_writer.forget(role, name)
        _log.info("name forgotten", role=role, name=name)

    def _forget_gateways(self, now: float) -> None:
        """Free gateways without cursor, users and link."""
        for gateway in [*self.presence.gateways.values()]:
            if (GATEWAY, gateway.name) not in self._log_writer.cursors and not (
                gateway.users or gateway.is_linked
            ):
                self.presence.forget(gateway.name, now)

    # --- storms ---------------------------------------------------------------

    def release(self, name: str | None) -> list[Storm]:
        """Let the users that the guard holds go offline, for an operator.

        Args:
            name: The gateway; None for all.
        Returns:
            The storms that this ended; none without a guard or such a gateway.
        """
        guard = self.presence.guard
        gateway = None if name is None else self.presence.gateways.get(name)
        if guard is None or (name is not None and gateway is None):
            return []
        released = guard.release(gateway, self._attended.now)
        self._warnings.log_storms(self._attended.now)
        self.turn_wanted.notify()
        return released

    # --- helpers --------------------------------------------------------------

    @property
    def is_firing_throttled(self) -> bool:
        """Whether so much waits for the disk that few or no users may be fired."""
        return self._log_writer.pending_ends >= self._limits.pause_firing

    def _fire_limit(self) -> int:
        """How many users may be fired in this turn."""
        if not self.is_firing_throttled:
            return FIRE_PER_TURN
        is_half = self._log_writer.pending_ends < 2 * self._limits.pause_firing
        return FIRE_WHILE_THROTTLED if is_half else 0

    def _next_turn(
        self, mono: float, now: float, *, has_more: bool, has_fired: bool
    ) -> float:
        """Choose when to turn next; return it, in monotonic seconds."""
        if has_more and not self._reading_paused:
            wait = LEAST_SLEEP_S
        elif self._attended.is_paused:
            wait = HELD_SLEEP_S
        else:
            wait = min(self.presence.wheel.next_due() - now, MOST_SLEEP_S)
            wait = min(wait, self.scheduler.next_due() - mono)
            if self.scheduler.has_due:
                wait = min(wait, GATHER_S)
            if self._reader.has_ready or self.presence.due_gateways():
                wait = min(wait, HELD_SLEEP_S)
            if (self._reader.expects_more and not self._reading_paused) or (
                has_fired and self._firing_throttled
            ):
                wait = min(wait, GATHER_S)
            wait = max(wait, LEAST_SLEEP_S)
        self._asked = wait
        self._turns_at = mono + wait
        return self._turns_at

    def _check_promises(self, now: float) -> None:
        """Count broken promises to ping, after reading what those gateways have sent."""
        for gateway in [*self.presence.gateways.values()]:
            if not gateway.has_missed(now):
                continue
            link = self.registry.named.get((GATEWAY, gateway.name))
            if link is not None:
                self._reader.read_sent(link, now)
            if gateway.has_missed(now):
                self._warnings.count_missed_promise(gateway, now)

    def _reset_sessions(self) -> None:
        for link in self._dispatcher.reset_sessions(self.instant()):
            self._reader.add(link)


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
