"""Applies the events of users to their sessions.

The rules are those of `proto/README.md`, "Sessions". Every decision becomes a record in
`Decisions`. `firing` ends the sessions that end without an event.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from liveness.core.changes import Decisions
from liveness.core.records import (
    EVENT_NUMBER,
    EVENTS,
    LOGIN,
    LOGOUT,
    MOVED,
    ONLINE,
    Instant,
    OnlineRow,
    Record,
    Uid,
)
from liveness.core.sessions.clearance import GatewayState
from liveness.core.sessions.gateway_table import GatewayTable
from liveness.core.wheel import wheel as wheels
from liveness.core.wheel.devices import user_of
from liveness.core.wheel.record_batch import Logins, Opening
from liveness.core.wheel.table import EXACT_START, OWN_TIMEOUT, Entry
from liveness.core.wheel.wheel import Wheel
from liveness.core.wire.link_requests import (
    ActivityBatch,
    ListedActivity,
    Login,
    Logout,
)

NO_LIMIT: Final = 2**63 - 1

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


class Presence:
    """Which users are online, and through which gateway; at first, none."""

    def __init__(
        self,
        wheel: Wheel,
        gateways: GatewayTable,
        decided: Decisions,
        *,
        max_users: int = NO_LIMIT,
        max_gateway_users: int = NO_LIMIT,
        device_separator: str = "",
    ) -> None:
        self.wheel = wheel
        self.gateways = gateways
        self.decided = decided
        self.device_separator = device_separator
        self.events: Counter[str] = Counter(dict.fromkeys(EVENTS[1:], 0))
        self.ignored: Counter[str] = Counter(dict.fromkeys(WHY_IGNORED, 0))
        self.began_unused: Counter[str] = Counter(dict.fromkeys(WHY_BEGAN_UNUSED, 0))
        self.opened: Counter[str] = Counter(dict.fromkeys(EVENTS[1:4], 0))
        self.moved = 0
        self.logouts = 0  # sessions that ended by a logout
        self._max_users = max_users
        self._max_gateway_users = max_gateway_users

    def __len__(self) -> int:
        return len(self.wheel)

    def where(
        self, uids: Sequence[Uid], *, limit: int = NO_LIMIT
    ) -> list[tuple[Uid, str, int, int | None]]:
        """Return uid, gateway, session and conn of each of *uids* that is online.

        For the name of a user, return those of each of its devices: at most *limit* rows.
        """
        rows: list[tuple[Uid, str, int, int | None]] = []
        for uid in uids:
            for device in self.wheel.devices_of(uid, limit - len(rows)) or [uid]:
                entry = self.wheel.find(device)
                if entry is not None:
                    gateway = self.gateways.by_number[entry.gateway].name
                    rows.append((entry.uid, gateway, entry.session, entry.conn))
            if len(rows) >= limit:
                break
        return rows

    def user_of(self, uid: Uid) -> Uid | None:
        """Return the user that a uid belongs to; None if devices are not counted."""
        return user_of(uid, self.device_separator) if self.device_separator else None

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

    def login(
        self, gateway: GatewayState, login: Login, at: Instant
    ) -> tuple[str, list[int]]:
        """Apply a login of any number of users.

        Returns:
            The limit that was met, and the indices of the users for whom there was no
            room: "" and none if there was room for all.
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
        return full, left_out

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
        self.wheel.close(uid)
        self.gateways.by_number[entry.gateway].users -= 1
        start, exact = (logins.start, False) if began is None else (began, True)
        self._open(gateway, uid, conn, LOGIN, at, start, exact, logins.timeout, entry)
        return ""

    def logout(self, gateway: GatewayState, logout: Logout, at: Instant) -> None:
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
                gateway.users -= 1
                self.logouts += 1
                self.decided.end(entry, gateway.name, LOGOUT, at)

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
            self.decided.next_seq, MOVED, entry.uid, self.gateways.by_number[entry.gateway].name,
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
            self._open(gateway, uid, conn, EVENTS[event], at, at.mono, False, None)
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

    def _room(self, gateway: GatewayState) -> int:
        of_gateway = self._max_gateway_users - gateway.users
        return max(0, min(of_gateway, self._max_users - len(self.wheel)))

    def _limit_met(self, gateway: GatewayState, *, is_new: bool) -> str:
        """The limit that forbids this gateway one more user, new or moved; or ""."""
        if gateway.users >= self._max_gateway_users:
            return "max_gateway_users"
        if is_new and len(self.wheel) >= self._max_users:
            return "max_users"
        return ""

    def _open(
        self,
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
        """Open a session, and record it; *before* is the one that it takes over from."""
        seq = self.decided.next_seq
        user_size, devices = self.wheel.open(
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
        from_gateway = from_session = from_conn = None
        if before is None:
            kind = ONLINE
            self.opened[event] += 1
        else:
            kind = MOVED
            self.moved += 1
            from_gateway = self.gateways.by_number[before.gateway].name
            from_session, from_conn = before.session, before.conn
        # By position, as in `offline_of`: keywords would take half as long again.
        record = Record(
            seq, kind, uid, gateway.name, seq, conn, event, at.wall_ms, None, None, None,
            False, from_gateway, from_session, from_conn, user_size, devices,
        )  # fmt: skip
        self.decided.record(record, opening=Opening(at.state_ms_of(start), timeout))


def _one_event(uid: Uid, conn: int | None, event: int) -> ActivityBatch:
    return ListedActivity([uid], [conn], bytearray([event]))
