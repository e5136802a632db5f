"""The one owner of core state: reads, has applied, judges, hands on.

Everything here is synchronous, so that in trio it is atomic. One `turn` is one pass
in one direction: drain every readable link, each up to a budget, and have applied what
it asks for (`dispatch`); judge who is due; give what was decided to the journal. Read,
then fire: a user is judged only after its gateway's socket has been read empty since
its deadline.
"""

from dataclasses import dataclass, replace
from typing import Final, NoReturn

import structlog
import trio

from liveness.compiled import Reader
from liveness.core.attended_clock import AttendedClock, WindowedMax
from liveness.core.clearance import DISK, STANDS, GatewayState
from liveness.core.conversation import Conversation
from liveness.core.presence import Presence, UserStatus
from liveness.core.records import (
    GATEWAY,
    Cancel,
    Instant,
    TimerRecord,
    Uid,
)
from liveness.core.storm_guard import Storm
from liveness.core.timer_scheduler import Due, TimerScheduler
from liveness.metrics import Counts
from liveness.service.common.clock import Clock
from liveness.service.common.logs import SAY_AGAIN_S, Every
from liveness.service.common.notifier import Notifier
from liveness.service.engine.dispatch import Dispatcher
from liveness.service.engine.warnings import Warnings
from liveness.service.links.handshake import Handshake
from liveness.service.links.link import PIECE_BYTES, SocketLink
from liveness.service.links.registry import LinkRegistry
from liveness.service.storage.log_writer import LogWriter
from liveness.service.storage.skipped_runs import SkippedRuns

# One pass reads no longer than this; who was not reached comes first in the next one.
# A flooding gateway delays others by no more than that, and by one receive.
READING_S: Final = 0.002
# As much again, at most half of it, is for watchers and those who have not said hello.
OTHERS_S: Final = 0.001
# Offlines decided in one pass, over all gateways. Passes follow each other at once
# while there are more, so this bounds a pass, not the rate.
FIRE_PER_PASS: Final = 1_000
# While too many wait for the disk, and until twice as many do: a gateway's mass offline
# must not hold up the few of another, who come first in an equal share.
FIRE_WHILE_BEHIND: Final = 50
# Reads are gathered for so long, unless somebody comes due before. A wake-up for each of
# 3,000 one-uid frames a second costs several times what fifty passes do.
GATHER_S: Final = 0.020
# A turn that comes too soon finds nothing; the least sleep is far below the promise.
LEAST_SLEEP_S: Final = 0.0005
# Due users that wait for their gateway are looked at this often.
HELD_SLEEP_S: Final = 0.05
# How late a turn was is shown for so long: Prometheus asks every 15 s as a rule.
LAG_SHOWN_S: Final = 15.0
# Longest sleep: an absence that is over within it cannot be told from it, and counts. Of
# stops that follow each other that is at most this part of each second.
MOST_SLEEP_S: Final = 0.1
# Whether gateways keep their promise to ping is looked at so often; what they have over
# is at least a second.
PROMISES_EVERY_S: Final = 0.25
# What is left unread is looked at this often.
UNREAD_EVERY_S: Final = 1.0
# Cursors of readers that nothing concerned are stored this often; until then a crash
# costs them a longer look at the log.
FOLLOW_EVERY_S: Final = 10.0
_log = structlog.get_logger("link")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What waits for the disk, and beyond which number the engine waits too."""

    pause_firing: int  # decisions
    pause_reading: int  # records
    max_orders: int  # orders about timers


class Engine:
    """Has applied what links ask for, and decides who is offline.

    Args:
        presence: The core, as far as users go.
        timetable: The core, as far as timers go.
        attended: Its clock.
        clock: The real clocks.
        log_writer: Where decisions go.
        book: Who is connected.
        counts: Where lateness is counted.
        limits: How far it may be ahead of the disk.
        greeter: Says welcome.
        passed_over: What gateways passed over.
    """

    def __init__(
        self,
        presence: Presence,
        timetable: TimerScheduler,
        *,
        attended: AttendedClock,
        clock: Clock,
        log_writer: LogWriter,
        book: LinkRegistry,
        counts: Counts,
        limits: EngineLimits,
        greeter: Handshake,
        passed_over: SkippedRuns,
    ) -> None:
        self.presence = presence
        self.timetable = timetable
        self.book = book
        self.wanted = Notifier()  # rung when a turn is wanted before it is due
        self.timers_wanted = Notifier()  # rung when some came due, or are to be loaded
        self.timers_unread: str | None = None  # why the table cannot be read
        self.turned_at = clock.mono()
        self._turns_at = self.turned_at  # the next turn, unless one is wanted before
        self._lags = WindowedMax(LAG_SHOWN_S)
        self._attended = attended
        self._clock = clock
        self._log_writer = log_writer
        self._counts = counts
        self._limits = limits
        self._greeter = greeter
        self._passed_over = passed_over
        self._requests = Dispatcher(
            presence,
            timetable,
            log_writer=log_writer,
            book=book,
            greeter=greeter,
            clock=clock,
            read_out=self._read_out,
        )
        self._advice = Warnings(presence, clock)
        self._every = Every(SAY_AGAIN_S, clock=clock.mono)
        self._ready: dict[int, SocketLink] = {}
        # Gave something in the last pass, so they are read in the next one without
        # being watched in between.
        self._lively: dict[int, SocketLink] = {}
        self._follow_at = self._unread_at = self._promises_at = 0.0
        self._asked = 0.0
        self._reading_paused = False
        self._is_behind = False  # the disk, with what was read
        # Gateways that are not read until the disk has more of what they ask of timers.
        self._held_back: dict[str, GatewayState] = {}
        self._waits_for_disk = False
        # Until those who waited in the backlog before we listened are taken on.
        self.draining_backlog = False

    # --- links come and go ----------------------------------------------------

    @property
    def attended(self) -> float:
        """Attended seconds as of the last turn."""
        return self._attended.now

    @property
    def unattended(self) -> float:
        """Seconds in which nobody was listened to."""
        return self._attended.unattended

    @property
    def is_paused(self) -> bool:
        """Whether attended time stands still, until everyone had time to come back."""
        return self._attended.is_paused

    @property
    def hand_lag(self) -> float:
        """Most seconds by which a turn was overdue, of late, or is by now.

        Whoever asks is served between turns, so that now there is hardly ever any.
        """
        mono = self._clock.mono()
        return max(mono - self._turns_at, self._lags.of_late(mono), 0.0)

    def converse(self) -> Conversation:
        """Make the state machine of a new link."""
        return Conversation(self._greeter.limits, Reader)

    def begin(self) -> None:
        """Start to listen; from here on everyone's clock runs.

        Who waits in the backlog has spoken already: it is read before anyone is judged,
        and the clock stands until then.
        """
        self._turns_at = self.turned_at = self._clock.mono()
        self._attended.begin(mono=self._turns_at, cpu=self._clock.cpu())
        if len(self.presence):
            self._attended.stand(self._turns_at, reconnect_grace=0.0)
            self.draining_backlog = True
        # Nor can a run be answered before its gateway is back.
        self.timetable.was_absent(
            self._turns_at, self._turns_at + self._attended.reconnect_grace
        )

    def readable(self, link: SocketLink) -> None:
        """Note that a link has something to read."""
        self._ready[link.number] = link
        self.wanted.notify()

    def closed(self, link: SocketLink) -> None:
        """Forget a link whose socket is closed."""
        self.book.closed(link)
        self._ready.pop(link.number, None)
        self._lively.pop(link.number, None)
        self.wanted.notify()

    # --- the pass -------------------------------------------------------------

    def turn(self) -> float:
        """Make one pass; return the monotonic second at which to make the next."""
        mono = self._clock.mono()
        self._lags.note(max(0.0, mono - self._turns_at), mono)
        stood_since = self._attended.stands_since
        now = self._attended.turn(
            mono=mono,
            cpu=self._clock.cpu(),
            asked=self._asked,
            reading_paused=self._reading_paused,
        )
        if self._attended.stands_since != stood_since:
            # That much was sent before. A link that floods is never read empty, and is not
            # to keep the clock from going on for the others.
            for link in self.book.links.values():
                link.must_read_bytes = link.unread()
        log_writer, limits = self._log_writer, self._limits
        waited, was_deaf = self._waits_for_disk, self._reading_paused
        self._waits_for_disk = log_writer.pending_ends >= limits.pause_firing
        self._reading_paused = log_writer.records_pending >= limits.pause_reading
        met = self._counts.limits_met
        met["limits.pause_firing"] += self._waits_for_disk and not waited
        met["limits.pause_reading"] += self._reading_paused and not was_deaf
        # From half of that bound on a link is read no further than a small piece a pass: a
        # storm of logins fills what waits for the disk no faster than the disk empties
        # it, and the links that say little are read as ever.
        self._is_behind = 2 * log_writer.records_pending >= limits.pause_reading
        if self._attended.is_paused or self._reading_paused:
            self.timetable.was_absent(self.turned_at, mono)
        else:
            for name in self._held_back:
                self.timetable.was_absent(self.turned_at, mono, name)
        self._hold_back(now)
        self.turned_at = mono
        presence = self.presence
        presence.advance(now, presence.wheel.steps)
        has_more = False
        if not self._waits_for_disk:
            self._end_lost_sessions(now)
        if not self._reading_paused:
            has_more |= self._read_links(now)
        # Also a hello that was read just now: it waits for its welcome.
        has_more |= self._requests.has_losing and not self._waits_for_disk
        self._call_timers(mono)
        judged = 0
        if not self._attended.is_paused:
            judged = presence.fire(self._instant(now), limit=self._fire_limit())
        self._advice.of_storms(now)
        if not self._waits_for_disk:
            has_more |= judged > 0 and bool(presence.due_gateways())
        if not self._reading_paused:
            for link in self.book.slow(now):
                # What it said may lie unread, as after a long computation. A hello is in
                # the first piece; what a crowd sends behind theirs would fill seconds.
                self._read(link, now, must_read_bytes=min(link.unread(), PIECE_BYTES))
                self.book.send_away(link, now)
            self.book.thinned.notify()
        if mono >= self._promises_at and not self._reading_paused:
            self._promises_at = mono + PROMISES_EVERY_S
            self._look_at_promises(now)
        if mono >= self._unread_at:
            self._unread_at = mono + UNREAD_EVERY_S
            self.book.end_unread(now)
        if mono >= self._follow_at:
            self._follow_at = mono + FOLLOW_EVERY_S
            for link in self.book.named.values():
                link.outbox.follow()
            self._forget_gateways(now)
            for gateway in presence.timeouts_over(now):
                log_writer.keep_in_force(gateway.name, gateway.in_force)
        self._advice.of_timeouts(mono, now)
        self._log_writer.take_over(self.presence.decided)
        return self._next_turn(mono, now, has_more, judged > 0)

    def written(self) -> None:
        """Note that a commit is done; go on, if that was waited for."""
        if self._waits_for_disk or self._is_behind or self._held_back:
            self.wanted.notify()

    # --- timers ---------------------------------------------------------------

    def take_timers(self, limit: int) -> list[int]:
        """Take so many timers that came due in hand, as far as the disk keeps up."""
        log_writer = self._log_writer
        if log_writer.pending_ends >= self._limits.pause_firing:
            return []
        # A gateway may owe twice as much as that at which it is not read any more: its
        # orders without end would otherwise keep its own timers from being fired.
        most, pending_of = 2 * self._share_of_orders, log_writer.timers.pending_of
        return self.timetable.take(
            limit, lambda gateway: pending_of.get(gateway, 0) <= most
        )

    def loaded_timers(self) -> None:
        """Note that there are others on the ring: one may come before the next turn."""
        if self.timetable.next_due() < self._turns_at:
            self.wanted.notify()

    def judge_timers(self, rows: list[Due]) -> None:
        """Fire those in hand, or end their runs, as the table has them."""
        at = self._instant(self._attended.now)
        lateness = self.timetable.fire(rows, at, self._handed, self._hurry)
        for seconds in lateness:
            self._counts.timer_lateness.observe(seconds)
        self._log_writer.take_over(self.presence.decided)

    def cancel_timer(self, gateway: str, key: str) -> None:
        """Cancel the live timer of a key, as an operator wants it."""
        at = self._instant(self._attended.now)
        self.timetable.cancel(gateway, Cancel(key, None), at)
        self._log_writer.take_over(self.presence.decided)

    def retry_timer(self, gateway: str, key: str) -> None:
        """Have a failed or pending timer tried now, as an operator wants it."""
        at = self._instant(self._attended.now)
        self.timetable.try_again(gateway, key, at)
        self._log_writer.take_over(self.presence.decided)

    # --- users ----------------------------------------------------------------

    def standing(self, uid: Uid) -> UserStatus | None:
        """How it stands with a user, as far as is decided; None if it is not online."""
        standing = self.presence.standing(uid, self._instant(self._attended.now))
        if standing is None:
            return None
        if self._attended.is_paused:
            return replace(standing, held=STANDS)
        if standing.slot is None and self._fire_limit() < FIRE_PER_PASS:
            return replace(standing, held=DISK)
        return standing

    # --- names ----------------------------------------------------------------

    def names_in_use(self) -> list[tuple[str, str]]:
        """Names, with their roles, that have a link or users."""
        gateways = self.presence.gateways.values()
        with_users = [(GATEWAY, gateway.name) for gateway in gateways if gateway.users]
        return [*self.book.named, *with_users]

    def why_kept(self, role: str, name: str) -> str | None:
        """Why a name cannot be forgotten by now; None if it can."""
        if (role, name) in self.book.named:
            return "is connected; stop it first"
        gateway = self.presence.gateways.get(name) if role == GATEWAY else None
        if gateway is not None and gateway.users:
            return (
                f"has {gateway.users} users online; they go offline by themselves if it "
                "does not come back"
            )
        return None

    def forget(self, role: str, name: str) -> None:
        """Give up a name, and its place in the log."""
        assert self.why_kept(role, name) is None
        self._log_writer.forget(role, name)
        _log.info("name forgotten", role=role, name=name)

    def _forget_gateways(self, now: float) -> None:
        """Let go of gateways whose name is kept no more, and of whom nothing is left."""
        for gateway in [*self.presence.gateways.values()]:
            if (GATEWAY, gateway.name) not in self._log_writer.cursors and not (
                gateway.users or gateway.is_linked
            ):
                self.presence.forget(gateway.name, now)

    def undelivered(self, runs: list[TimerRecord]) -> None:
        """Have timers fire again of whose runs their gateway will not be told."""
        at = self._instant(self._attended.now)
        for run in runs:
            self.timetable.undelivered(run.gateway, run.key, run.seq, at)
        self._log_writer.take_over(self.presence.decided)

    def _handed(self, gateway: str) -> int:
        """The seq up to which a gateway was handed its records."""
        link = self.book.named.get((GATEWAY, gateway))
        cursor = self._log_writer.cursors.get((GATEWAY, gateway))
        if link is not None and link.outbox.position is not None:
            position = link.outbox.position
        elif cursor is not None:
            position = cursor.seq
        else:
            return 0  # a name that was forgotten; it may come back
        position = self._passed_over.delivered(gateway, position)
        # What is not kept any more will not be handed to anybody.
        return max(position, self._log_writer.first - 1)

    def _hurry(self, gateway: str, key: str) -> None:
        """Have the table told of a run now that a later timer of its key waits for."""
        self._log_writer.timers.hurry(gateway, key, ticket=self._log_writer.ticket)

    def _call_timers(self, mono: float) -> None:
        self.timetable.advance(mono)
        if self.timetable.has_due or self.timetable.wants_filling:
            self.timers_wanted.notify()

    def drain(self) -> bool:
        """At a stop: read every link once; return whether all were read empty."""
        now = self._attended.now
        self._end_lost_sessions(now)
        until = self._clock.mono() + READING_S
        is_empty = [
            self._read(link, now, until=until) for link in [*self.book.links.values()]
        ]
        self._log_writer.take_over(self.presence.decided)
        return all(is_empty) and not self._requests.has_losing

    # --- storms ---------------------------------------------------------------

    def release(self, name: str | None) -> list[Storm]:
        """Have users judged whom the guard holds, as an operator wants it.

        Args:
            name: Their gateway's; None: those of all.
        Returns:
            The storms that were on; none if there is no guard, or no such gateway.
        """
        guard = self.presence.guard
        gateway = None if name is None else self.presence.gateways.get(name)
        if guard is None or (name is not None and gateway is None):
            return []
        released = guard.release(gateway, self._attended.now)
        self._advice.of_storms(self._attended.now)
        self.wanted.notify()
        return released

    # --- within ---------------------------------------------------------------

    def _fire_limit(self) -> int:
        """How many may be judged in this pass."""
        pending, pause = self._log_writer.pending_ends, self._limits.pause_firing
        if pending < pause:
            return FIRE_PER_PASS
        return FIRE_WHILE_BEHIND if pending < 2 * pause else 0

    def _next_turn(
        self, mono: float, now: float, has_more: bool, has_judged: bool
    ) -> float:
        if has_more and not self._reading_paused:
            wait = LEAST_SLEEP_S
        elif self._attended.is_paused:
            wait = HELD_SLEEP_S
        else:
            wait = min(self.presence.wheel.next_due() - now, MOST_SLEEP_S)
            wait = min(wait, self.timetable.next_due() - mono)
            if self.timetable.has_due:
                wait = min(wait, GATHER_S)
            if self._ready or self.presence.due_gateways():
                wait = min(wait, HELD_SLEEP_S)
            is_lively = bool(self._lively) or (self._is_behind and bool(self._ready))
            if (is_lively and not self._reading_paused) or (
                has_judged and self._waits_for_disk
            ):
                wait = min(wait, GATHER_S)
            wait = max(wait, LEAST_SLEEP_S)
        self._asked = wait
        self._turns_at = mono + wait
        return self._turns_at

    def _read_links(self, now: float) -> bool:
        """Read those that are ready or wanted; return whether one has more."""
        if self._attended.is_paused:
            links = dict(self.book.links)
        else:
            links = self._ready | self._lively
            for gateway in self.presence.due_gateways():
                link = self.book.named.get((GATEWAY, gateway.name))
                if link is not None:
                    links[link.number] = link
        self._ready, self._lively = {}, {}
        # Who gave something longest ago comes first: a link that floods, or was cut short,
        # must not use up the time of one whose users are due.
        in_order = sorted(links.values(), key=lambda link: link.read_at)
        # Gateways and all others have a time each: users wait for their gateways only.
        for is_gateway, budget_s in ((True, READING_S), (False, OTHERS_S)):
            until = self._clock.mono() + budget_s
            for link in in_order:
                if (link.gateway is not None) is not is_gateway or not link.is_open:
                    continue
                if not self._read(link, now, until=until):
                    self._ready[link.number] = link
        if self._attended.is_paused:
            self._attended.caught_up(
                mono=self._clock.mono(),
                all_read=not self.draining_backlog
                and not any(
                    link.must_read_bytes and link.is_open
                    for link in self.book.links.values()
                ),
            )
        may_go_on = any(
            not link.outbox.is_full and not self._holds_back(link)
            for link in self._ready.values()
        )
        return may_go_on and not self._is_behind

    @property
    def _share_of_orders(self) -> int:
        """How many orders about timers of one gateway may wait for the disk.

        As many as there is room for yet: so one alone may take half of the bound, two a
        third each, and so on, and there is always room for another. No fewer than its
        equal share, should there be no room after all: who gives few never waits for
        those who give many.

        Source: Choudhury & Hahne 1998, dynamic queue lengths in a shared memory.
        """
        most = self._limits.max_orders
        room = most - self._log_writer.timers.pending
        return max(room, most // (self.book.linked(GATEWAY) + 1))

    def _hold_back(self, now: float) -> None:
        """Leave gateways unread of which too many orders wait for the disk."""
        timers = self._log_writer.timers
        held_back = dict[str, GatewayState]()
        if 2 * timers.pending > self._limits.max_orders:
            share = self._share_of_orders
            for name, pending in timers.pending_of.items():
                link = self.book.named.get((GATEWAY, name))
                if pending > share and link is not None and link.gateway is not None:
                    held_back[name] = link.gateway
        for name, gateway in self._held_back.items():
            if name not in held_back:
                gateway.let_go(now)
        for gateway in held_back.values():
            if gateway.held_back_at is None:
                gateway.hold_back(now)
                self._counts.limits_met["timers.max_pending"] += 1
                self._every(
                    _log.warning,
                    "a gateway is not read while what it asks of timers waits for the "
                    "disk: have it ask for fewer, or raise timers.max_pending",
                    key=gateway.name,
                    name=gateway.name,
                    pending=timers.pending_of[gateway.name],
                )
        self._held_back = held_back

    @staticmethod
    def _holds_back(link: SocketLink) -> bool:
        """Whether a link is not read, as what it asks of timers has to be written."""
        return link.gateway is not None and link.gateway.held_back_at is not None

    def _read(
        self,
        link: SocketLink,
        now: float,
        *,
        until: float = 0.0,
        must_read_bytes: int = 0,
    ) -> bool:
        """Read one link, until the budget is used up; return whether it is empty.

        So many bytes are *must_read_bytes*: they are read whatever the budget, and the disk.
        """
        taken = 0
        mono = self._clock.mono()
        while taken < must_read_bytes or (
            mono < until and not (taken and self._is_behind)
        ):
            if not link.is_open or self._requests.is_losing(link):
                return True
            if taken >= must_read_bytes and self._holds_back(link):
                return False
            if link.outbox.is_full:
                # Its answers first. Who reads them will be read again.
                if not link.outbox.is_unread:
                    return False
                self.book.overload(link, link.outbox.excess)
                return True
            data = link.receive(PIECE_BYTES if self._is_behind else link.piece_bytes)
            if data is None:
                link.must_read_bytes = 0
                if link.gateway is not None:
                    link.gateway.empty_at = now
                if taken:
                    self._lively[link.number] = link
                else:
                    link.drained.notify()
                return True
            taken += len(data)
            link.must_read_bytes = max(0, link.must_read_bytes - len(data))
            link.read_at = mono = self._clock.mono()
            at = self._clock.instant(self._attended.at(mono), mono)
            if not data:
                self.book.end(link, why="closed by the other side")
                return True
            if link.gateway is not None:
                link.gateway.heard(at.now)
            self._requests.listen_to(link, data, at)
            self.book.count_unfinished(link)
            self.book.shed_unread()
            link.measure(self._clock.mono() - mono)
        return False

    def _read_out(self, link: SocketLink, now: float) -> None:
        """Read what a link has sent up to now, and not what it goes on to write."""
        self._read(link, now, must_read_bytes=link.unread())

    def _look_at_promises(self, now: float) -> None:
        """Count which gateways broke theirs: what they have sent by now is read first."""
        for gateway in [*self.presence.gateways.values()]:
            if not gateway.has_missed(now):
                continue
            link = self.book.named.get((GATEWAY, gateway.name))
            if link is not None:
                self._read_out(link, now)
            if gateway.has_missed(now):
                self._advice.of_promise(gateway, now)

    def _end_lost_sessions(self, now: float) -> None:
        for link in self._requests.end_lost_sessions(self._instant(now)):
            self._ready[link.number] = link

    def _instant(self, now: float) -> Instant:
        return self._clock.instant(now, self._clock.mono())


async def turn_for_ever(engine: Engine) -> NoReturn:
    """Turn at once when something came, but `GATHER_S` apart, and when one is due."""
    while True:
        began = trio.current_time()
        engine.wanted.clear()
        due_at = engine.turn()
        # Gather first: whoever rings meanwhile wakes nobody. But not past what is due;
        # and in any case others get their turn.
        await trio.sleep_until(min(began + GATHER_S, due_at))
        if trio.current_time() < due_at:
            with trio.move_on_at(due_at):
                await engine.wanted.wait()
