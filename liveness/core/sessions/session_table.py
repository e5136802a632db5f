"""Open sessions and their gateways: what changes when one opens, moves or ends.

Each user online has an entry on the wheel, and each gateway the number of its users.
Opening or ending a session also makes a record, which changes the online set, from which a
restart opens the sessions again. `presence` decides when to open or end one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from liveness.core.changes import Decisions
from liveness.core.records import (
    EVENT_NUMBER,
    EVENTS,
    LOGIN,
    MOVED,
    OFFLINE_REASONS,
    Instant,
    OnlineFields,
    Record,
    Uid,
)
from liveness.core.sessions.clearance import GatewayState
from liveness.core.wheel.devices import user_of
from liveness.core.wheel.record_batch import Opening, offline_of
from liveness.core.wheel.restart import SessionRestorer
from liveness.core.wheel.table import Entry
from liveness.core.wheel.wheel import Wheel

NO_LIMIT: Final = 2**63 - 1

# Gateways whose cadence one call looks at: about a millisecond of work.
CADENCES_PER_LOOK: Final = 200

# Rows of the online set that a restart takes at a time: few enough to stay in the
# processor's cache.
ROWS_AT_ONCE: Final = 1_000


class SessionTable:
    """Which users are online, through which gateway; see `Presence`, which extends it."""

    def __init__(
        self,
        wheel: Wheel,
        *,
        decided: Decisions,
        timeout: float,
        reconnect_grace: float,
        max_users: int,
        max_gateway_users: int,
        device_separator: str,
    ) -> None:
        self.wheel = wheel
        self.decided = decided
        self.timeout = timeout
        self.gateways: dict[str, GatewayState] = {}
        self.opened: Counter[str] = Counter(dict.fromkeys(EVENTS[1:4], 0))
        self.ended: Counter[str] = Counter(dict.fromkeys(OFFLINE_REASONS, 0))
        self.moved = 0
        self._reconnect_grace = reconnect_grace
        self._max_users = max_users
        self._max_gateway_users = max_gateway_users
        self.device_separator = device_separator
        self._by_number: list[GatewayState] = []
        self._free: list[int] = []  # numbers of gateways that were forgotten
        self._next_cadence = 0  # number of the gateway to look at next

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
            for device in self.devices_of(uid, limit - len(rows)) or [uid]:
                entry = self.wheel.find(device)
                if entry is not None:
                    gateway = self._by_number[entry.gateway].name
                    rows.append((entry.uid, gateway, entry.session, entry.conn))
            if len(rows) >= limit:
                break
        return rows

    def user_of(self, uid: Uid) -> Uid | None:
        """Return the user that a uid belongs to; None if devices are not counted."""
        return user_of(uid, self.device_separator) if self.device_separator else None

    def devices_of(self, user: Uid, limit: int) -> list[Uid]:
        """Return the uids of a user's devices online, at most *limit*, oldest first.

        If devices are not counted, there are none.
        """
        return self.wheel.devices_of(user, limit) if self.device_separator else []

    # --- gateways -------------------------------------------------------------

    def gateway(self, name: str) -> GatewayState:
        """Return the gateway of this name; add it if there is none.

        The caller sets a new one's timeout before it opens a session.
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

    def _remove_gateway(self, name: str) -> GatewayState | None:
        gateway = self.gateways.pop(name, None)
        if gateway is not None:
            assert not gateway.users
            assert not gateway.is_linked
            self.wheel.forget_silences(gateway.number)
            self._free.append(gateway.number)
        return gateway

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
            timeout: For each of its users, from the user's next event on.
            now: Attended seconds.
            in_force: The longest timeout of the sessions that are to be restored.
        """
        gateway.timeout = timeout
        before, whole = self.wheel.timeout_of(gateway.number), timeout or self.timeout
        self.wheel.set_timeout(gateway.number, whole)
        gateway.set_in_force(whole, now, before=before)
        if in_force > whole:
            gateway.in_force, gateway.in_force_until = in_force, now + in_force

    def timeouts_over(self, now: float) -> list[GatewayState]:
        """Return gateways where the last session with an earlier, longer timeout is over.

        Each is returned once; from now on only its present timeout is in force.
        """
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

    def interval(self, gateway: GatewayState) -> float | None:
        """How often a gateway's users usually send events, in seconds.

        As of the last `look_at_cadence`, and up to a 32nd too short; None while too few
        events were seen.
        """
        return gateway.cadence.interval

    def look_at_cadence(self, now: float) -> list[GatewayState]:
        """Learn how often users send events, for some gateways; call every few seconds.

        Returns:
            Those whose timeout has just become too short for that.
        """
        wheel, too_short = self.wheel, list[GatewayState]()
        first = self._next_cadence if self._next_cadence < len(self._by_number) else 0
        self._next_cadence = first + CADENCES_PER_LOOK
        for gateway in self._by_number[first : self._next_cadence]:
            number = gateway.number
            begins, is_over = gateway.cadence.look(
                wheel.median_silence(number), timeout=wheel.timeout_of(number), now=now
            )
            if begins:
                too_short.append(gateway)
            if is_over:
                wheel.halve_silences(number)
        return too_short

    # --- restarts -------------------------------------------------------------

    def restore(
        self, rows: Iterable[OnlineFields], at: Instant, restorer: SessionRestorer
    ) -> None:
        """Open again the sessions that were online before a restart.

        Each gateway gets time to reconnect, as after any lost link.

        Args:
            rows: The online set, in order of sessions. Nobody may be online.
            at: Now.
            restorer: New, with the clocks of a planned stop. A session without one, as after
                a crash, gets a whole timeout, and nothing is known of its last event.
        Raises:
            ValueError: A row is damaged.
        """
        rest, doubles = iter(rows), list[Entry]()
        while page := [*islice(rest, ROWS_AT_ONCE)]:
            first = 0
            while (first := self.wheel.restore(restorer, page, first)) < len(page):
                _, uid, _, _, name, _ = page[first]
                if name in restorer.gateways:
                    doubles.append(self.wheel.close(uid))
                    continue
                gateway = self.gateway(name)
                restorer.add_gateway(name, gateway.number, in_force=gateway.in_force)
        for name, gateway in self.gateways.items():
            restored = restorer.gateways.get(name)
            if restored is not None:
                gateway.users = restored.users
                gateway.unlinked(at.now)
            if gateway.in_force > self.wheel.timeout_of(gateway.number):
                gateway.in_force_until = at.now if restored is None else restored.until
        for older in doubles:
            self._end_double(older, at)

    def _end_double(self, older: Entry, at: Instant) -> None:
        """Record that a restored session, off the wheel, is over in favour of a newer one.

        Until version 0.2, `7` and `"7"` were two users, and one connection may have both
        sessions: then it is not to be closed, and the record does not name it.
        """
        newer = self.wheel.find(older.uid)
        assert newer is not None
        is_same = newer.gateway == older.gateway and newer.conn in (older.conn, None)
        user_size, devices = newer.user_devices
        record = Record(
            self.decided.next_seq, MOVED, newer.uid, self._by_number[newer.gateway].name,
            newer.session, newer.conn, LOGIN, at.wall_ms,
            from_gateway=self._close(older).name, from_session=older.session,
            from_conn=None if is_same else older.conn, user_size=user_size,
            devices=devices,
        )  # fmt: skip
        self.moved += 1
        self.decided.record(record)

    # --- sessions -------------------------------------------------------------

    def _room(self, gateway: GatewayState) -> int:
        """How many new users this gateway may have more."""
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
            self.opened[event] += 1
        else:
            self.moved += 1
            from_gateway = self._by_number[before.gateway].name
            from_session, from_conn = before.session, before.conn
        # By position, as in `_end`: keywords would take half as long again.
        record = Record(
            seq, kind, uid, gateway.name, seq, conn, event, at.wall_ms, None, None, None,
            False, from_gateway, from_session, from_conn, user_size, devices,
        )  # fmt: skip
        self.decided.record(record, opening=Opening(at.state_ms_of(start), timeout))

    def _close(self, entry: Entry) -> GatewayState:
        """Take a session, off the wheel already, out of its gateway's count."""
        gateway = self._by_number[entry.gateway]
        gateway.users -= 1
        return gateway

    def _end(self, entry: Entry, reason: str, at: Instant) -> None:
        """Record the offline of a session that is off the wheel.

        Args:
            entry: The session.
            reason: One of `OFFLINE_REASONS`.
            at: Now.
        """
        gateway = self._close(entry)
        self.ended[reason] += 1
        self.decided.changes.ends += 1
        name, seq = gateway.name, self.decided.next_seq
        self.decided.record(offline_of(entry, seq, name, reason, at))
