"""Ends sessions without an event: of users that are silent, and of lost gateways.

A user past its deadline is *due*. Its session ends in one of the next turns, unless it is
held: see `clearance` and `storm_guard`. Every offline carries its evidence: the last event,
when it came, and how long ago.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from liveness.core.changes import Decisions
from liveness.core.records import EVENTS, GATEWAY_LOST, SILENCE, Instant, Uid
from liveness.core.sessions.clearance import STORM, WHY_HELD, GatewayState
from liveness.core.sessions.fair_share import fair_share
from liveness.core.sessions.gateway_table import GatewayTable
from liveness.core.sessions.storm_guard import NO_GUARD, Guard, GuardRules
from liveness.core.wheel.record_batch import Endings
from liveness.core.wheel.wheel import Wheel


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
    slot: tuple[int, int] | None  # layer and slot of the wheel; None: it is due
    held: str | None  # what it waits for if it is due: see `clearance`
    absence: str | None  # whether its gateway is `AWAY` or `MUTE`
    devices: int = 0  # of its user, online; 0 if they are not counted


class Firing:
    """Which users are due, and which of them go offline.

    A due user waits for its gateway for *gateway_hold* seconds at most.
    """

    def __init__(
        self,
        wheel: Wheel,
        gateways: GatewayTable,
        decided: Decisions,
        *,
        gateway_hold: float,
        guard: GuardRules = NO_GUARD,
    ) -> None:
        self.guard = Guard(guard, wheel)
        self.ended: Counter[str] = Counter({SILENCE: 0, GATEWAY_LOST: 0})
        self.early = 0
        self._wheel = wheel
        self._gateways = gateways
        self._decided = decided
        self._hold = gateway_hold
        self._turn = 0  # which gateway fires first

    def fire(self, at: Instant, *, limit: int) -> int:
        """End or renew the sessions of due users, at most *limit*; return how many.

        Gateways take turns, and each gets an equal share of *limit*: a million silent
        users of one do not delay the only user of another.
        """
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
        for gateway in gateways:
            self.guard.reset_sessions(gateway, at.now)
        numbers = {gateway.number for gateway in gateways}
        uids, place = self._wheel.owned(numbers, place, limit)
        self.ended[GATEWAY_LOST] += len(uids)
        for uid in uids:
            entry = self._wheel.close(uid)
            gateway = self._gateways.by_number[entry.gateway]
            gateway.users -= 1
            self._decided.end(entry, gateway.name, GATEWAY_LOST, at)
        return place

    def forget(self, gateway: GatewayState, now: float) -> None:
        self._gateways.remove(gateway)
        self.guard.forget(gateway, now)

    def held(self, now: float) -> dict[str, int]:
        held = dict.fromkeys(WHY_HELD, 0)
        for gateway in self.due_gateways():
            why = self._why_held(gateway, now)
            if why is not None:
                held[why] += self._wheel.due(gateway.number)
        return held

    def due_gateways(self) -> list[GatewayState]:
        return [self._gateways.by_number[number] for number in self._wheel.waiting()]

    def status_of(self, uid: Uid, at: Instant) -> UserStatus | None:
        entry = self._wheel.find(uid)
        if entry is None:
            return None
        gateway = self._gateways.by_number[entry.gateway]
        slot = self._wheel.slot_of(uid)
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

    def _fire_gateway(self, gateway: GatewayState, at: Instant, limit: int) -> int:
        """End or renew the sessions of due users of a gateway, up to its clearance."""
        cleared = gateway.clearance(at.now, hold=self._hold)
        renewals = self._wheel.renew(
            gateway.number,
            until=cleared.renew,
            limit=limit,
            most=self._hold - gateway.reconnect_grace,
        )
        if renewals == limit:
            return renewals
        cleared_renewed = gateway.clearance_of_renewed(at.now)
        cleared, cleared_renewed = self.guard.clear(
            gateway, cleared, cleared_renewed, at.now
        )
        held_above, held_until = self.guard.held_range(gateway)
        counted_above = self.guard.counted_above(gateway, at.now)
        decided, ended, counted = self._decided, 0, 0
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
            sessions, early, counts = self._wheel.end(
                decided.changes.records, endings, seq=decided.next_seq, at=at
            )
            decided.next_seq += sessions
            self.ended[reason] += sessions
            self.early += early if reason == SILENCE else 0
            ended += sessions
            counted += counts
        decided.changes.ends += ended
        gateway.users -= ended
        self.guard.judged(gateway, counted, at.now)
        return renewals + ended

    def _why_held(self, gateway: GatewayState, now: float) -> str | None:
        if self.guard.holds(gateway):
            return STORM
        return gateway.clearance(now, hold=self._hold).why
