"""Applies events to sessions, and ends the sessions of silent users.

The rules are those of `proto/README.md`, "Sessions". Every decision becomes a record in
`Decisions`, and every offline carries its evidence: the last event, when it came, and how
long ago.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from liveness.core.changes import Decisions
from liveness.core.records import (
    EVENT_NUMBER,
    EVENTS,
    GATEWAY_LOST,
    LOGIN,
    LOGOUT,
    MOVED,
    ONLINE,
    SILENCE,
    Instant,
    OnlineRow,
    Record,
    Uid,
)
from liveness.core.sessions.clearance import STORM, WHY_HELD, GatewayState
from liveness.core.sessions.fair_share import fair_share
from liveness.core.sessions.session_table import NO_LIMIT, SessionTable
from liveness.core.sessions.storm_guard import Guard, GuardRules
from liveness.core.wheel import wheel as wheels
from liveness.core.wheel.record_batch import Ended, Endings, Logins
from liveness.core.wheel.table import EXACT_START, OWN_TIMEOUT, Entry
from liveness.core.wheel.timing_wheel import Slot
from liveness.core.wheel.wheel import Wheel
from liveness.core.wire.link_requests import (
    ActivityBatch,
    ListedActivity,
    Login,
    Logout,
)

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

# A login may give a `began` this far after the login was read: its gateway may round to
# milliseconds.
ROUNDING_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Users of a login for whom no session was opened, as there are too many users."""

    limit: str  # the limit that was met
    indices: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserStatus:
    """All that is known of a user who is online, at one moment."""

    gateway: str
    session: int
    conn: int | None
    since: int  # Unix milliseconds at which its connection began
    last: str | None  # its last event; None: unheard since a crash
    seen: int | None  # Unix milliseconds of that event
    timeout: float
    fires_in: float  # attended seconds; 0.0 if it is due
    slot: Slot | None  # None: it is due
    held: str | None  # what it waits for if it is due: see `clearance`
    absence: str | None  # whether its gateway is `AWAY` or `MUTE`
    devices: int = 0  # of its user, online; 0 if they are not counted


class Presence(SessionTable):
    """Which users are online: applies events, and ends the sessions of silent users.

    Args:
        wheel: An empty wheel, which nothing else may change from now on.
        decided: Where decisions go.
        timeout: The server's silence timeout, in seconds.
        gateway_hold: Longest that a due user waits for its gateway, in seconds.
        reconnect_grace: Seconds a gateway has to catch up after its link began or ended.
        max_users: Users online above which no session is opened.
        max_gateway_users: The same, of one gateway.
        device_separator: The wheel's; "": devices are not counted.
        guard: The rules of the storm guard; None: there is none.
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
        device_separator: str = "",
        guard: GuardRules | None = None,
    ) -> None:
        super().__init__(
            wheel,
            decided=decided,
            timeout=timeout,
            reconnect_grace=reconnect_grace,
            max_users=max_users,
            max_gateway_users=max_gateway_users,
            device_separator=device_separator,
        )
        self.guard = None if guard is None else Guard(guard, wheel, self.gateways)
        self.events: Counter[str] = Counter(dict.fromkeys(EVENTS[1:], 0))
        self.ignored: Counter[str] = Counter(dict.fromkeys(WHY_IGNORED, 0))
        self.began_unused: Counter[str] = Counter(dict.fromkeys(WHY_BEGAN_UNUSED, 0))
        self.early = 0
        self._hold = gateway_hold
        self._turn = 0  # which gateway fires first

    def forget(self, name: str, now: float) -> None:
        """Forget a gateway, which has neither users nor a link."""
        gateway = self._remove_gateway(name)
        if gateway is not None and self.guard is not None:
            self.guard.forget(gateway, now)

    # --- events ---------------------------------------------------------------

    def heard(
        self, gateway: GatewayState, activity: ActivityBatch, at: Instant
    ) -> list[tuple[int, int, int]]:
        """Apply keepalives and messages.

        Returns:
            For each frame with bad uids: its number, the position in `activity` of the
            first bad one, and its index in the frame. The valid ones were applied.
        """
        for number in range(EVENT_NUMBER[LOGIN] + 1, EVENT_NUMBER[LOGOUT]):
            self.events[EVENTS[number]] += activity.count(number)
        left = self.wheel.touch(gateway.number, activity, now=at.now, mono=at.mono)
        bad: list[tuple[int, int, int]] = []
        for position, why in left:
            if why == wheels.BAD_UID:
                n, index = activity.frame_at(position)
                if not bad or bad[-1][0] != n:
                    bad.append((n, position, index))
            elif why == wheels.OTHER_GATEWAY:
                self.ignored[WHY_OTHER_GATEWAY] += 1
            elif why == wheels.OTHER_CONN:
                self.ignored[WHY_OTHER_CONN] += 1
            else:
                self._heard_unknown(gateway, activity, position, at)
        return bad

    def login(self, gateway: GatewayState, login: Login, at: Instant) -> NoRoom | None:
        """Apply a login of any number of users.

        Returns:
            Users for whom there was no room; None if there was room for all.
        """
        self.events[LOGIN] += len(login.uids)
        logins = Logins(
            gateway.number, gateway.name, login.uids, login.conns,
            self._began_times(gateway, login, at), at.mono - login.age, login.timeout,
            EVENT_NUMBER[LOGIN],
        )  # fmt: skip
        left_out: list[int] = []
        full, index = "", 0
        while index < len(login.uids):
            entry = self.wheel.find(login.uids[index])
            if entry is not None:
                limit = self._login_known(gateway, entry, logins, index, at)
            elif begun := self._begin_new(gateway, logins, index, at):
                index += begun
                continue
            else:
                limit = self._limit_met(gateway, is_new=True)
            if limit:
                full = limit
                left_out.append(index)
            index += 1
        self.ignored[WHY_NO_ROOM] += len(left_out)
        return NoRoom(full, left_out) if left_out else None

    def _begin_new(
        self, gateway: GatewayState, logins: Logins, first: int, at: Instant
    ) -> int:
        """Begin sessions of users that have none, while there is room; return how many."""
        decided = self.decided
        begun = self.wheel.begin(
            decided.changes.records,
            logins,
            first,
            limit=self._room(gateway),
            seq=decided.next_seq,
            at=at,
        )
        decided.next_seq += begun
        gateway.users += begun
        self.opened[LOGIN] += begun
        return begun

    def _login_known(
        self,
        gateway: GatewayState,
        entry: Entry,
        logins: Logins,
        index: int,
        at: Instant,
    ) -> str:
        """Apply the login of a user that has a session; return the limit met, or ""."""
        uid, conn = logins.uids[index], logins.conns[index]
        began = logins.begun[index]
        is_here = entry.gateway == gateway.number
        if is_here and entry.conn in (conn, None):
            self._login_again(gateway, entry, conn, logins.timeout, began, at)
            return ""
        if self._is_older(entry, began, logins.start):
            self.ignored[WHY_OLDER] += 1
            if began is not None and entry.flags & EXACT_START:
                self._record_older_login(gateway, conn, entry, at)
            return ""
        if not is_here and (limit := self._limit_met(gateway, is_new=False)):
            return limit
        self._close(self.wheel.close(uid))
        start, exact = (logins.start, False) if began is None else (began, True)
        self._open(
            MOVED, gateway, uid, conn, LOGIN, at, start, exact, logins.timeout, entry
        )
        return ""

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

    def status_of(self, uid: Uid, at: Instant) -> UserStatus | None:
        """Return all that is known of a user; None if it is not online."""
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
            since=at.unix_ms(entry.start),
            last=EVENTS[entry.event] or None,
            seen=at.unix_ms(entry.seen) if entry.event else None,
            timeout=entry.timeout,
            fires_in=max(0.0, entry.deadline - at.now),
            slot=slot,
            held=why if slot is None else None,
            absence=gateway.absence(at.now),
            devices=entry.user_devices[1] or 0,
        )

    # --- endings --------------------------------------------------------------

    def advance(self, now: float, steps: int) -> None:
        """Move users due by *now* to their due lists; see `wheel.Wheel.advance`."""
        if self.guard is None:
            self.wheel.advance(now, steps)
        else:
            self.guard.advance(now, steps)

    def fire(self, at: Instant, *, limit: int) -> int:
        """End or renew the sessions of due users, at most *limit*; return how many.

        Gateways take turns, and each gets an equal share of *limit*: a million silent
        users of one do not delay the only user of another.
        """
        if self.guard is not None:
            self.guard.look(at.now)
        waiting = self.due_gateways()
        if not waiting:
            return 0
        self._turn = (self._turn + 1) % len(waiting)
        waiting = waiting[self._turn :] + waiting[: self._turn]
        return fair_share(
            waiting, limit, lambda gateway, most: self._fire_gateway(gateway, at, most)
        )

    def reset_sessions(
        self, gateways: Sequence[GatewayState], place: int, at: Instant, *, limit: int
    ) -> int:
        """End the sessions of gateways that came back without them, in bounded steps.

        Args:
            gateways: The gateways, which open no sessions before the end of the table.
            place: Where to start: 0 at first, then what the last call returned.
            at: Now.
            limit: How many places of the table to look at.
        Returns:
            Where to go on; -1 at the end of the table. Then a gateway that was named
            from place 0 on has no sessions left.
        """
        if self.guard is not None:
            for gateway in gateways:
                self.guard.reset_sessions(gateway, at.now)
        numbers = {gateway.number for gateway in gateways}
        uids, place = self.wheel.owned(numbers, place, limit)
        for uid in uids:
            self._end(self.wheel.close(uid), GATEWAY_LOST, at)
        return place

    def held(self, now: float) -> dict[str, int]:
        """Count the due users that wait, by what they wait for."""
        held = dict.fromkeys(WHY_HELD, 0)
        for gateway in self.due_gateways():
            why = self._why_held(gateway, now)
            if why is not None:
                held[why] += self.wheel.due(gateway.number)
        return held

    def due_gateways(self) -> list[GatewayState]:
        """Return the gateways that have due users."""
        return [self._by_number[number] for number in self.wheel.waiting()]

    # --- within ---------------------------------------------------------------

    def _began_times(
        self, gateway: GatewayState, login: Login, at: Instant
    ) -> Sequence[float | None]:
        """When each connection of a login began, by our clock; None where unknown."""
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
        """Whether a login's connection is older than that of the user's session.

        An exact start is only compared with another exact one. An inexact start depends
        on when the login was read, and is later than the truth: a session that a
        keepalive opened seems to begin with it. By `age` both starts are late, and by
        about as much if both links are read equally soon.
        """
        if began is not None and entry.flags & EXACT_START:
            return began < entry.start
        return by_age < entry.start

    def _record_older_login(
        self, gateway: GatewayState, conn: int | None, entry: Entry, at: Instant
    ) -> None:
        """Record that a connection has lost its user to a newer one that was read first.

        Had the older one been read first, its session would have moved, and its gateway
        would have closed the connection; this record has it closed now. The caller must
        be certain which is older: by `age` alone it might be the user's newest.
        """
        user_size, devices = entry.user_devices
        record = Record(
            self.decided.next_seq, MOVED, entry.uid, self._by_number[entry.gateway].name,
            entry.session, entry.conn, LOGIN, at.wall_ms, from_gateway=gateway.name,
            from_conn=conn, user_size=user_size, devices=devices,
        )  # fmt: skip
        self.decided.record(record)

    def _heard_unknown(
        self, gateway: GatewayState, activity: ActivityBatch, position: int, at: Instant
    ) -> None:
        """Open a session for a user that the wheel did not know when it was touched."""
        uid, conn, event = activity.at(position)
        if self.wheel.find(uid) is None:
            if self._limit_met(gateway, is_new=True):
                self.ignored[WHY_NO_ROOM] += 1
                return
            self._open(
                ONLINE, gateway, uid, conn, EVENTS[event], at, at.mono, False, None
            )
            return
        # The user is in the batch twice, and its first event has opened the session.
        for _, why in self.wheel.touch(
            gateway.number, _one_event(uid, conn, event), now=at.now, mono=at.mono
        ):
            assert why == wheels.OTHER_CONN
            self.ignored[WHY_OTHER_CONN] += 1

    def _login_again(
        self,
        gateway: GatewayState,
        entry: Entry,
        conn: int | None,
        timeout: float | None,
        began: float | None,
        at: Instant,
    ) -> None:
        """Apply a login on the session's own connection, as any other event of it."""
        own = entry.timeout if entry.flags & OWN_TIMEOUT else None
        if entry.flags & EXACT_START:
            began = None  # the session has one
        if conn != entry.conn or timeout != own or began is not None:
            self.wheel.amend(entry.uid, conn=conn, timeout=timeout, start=began)
            start = entry.start if began is None else began
            self.decided.changes.online[entry.session] = OnlineRow(
                entry.session,
                entry.uid,
                at.state_ms_of(start),
                conn,
                gateway.name,
                timeout,
            )
        self.wheel.touch(
            gateway.number,
            _one_event(entry.uid, conn, EVENT_NUMBER[LOGIN]),
            now=at.now,
            mono=at.mono,
        )

    def _fire_gateway(self, gateway: GatewayState, at: Instant, limit: int) -> int:
        """End or renew the sessions of due users of a gateway, up to its clearance."""
        cleared = gateway.clearance(at.now, hold=self._hold)
        renewals = self.wheel.renew(
            gateway.number,
            until=cleared.renew,
            limit=limit,
            most=self._hold - self._reconnect_grace,
        )
        if renewals == limit:
            return renewals
        cleared_renewed = gateway.clearance_of_renewed(at.now)
        held_above, held_until, counted_above = inf, -inf, inf
        if self.guard is not None:
            cleared, cleared_renewed = self.guard.clear(
                gateway, cleared, cleared_renewed, at.now
            )
            held_above, held_until = self.guard.held_range(gateway)
            counted_above = self.guard.counted_above(gateway, at.now)
        ended = counted = 0
        for renewed, reason, until in (
            (True, SILENCE, cleared_renewed.silence),
            (True, GATEWAY_LOST, cleared_renewed.lost),
            (False, SILENCE, cleared.silence),
            (False, GATEWAY_LOST, cleared.lost),
        ):
            left = limit - renewals - ended
            endings = Endings(
                gateway.number, gateway.name, reason, until, left, renewed, held_above,
                held_until, counted_above,
            )  # fmt: skip
            done = self._end_due(gateway, endings, at)
            ended += done.sessions
            counted += done.counted
        if self.guard is not None:
            self.guard.judged(gateway, ended, counted, at.now)
        return renewals + ended

    def _end_due(self, gateway: GatewayState, endings: Endings, at: Instant) -> Ended:
        """End sessions of due users of a gateway."""
        decided = self.decided
        ended = self.wheel.end(
            decided.changes.records, endings, seq=decided.next_seq, at=at
        )
        decided.next_seq += ended.sessions
        decided.changes.ends += ended.sessions
        gateway.users -= ended.sessions
        self.ended[endings.reason] += ended.sessions
        if endings.reason == SILENCE:
            self.early += ended.early
        return ended

    def _why_held(self, gateway: GatewayState, now: float) -> str | None:
        """What due users of a gateway wait for."""
        if self.guard is not None and self.guard.holds(gateway):
            return STORM
        return gateway.clearance(now, hold=self._hold).why


def _one_event(uid: Uid, conn: int | None, event: int) -> ActivityBatch:
    return ListedActivity([uid], [conn], bytearray([event]))
