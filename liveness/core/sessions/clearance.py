"""Decides which due users of a gateway may go offline now: those up to a deadline.

A due user has been silent for its whole timeout, as far as the sidecar has read. It is
the user's own silence only if its gateway would have reported an event: the socket has
been read empty since the deadline, and the gateway is connected and sends. Until then the
user is *held*: it waits on its gateway's due list. The wait is bounded: `hold` seconds
past its deadline a user goes offline together with its gateway.

When a mute gateway sends again, users that came due in the meantime get a fresh timeout,
but only once: otherwise a gateway that is late again and again would keep its silent users
online for ever. The fresh timeout ends `reconnect_grace` before the hold does. A user that
comes due after it is held by the same rules, but for a shorter time: up to
`reconnect_grace` for a gateway that is away or not read empty, and not at all for a mute
one. So in any case a user is active or goes offline within `hold` of the first deadline
that it missed.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liveness.core.sessions.cadence import Cadence

NEVER: Final = float("-inf")

# A link that was not read for longer than this gets the grace of a reconnect. After a
# shorter pause its socket is only read empty: no event can have waited elsewhere.
SHORT_PAUSE_S: Final = 1.0

# A gateway promises to send something every `ping` seconds. If it sleeps that long before
# it sends, its timer, scheduler or garbage collector make it a little late. So the promise
# is broken only if it is late by another `ping`, and by at least this.
LEAST_LATE_S: Final = 1.0

AWAY: Final = "away"
MUTE: Final = "mute"
UNREAD: Final = "unread"
STORM: Final = "storm"  # held by the storm guard, not for their gateway
WHY_HELD: Final = (AWAY, MUTE, UNREAD, STORM)
# These reasons hold all users, and are counted elsewhere.
PAUSED: Final = "stands"  # the clock is paused until gateways had time to catch up
DISK: Final = "disk"  # the disk has to write earlier decisions first


class Clearance(NamedTuple):
    """What happens to due users of one gateway, by deadline."""

    silence: float = NEVER  # up to here they go offline for their own silence
    lost: float = NEVER  # up to here they go offline together with their gateway
    renew: float = NEVER  # up to here they get a fresh timeout, as the hold is over
    why: str | None = None  # the reason why later ones are held


@dataclass(slots=True)
class GatewayState:
    """One gateway: its link, the number and timeout of its users, its promise to ping.

    All times are attended seconds. For `reconnect_grace` after its link began or ended, a
    gateway has time to send the events that it had collected.
    """

    name: str
    number: int
    reconnect_grace: float
    timeout: float | None = None
    users: int = 0
    is_linked: bool = False
    reading_paused_at: float | None = None  # None: its link is read
    ping: float | None = None
    # The offset from the gateway's monotonic seconds to ours; None: unknown.
    clock_offset: float | None = None
    heard_at: float = NEVER
    empty_at: float = NEVER
    grace_until: float = NEVER
    renew_until: float = NEVER
    # The longest timeout that its sessions may still have, and until when.
    in_force: float = 0.0
    in_force_until: float = NEVER
    mutes: int = 0  # the number of broken promises
    missed_at: float = NEVER  # the latest
    cadence: Cadence = field(default_factory=Cadence)

    def linked(
        self, *, ping: float | None, now: float, clock_offset: float | None = None
    ) -> None:
        self.heard(now)
        self.ping = ping
        self.clock_offset = clock_offset
        self.is_linked = True
        self.empty_at = NEVER
        if self.users:
            self.grace_until = now + self.reconnect_grace

    def unlinked(self, now: float) -> None:
        self.is_linked = False
        self.reading_paused_at = None
        self.grace_until = now + self.reconnect_grace

    def heard(self, now: float) -> None:
        """Note that bytes arrived. This ends the hold of a mute gateway.

        Users that are due get a fresh timeout. Those that come due next are held while
        the gateway sends the events it had collected, as after a reconnect.
        """
        if self._is_mute(now):
            self.renew_until = now
            self.grace_until = now + self.reconnect_grace
        self.heard_at = now

    def reading_paused(self, now: float) -> None:
        """Note that its link is not read: its timer commands wait for the disk."""
        self.reading_paused_at = now

    def reading_resumed(self, now: float) -> None:
        """Note that its link is read again.

        The pause does not count as mute. After a longer one the gateway gets time to send
        the events it had collected, as after a reconnect. Its users' deadlines stay as
        they are: otherwise a gateway whose link pauses again and again would keep its
        users online for ever.
        """
        if self.reading_paused_at is None:
            return
        paused = now - self.reading_paused_at
        self.heard_at = min(self.heard_at + paused, now)
        if paused > SHORT_PAUSE_S:
            self.grace_until = now + self.reconnect_grace
        self.reading_paused_at = None

    def set_in_force(self, timeout: float, now: float, *, before: float) -> None:
        """Note that its sessions have *timeout* from their next event on.

        Until that event, or their deadline, they have the one *before*, or an even
        earlier one. If such a timeout is longer, it stays in force until then.
        """
        if not self.users or timeout >= self.in_force:
            self.in_force = timeout
        elif before == self.in_force:
            self.in_force_until = now + before

    def clearance(self, now: float, *, hold: float) -> Clearance:
        if self.reading_paused_at is not None:
            # The pause is the gateway's own doing, so it is part of the hold.
            return Clearance(lost=now - hold, why=UNREAD)
        # A link that was not read for some time, as during a long computation of ours, may
        # have sent something: that time is not part of the hold.
        looked_at = max(self.heard_at, self.empty_at) if self.is_linked else now
        given_up = looked_at - hold
        if self.is_linked and self._is_mute(now):
            return Clearance(lost=given_up, why=MUTE)
        if not self.is_linked:
            if now < self.grace_until:
                return Clearance(lost=given_up, why=AWAY)
            return Clearance(lost=now)
        # The gateway sends its collected events during the grace. A socket that was read
        # empty before the grace was over proves nothing about them.
        empty_at = self.empty_at if self.empty_at >= self.grace_until else NEVER
        why = None if empty_at >= now else UNREAD
        return Clearance(
            silence=min(empty_at, now), lost=given_up, renew=self.renew_until, why=why
        )

    def clearance_of_renewed(self, now: float) -> Clearance:
        """The same for users that have had their fresh timeout; they get no second one."""
        is_mute = self.is_linked and self._is_mute(now)
        return self.clearance(now, hold=0.0 if is_mute else self.reconnect_grace)

    def has_missed(self, now: float) -> bool:
        """Whether it has broken its promise, and that is not counted yet."""
        return (
            self.is_linked
            and self.reading_paused_at is None
            and self._is_mute(now)
            and self.missed_at <= self.heard_at
        )

    def count_miss(self, now: float) -> None:
        if self.has_missed(now):
            self.mutes += 1
            self.missed_at = now

    def absence(self, now: float) -> str | None:
        """`AWAY` or `MUTE` if none of its users can be heard; else None."""
        if not self.is_linked:
            return AWAY
        return MUTE if self.reading_paused_at is None and self._is_mute(now) else None

    def _is_mute(self, now: float) -> bool:
        ping = self.ping
        return ping is not None and now - self.heard_at > ping + max(ping, LEAST_LATE_S)
