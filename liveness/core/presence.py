"""Sessions: what each event changes, and who is gone.

The rules are those of `protocol.md`, "Sessions". Every decision becomes a record,
and every record carries its evidence: what was heard last, when, and how long ago.
They gather, with their effect on the online set, in `Decisions`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from liveness.core import wheel as wheels
from liveness.core.changes import Decisions
from liveness.core.clearance import STORM, WHY_HELD, GatewayState
from liveness.core.fair_share import fair_share
from liveness.core.records import (
    EVENT_NUMBER,
    EVENTS,
    GATEWAY_LOST,
    LOGIN,
    LOGOUT,
    MOVED,
    OFFLINE,
    OFFLINE_REASONS,
    ONLINE,
    SILENCE,
    Instant,
    ListedSigns,
    Login,
    Logout,
    OnlineFields,
    OnlineRow,
    Record,
    SignsOfLife,
    Stopped,
    Uid,
)
from liveness.core.storm_guard import Guard, GuardRules
from liveness.core.table import EXACT_START, OWN_TIMEOUT, RENEWED, Entry
from liveness.core.wheel import Slot, Wheel

# Why an event changed no session, as `liveness_events_ignored_total{why}` shows it.
WHY_OTHER_GATEWAY: Final = "other_gateway"
WHY_OTHER_CONN: Final = "other_conn"
WHY_OLDER: Final = "older"
WHY_OFFLINE: Final = "offline"
WHY_NO_ROOM: Final = "no_room"
WHY_IGNORED: Final = (
    WHY_OTHER_GATEWAY,
    WHY_OTHER_CONN,
    WHY_OLDER,
    WHY_OFFLINE,
    WHY_NO_ROOM,
)

# Why a login's `began` was not used, as `liveness_began_unused_total{why}` shows it.
WHY_OTHER_CLOCK: Final = "other_clock"
WHY_FUTURE: Final = "future"
WHY_BEGAN_UNUSED: Final = (WHY_OTHER_CLOCK, WHY_FUTURE)

# So much later than it was read a connection may be said to have begun: its gateway may
# round to milliseconds.
ROUNDING_S: Final = 0.001

# The early counter compares two readings of one clock with a sum of them; anything
# below a microsecond is the rounding of that sum.
EARLY_S: Final = 1e-6

NO_LIMIT: Final = 2**63

# Gateways whose cadence is looked at in one go: about a millisecond.
CADENCES_PER_LOOK: Final = 200

_NO_CLOCK: Final[Stopped] = (2**63, 0.0, 0.0, 0.0, 0)  # behind every session


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Users of a login that were left out, as there are too many."""

    limit: str  # the bound that was met
    indices: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserStatus:
    """All that is known of a user who is online, at one moment."""

    gateway: str
    session: int
    conn: int | None
    since: int  # Unix milliseconds at which its connection began
    last: str | None  # its last event, and when that was; None: unheard since a crash
    seen: int | None
    timeout: float
    fires_in: float  # attended seconds; 0.0 for one who is due
    slot: Slot | None  # None: it is due
    held: str | None  # what one who is due waits for: see `gateways`
    absence: str | None  # whether its gateway is `AWAY` or `MUTE`


class Presence:
    """Who is online, through which gateway and session.

    Args:
        wheel: An empty wheel; from now on only touched through this.
        decided: Where decisions go.
        timeout: The server's silence timeout, in seconds.
        gateway_hold: Longest that a due user waits for its gateway, in seconds.
        reconnect_grace: Seconds a gateway has to catch up after its link began or ended.
        max_users: Users online above which no session is opened.
        max_gateway_users: The same, of one gateway.
        guard: When users are held because too many are due; None: never.
    """

    def __init__(
        self,
        wheel: Wheel,
        *,
        decided: Decisions,
        timeout: float,
        gateway_hold: float,
        reconnect_grace: float,
        max_users: int = NO_LIMIT,
        max_gateway_users: int = NO_LIMIT,
        guard: GuardRules | None = None,
    ) -> None:
        self.wheel = wheel
        self.decided = decided
        self.timeout = timeout
        self.gateways: dict[str, GatewayState] = {}
        self.guard = None if guard is None else Guard(guard, wheel, self.gateways)
        self.events: Counter[str] = Counter(dict.fromkeys(EVENTS[1:], 0))
        self.ignored: Counter[str] = Counter(dict.fromkeys(WHY_IGNORED, 0))
        self.began_unused: Counter[str] = Counter(dict.fromkeys(WHY_BEGAN_UNUSED, 0))
        self.opened: Counter[str] = Counter(dict.fromkeys(EVENTS[1:4], 0))
        self.ended: Counter[str] = Counter(dict.fromkeys(OFFLINE_REASONS, 0))
        self.moved = 0
        self.early = 0
        self._hold = gateway_hold
        self._reconnect_grace = reconnect_grace
        self._max_users = max_users
        self._max_gateway_users = max_gateway_users
        self._by_number: list[GatewayState] = []
        self._free: list[int] = []  # numbers of gateways that were forgotten
        self._turn = 0  # whose turn it is to fire first
        self._next_cadence = 0  # whose cadence, up to this number

    def __len__(self) -> int:
        return len(self.wheel)

    def gateway(self, name: str) -> GatewayState:
        """Return the gateway of this name; one that is new has no users.

        Of one that is new the timeout is to be set, before it has any.
        """
        known = self.gateways.get(name)
        if known is None:
            number = self._free.pop() if self._free else self.wheel.add_gateway()
            known = GatewayState(
                name, number, self._reconnect_grace, in_force=self.timeout
            )
            self.gateways[name] = known
            self._by_number[number : number + 1] = [known]
        return known

    def forget(self, name: str, now: float) -> None:
        """Forget a gateway, which has neither users nor a link."""
        gateway = self.gateways.pop(name, None)
        if gateway is not None:
            assert not gateway.users
            assert not gateway.is_linked
            self.wheel.forget_silences(gateway.number)
            if self.guard is not None:
                self.guard.forget(gateway, now)
            self._free.append(gateway.number)

    def set_timeout(
        self,
        gateway: GatewayState,
        timeout: float | None,
        now: float,
        *,
        in_force: float = 0.0,
    ) -> None:
        """Set a gateway's silence timeout, or the server's again with None.

        Args:
            gateway: The gateway.
            timeout: For its users, from each one's next event on.
            now: Attended seconds.
            in_force: A longer one, if sessions that are to be restored are under it.
        """
        gateway.timeout = timeout
        before, whole = self.wheel.timeout_of(gateway.number), timeout or self.timeout
        self.wheel.set_timeout(gateway.number, whole)
        gateway.set_in_force(whole, now, before=before)
        if in_force > whole:
            gateway.in_force, gateway.in_force_until = in_force, now + in_force

    def timeouts_over(self, now: float) -> list[GatewayState]:
        """End the longer timeouts that no session is under any more; whose they were."""
        over = [
            gateway
            for gateway in self.gateways.values()
            if gateway.in_force > self.wheel.timeout_of(gateway.number)
            and (
                not gateway.users
                or now
                > max(gateway.in_force_until, gateway.renew_until + gateway.in_force)
            )
        ]
        for gateway in over:
            gateway.in_force = self.wheel.timeout_of(gateway.number)
        return over

    # --- events ---------------------------------------------------------------

    def heard(
        self, gateway: GatewayState, signs: SignsOfLife, at: Instant
    ) -> list[tuple[int, int, int]]:
        """Apply signs of life.

        Returns:
            Of each frame with bad uids its number, the position in `signs` of the
            first bad one, and its index in the frame. The good ones were applied.
        """
        for number in range(EVENT_NUMBER[LOGIN] + 1, EVENT_NUMBER[LOGOUT]):
            self.events[EVENTS[number]] += signs.count(number)
        left = self.wheel.touch(gateway.number, signs, now=at.now, mono=at.mono)
        bad: list[tuple[int, int, int]] = []
        for position, why in left:
            if why == wheels.BAD_UID:
                n, index = signs.frame_at(position)
                if not bad or bad[-1][0] != n:
                    bad.append((n, position, index))
            elif why == wheels.OTHER_GATEWAY:
                self.ignored[WHY_OTHER_GATEWAY] += 1
            elif why == wheels.OTHER_CONN:
                self.ignored[WHY_OTHER_CONN] += 1
            else:
                self._heard_unknown(gateway, signs, position, at)
        return bad

    def login(self, gateway: GatewayState, login: Login, at: Instant) -> NoRoom | None:
        """Apply a login of any number of users.

        Returns:
            Who was left out because there is no room; None if nobody was.
        """
        self.events[LOGIN] += len(login.uids)
        by_age = at.mono - login.age
        began_times = self._began_times(gateway, login, at)
        left_out: list[int] = []
        full = ""
        for index, (uid, conn, began) in enumerate(
            zip(login.uids, login.conns, began_times, strict=True)
        ):
            entry = self.wheel.find(uid)
            start, exact = (by_age, False) if began is None else (began, True)
            if entry is None:
                if limit := self._limit_met(gateway, is_new=True):
                    full = limit
                    left_out.append(index)
                    continue
                self._open(
                    ONLINE, gateway, uid, conn, LOGIN, at, start, exact, login.timeout
                )
            elif entry.gateway == gateway.number and entry.conn in (conn, None):
                self._login_again(gateway, entry, conn, login.timeout, began, at)
            elif self._is_older(entry, began, by_age):
                self.ignored[WHY_OLDER] += 1
                if began is not None and entry.flags & EXACT_START:
                    self._record_older_login(gateway, conn, entry, at)
            elif entry.gateway != gateway.number and (
                limit := self._limit_met(gateway, is_new=False)
            ):
                full = limit
                left_out.append(index)
            else:
                self._leave(self.wheel.close(uid))
                self.decided.changes.online[entry.session] = None
                self._open(
                    MOVED,
                    gateway,
                    uid,
                    conn,
                    LOGIN,
                    at,
                    start,
                    exact,
                    login.timeout,
                    entry,
                )
        self.ignored[WHY_NO_ROOM] += len(left_out)
        return NoRoom(full, left_out) if left_out else None

    def logout(self, gateway: GatewayState, logout: Logout, at: Instant) -> None:
        """Apply a logout of any number of users."""
        self.events[LOGOUT] += len(logout.uids)
        for uid, conn in zip(logout.uids, logout.conns, strict=True):
            entry = self.wheel.find(uid)
            if entry is None:
                self.ignored[WHY_OFFLINE] += 1
            elif entry.gateway != gateway.number:
                self.ignored[WHY_OTHER_GATEWAY] += 1
            elif conn is not None and entry.conn != conn:
                self.ignored[WHY_OTHER_CONN] += 1
            else:
                entry = self.wheel.close(uid)._replace(
                    seen=at.mono, event=EVENT_NUMBER[LOGOUT]
                )
                self._end(entry, LOGOUT, at)

    def where(self, uids: Sequence[Uid]) -> list[tuple[Uid, str, int, int | None]]:
        """Of those that are online: uid, gateway, session, conn."""
        entries = (self.wheel.find(uid) for uid in uids)
        return [
            (entry.uid, self._by_number[entry.gateway].name, entry.session, entry.conn)
            for entry in entries
            if entry is not None
        ]

    def standing(self, uid: Uid, at: Instant) -> UserStatus | None:
        """How it stands with a user; None if it is not online."""
        entry = self.wheel.find(uid)
        if entry is None:
            return None
        gateway = self._by_number[entry.gateway]
        slot = self.wheel.slot_of(uid)
        why = self._why_held(gateway, at.now)
        return UserStatus(
            gateway=gateway.name,
            session=entry.session,
            conn=entry.conn,
            since=at.wall_ms - round((at.mono - entry.start) * 1000),
            last=EVENTS[entry.event] or None,
            seen=at.wall_ms - round((at.mono - entry.seen) * 1000)
            if entry.event
            else None,
            timeout=entry.timeout,
            fires_in=max(0.0, entry.deadline - at.now),
            slot=slot,
            held=why if slot is None else None,
            absence=gateway.absence(at.now),
        )

    # --- endings --------------------------------------------------------------

    def advance(self, now: float, steps: int) -> None:
        """Let whoever is due by *now* be so; see `wheel.Wheel.advance`."""
        if self.guard is None:
            self.wheel.advance(now, steps)
        else:
            self.guard.advance(now, steps)

    def fire(self, at: Instant, *, limit: int) -> int:
        """Judge those who are due, at most *limit*; return how many were.

        Gateways take turns, each with an equal share, so that a million silent users
        of one do not delay another's single one.
        """
        if self.guard is not None:
            self.guard.look(at.now)
        waiting = self.due_gateways()
        if not waiting:
            return 0
        self._turn = (self._turn + 1) % len(waiting)
        waiting = waiting[self._turn :] + waiting[: self._turn]
        return fair_share(
            waiting, limit, lambda one, most: self._fire_gateway(one, at, most)
        )

    def lose(
        self, gateways: Sequence[GatewayState], place: int, at: Instant, *, limit: int
    ) -> int:
        """End the sessions of gateways that came back without them, in bounded steps.

        Args:
            gateways: The gateways; they must not open sessions meanwhile.
            place: 0 at first, then what was returned.
            at: Now.
            limit: Places of the table to look at, for all of them together.
        Returns:
            Where to go on, or -1 at the end of the table: then those have no sessions
            left that were among the gateways from its beginning.
        """
        if self.guard is not None:
            for gateway in gateways:
                self.guard.lose(gateway, at.now)
        numbers = {gateway.number for gateway in gateways}
        uids, place = self.wheel.owned(numbers, place, limit)
        for uid in uids:
            self._end(self.wheel.close(uid), GATEWAY_LOST, at)
        return place

    def held(self, now: float) -> dict[str, int]:
        """How many due users wait, by what they wait for."""
        held = dict.fromkeys(WHY_HELD, 0)
        for gateway in self.due_gateways():
            why = self._why_held(gateway, now)
            if why is not None:
                held[why] += self.wheel.due(gateway.number)
        return held

    def due_gateways(self) -> list[GatewayState]:
        """The gateways of which users are due."""
        return [self._by_number[number] for number in self.wheel.waiting()]

    # --- how often users speak --------------------------------------------------

    def interval(self, gateway: GatewayState) -> float | None:
        """How often a gateway's users usually speak, in seconds, as of the last look.

        At most a 32nd less than it is; None while too little is known.
        """
        return gateway.cadence.interval

    def look_at_cadence(self, now: float) -> list[GatewayState]:
        """Learn how often users speak, of some gateways; to be called every few seconds.

        Returns:
            Those whose timeout has begun to be too short for that.
        """
        wheel, began = self.wheel, list[GatewayState]()
        first = self._next_cadence if self._next_cadence < len(self._by_number) else 0
        self._next_cadence = first + CADENCES_PER_LOOK
        for gateway in self._by_number[first : self._next_cadence]:
            number = gateway.number
            begins, is_over = gateway.cadence.look(
                wheel.usual(number), timeout=wheel.timeout_of(number), now=now
            )
            if begins:
                began.append(gateway)
            if is_over:
                wheel.halve_silences(number)
        return began

    # --- restarts -------------------------------------------------------------

    def restore(
        self,
        rows: Iterable[OnlineFields],
        at: Instant,
        stopped: Iterable[Stopped] = (),
    ) -> None:
        """Take sessions up again after a restart.

        Args:
            rows: What was on disk, in order of their sessions; none of their users may
                be known.
            at: Now.
            stopped: After a planned stop, the clocks as of then, in the same order.
                Whose is missing, as all are after a crash, gets a whole timeout, and
                nothing is known of its last event.
        """
        clocks = iter(stopped)
        clock = next(clocks, _NO_CLOCK)
        # Nobody is served until the last of a million is back: each look-up counts.
        known, put, wall_ms = self.gateways, self.wheel.put, at.wall_ms
        shortened = {
            gateway.name
            for gateway in known.values()
            if gateway.in_force > self.wheel.timeout_of(gateway.number)
        }
        for name in shortened:
            known[name].in_force_until = at.now
        for session, uid, start_ms, conn, name, own in rows:
            gateway = known.get(name) or self.gateway(name)
            if not gateway.users:  # it has time to come back, as after any other end
                gateway.unlinked(at.now)
            gateway.users += 1
            while clock[0] < session:
                clock = next(clocks, _NO_CLOCK)
            if clock[0] == session:
                _, lasts, remaining, silence, event = clock
                whole = own or lasts
            else:
                # The timeout that its last event promised, not one set since.
                remaining = whole = own or gateway.in_force
                silence, event = 0.0, 0
            if name in shortened and not own and whole == gateway.in_force:
                until = max(gateway.in_force_until, at.now + remaining)
                gateway.in_force_until = until
            # Not in the future, whatever was done to the wall clock meanwhile: each new
            # connection would count as older.
            age_ms = wall_ms - start_ms if wall_ms > start_ms else 0
            put(
                (
                    uid,
                    gateway.number,
                    session,
                    conn,
                    at.mono - age_ms / 1000,
                    whole,
                    at.now + remaining,
                    at.mono - silence,
                    event,
                    OWN_TIMEOUT if own else 0,
                )
            )

    # --- within ---------------------------------------------------------------

    def _began_times(
        self, gateway: GatewayState, login: Login, at: Instant
    ) -> Sequence[float | None]:
        """When the connections of a login began by our clock, where it tells for sure."""
        nothing = (None,) * len(login.uids)
        if login.began is None:
            return nothing
        offset = gateway.clock_offset
        if offset is None:
            self.began_unused[WHY_OTHER_CLOCK] += len(login.uids)
            return nothing
        began_times: list[float | None] = []
        for theirs in login.began:
            if theirs is None:
                began_times.append(None)
            elif theirs + offset <= at.mono + ROUNDING_S:
                began_times.append(theirs + offset)
            else:
                self.began_unused[WHY_FUTURE] += 1
                began_times.append(None)
        return began_times

    @staticmethod
    def _is_older(entry: Entry, began: float | None, by_age: float) -> bool:
        """Whether a login is of an older connection than its user's session.

        What is not exact depends on when it was read, and is later than the truth: a
        session that a sign of life opened seems to begin with that. So an exact moment
        is compared with an exact one only. By `age` both are late, as far as links are
        read alike.
        """
        if began is not None and entry.flags & EXACT_START:
            return began < entry.start
        return by_age < entry.start

    def _record_older_login(
        self, gateway: GatewayState, conn: int | None, entry: Entry, at: Instant
    ) -> None:
        """Record that a connection has lost its user, to one that was read first.

        Had both been read in the order in which they began, it would have opened a
        session, and lost it. So its gateway is to close it all the same: where it is
        certain which is older. By `age` it might be the user's newest connection.
        """
        self.decided.record(
            Record(
                self.decided.next_seq,
                MOVED,
                entry.uid,
                self._by_number[entry.gateway].name,
                entry.session,
                entry.conn,
                LOGIN,
                at.wall_ms,
                from_gateway=gateway.name,
                from_conn=conn,
            )
        )

    def _heard_unknown(
        self, gateway: GatewayState, signs: SignsOfLife, position: int, at: Instant
    ) -> None:
        uid, conn, event = signs.at(position)
        if self.wheel.find(uid) is None:
            if self._limit_met(gateway, is_new=True):
                self.ignored[WHY_NO_ROOM] += 1
                return
            self._open(
                ONLINE, gateway, uid, conn, EVENTS[event], at, at.mono, False, None
            )
            return
        # Twice in one list: the first of them has just opened the session.
        for _, why in self.wheel.touch(
            gateway.number, _one_sign(uid, conn, event), now=at.now, mono=at.mono
        ):
            assert why == wheels.OTHER_CONN
            self.ignored[WHY_OTHER_CONN] += 1

    def _limit_met(self, gateway: GatewayState, *, is_new: bool) -> str:
        """The bound that forbids a gateway one more user, new or moved; else ""."""
        if gateway.users >= self._max_gateway_users:
            return "max_gateway_users"
        if is_new and len(self.wheel) >= self._max_users:
            return "max_users"
        return ""

    def _open(
        self,
        kind: str,
        gateway: GatewayState,
        uid: Uid,
        conn: int | None,
        event: str,
        at: Instant,
        start: float,
        exact: bool,
        timeout: float | None,
        before: Entry | None = None,
    ) -> None:
        seq = self.decided.next_seq
        self.wheel.open(
            uid,
            gateway=gateway.number,
            session=seq,
            conn=conn,
            start=start,
            timeout=timeout,
            event=EVENT_NUMBER[event],
            now=at.now,
            mono=at.mono,
            exact=exact,
        )
        gateway.users += 1
        start_ms = at.wall_ms - round((at.mono - start) * 1000)
        self.decided.changes.online[seq] = OnlineRow(
            seq, uid, start_ms, conn, gateway.name, timeout
        )
        record = Record(seq, kind, uid, gateway.name, seq, conn, event, at.wall_ms)
        if before is None:
            self.opened[event] += 1
        else:
            self.moved += 1
            record = record._replace(
                from_gateway=self._by_number[before.gateway].name,
                from_session=before.session,
                from_conn=before.conn,
            )
        self.decided.record(record)

    def _login_again(
        self,
        gateway: GatewayState,
        entry: Entry,
        conn: int | None,
        timeout: float | None,
        began: float | None,
        at: Instant,
    ) -> None:
        """A login on the session's own connection is a sign of life."""
        own = entry.timeout if entry.flags & OWN_TIMEOUT else None
        if entry.flags & EXACT_START:
            began = None  # it is known
        if conn != entry.conn or timeout != own or began is not None:
            self.wheel.amend(entry.uid, conn=conn, timeout=timeout, start=began)
            start = entry.start if began is None else began
            start_ms = at.wall_ms - round((at.mono - start) * 1000)
            self.decided.changes.online[entry.session] = OnlineRow(
                entry.session, entry.uid, start_ms, conn, gateway.name, timeout
            )
        self.wheel.touch(
            gateway.number,
            _one_sign(entry.uid, conn, EVENT_NUMBER[LOGIN]),
            now=at.now,
            mono=at.mono,
        )

    def _fire_gateway(self, gateway: GatewayState, at: Instant, limit: int) -> int:
        """Fire or renew due users of one gateway, as far as it is cleared."""
        cleared = gateway.clearance(at.now, hold=self._hold)
        judged = self.wheel.renew(
            gateway.number,
            until=cleared.renew,
            limit=limit,
            most=self._hold - self._reconnect_grace,
        )
        if judged == limit:
            return judged
        cleared_renewed = gateway.clearance_of_renewed(at.now)
        if self.guard is not None:
            cleared, cleared_renewed = self.guard.clear(
                gateway, cleared, cleared_renewed, at.now
            )
        number, wheel, ended = gateway.number, self.wheel, list[Entry]()
        for which, renewed in ((cleared_renewed, True), (cleared, False)):
            left = limit - judged - len(ended)
            silent = wheel.fire(
                number, until=which.silence, limit=left, renewed=renewed
            )
            for entry in silent:
                self._end(entry, SILENCE, at)
                if at.mono - entry.seen < entry.timeout - EARLY_S:
                    self.early += 1
            left -= len(silent)
            lost = wheel.fire(number, until=which.lost, limit=left, renewed=renewed)
            for entry in lost:
                self._end(entry, GATEWAY_LOST, at)
            ended += silent + lost
        if self.guard is not None:
            self.guard.judged(gateway, ended, at.now)
        return judged + len(ended)

    def _why_held(self, gateway: GatewayState, now: float) -> str | None:
        """What due users of a gateway wait for."""
        if self.guard is not None and self.guard.holds(gateway):
            return STORM
        return gateway.clearance(now, hold=self._hold).why

    def _leave(self, entry: Entry) -> GatewayState:
        gateway = self._by_number[entry.gateway]
        gateway.users -= 1
        return gateway

    def _end(self, entry: Entry, reason: str, at: Instant) -> None:
        """Record the end of a session that the wheel has let go."""
        gateway = self._leave(entry)
        self.ended[reason] += 1
        self.decided.changes.online[entry.session] = None
        self.decided.changes.ends += 1
        silence = at.mono - entry.seen
        self.decided.record(
            Record(
                self.decided.next_seq,
                OFFLINE,
                entry.uid,
                gateway.name,
                entry.session,
                entry.conn,
                reason,
                at.wall_ms,
                at.wall_ms - round(silence * 1000) if entry.event else None,
                EVENTS[entry.event] if entry.event else None,
                round(silence, 3),
                not entry.event,
            ),
            due=0.0
            if reason != SILENCE or self._was_held(entry)
            else entry.seen + entry.timeout,
        )

    def _was_held(self, entry: Entry) -> bool:
        """Whether it is not by the detector that a silent user is told late.

        One who was given a fresh timeout after a hold waited for its gateway, and one
        whom the guard held for an operator.
        """
        if entry.flags & RENEWED:
            return True
        return self.guard is not None and self.guard.has_held(entry)


def _one_sign(uid: Uid, conn: int | None, event: int) -> SignsOfLife:
    return ListedSigns([uid], [conn], bytearray([event]))
