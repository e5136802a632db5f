"""May the due users of a gateway be judged now?

A user who is due has been silent for its whole timeout as far as we have heard. That
is the user's silence only if its gateway would have told us otherwise: if the socket
has been read empty since, and the gateway itself is there and talking. Until then
the user waits on its gateway's due list. No wait is without end: `hold` seconds past
its deadline a user is given up with the gateway.

A mute gateway that is heard again owes the users that were due meanwhile a fresh timeout,
and each of them one: a gateway that is late again and again would otherwise keep its
silent users online for ever. It ends `reconnect_grace` before the hold does. A user that falls due
after it is judged by the same rules, but for one: it waits for a gateway that is away or
not read empty no longer than `reconnect_grace`, and for a mute one not at all. So whatever its
gateway does, a user is judged within `hold` of the deadline that it missed first.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liveness.core.intervals import Cadence

NEVER: Final = float("-inf")

# A link that was left unread for no longer than this is only read empty before its users
# are judged: what they said cannot have gathered anywhere but in its socket.
SHORT_PAUSE_S: Final = 1.0

# A gateway that sleeps for the time it promised and then sends is late by what its timer,
# scheduler or garbage collector adds, which is no absence. So a promise counts as broken
# only when a gateway is late by as much again, and by this at least.
LEAST_LATE_S: Final = 1.0

# A gateway keeps missing its promise if it did so this often within so many seconds. Once
# or twice is a hang, which its held users tell of.
MISSES: Final = 3
MISSES_WITHIN_S: Final = 600.0

AWAY: Final = "away"
MUTE: Final = "mute"
UNREAD: Final = "unread"
STORM: Final = "storm"  # not for their gateway: see `guard`
WHY_HELD: Final = (AWAY, MUTE, UNREAD, STORM)
# Nor are these: everyone waits, and so they are counted elsewhere.
STANDS: Final = "stands"  # the clock, until gateways had time to catch up
DISK: Final = "disk"  # the disk, for what was decided before


class Clearance(NamedTuple):
    """Deadlines up to which due users of one gateway may be judged, and how."""

    silence: float  # up to here it is the user's own silence
    lost: float  # up to here the gateway is to blame
    renew: float  # up to here a fresh timeout is owed, because the hold is over
    why: str | None  # what the others wait for


@dataclass(slots=True)
class GatewayState:
    """One gateway: what is known of its link, and how many users it has.

    All times are attended seconds. `reconnect_grace` is how long a gateway whose link began
    or ended just now is given to say what it had collected.
    """

    name: str
    number: int
    reconnect_grace: float
    timeout: float | None = None
    users: int = 0
    is_linked: bool = False
    held_back_at: float | None = None  # when we ceased to read its link; None: we read
    ping: float | None = None
    # What makes monotonic seconds of its own; None: its clock is not known to be ours.
    clock_offset: float | None = None
    heard_at: float = NEVER
    empty_at: float = NEVER
    grace_until: float = NEVER
    renew_until: float = NEVER
    # The longest timeout that a session of its may still be under, and until when.
    in_force: float = 0.0
    in_force_until: float = NEVER
    mutes: int = 0  # how often it broke its promise
    missed_at: deque[float] = field(default_factory=lambda: deque(maxlen=MISSES))
    cadence: Cadence = field(default_factory=Cadence)

    def linked(
        self, *, ping: float | None, now: float, clock_offset: float | None = None
    ) -> None:
        """A link of this name said hello."""
        self.heard(now)
        self.ping = ping
        self.clock_offset = clock_offset
        self.is_linked = True
        self.empty_at = NEVER
        if self.users:
            self.grace_until = now + self.reconnect_grace

    def unlinked(self, now: float) -> None:
        """The link ended."""
        self.is_linked = False
        self.held_back_at = None
        self.grace_until = now + self.reconnect_grace

    def heard(self, now: float) -> None:
        """Any bytes came. Ends the hold of a mute gateway.

        Those who were due get a fresh timeout; those who come due next get the time
        in which it says what it had collected, as after a reconnect.
        """
        if self._is_mute(now):
            self.renew_until = now
            self.grace_until = now + self.reconnect_grace
        self.heard_at = now

    def hold_back(self, now: float) -> None:
        """From now on we do not read its link, as its own orders wait for the disk."""
        self.held_back_at = now

    def let_go(self, now: float) -> None:
        """We read its link again.

        That it was not heard meanwhile does not make it mute. After more than a moment it
        gets the time in which it says what it had collected, as after a reconnect. Its
        users' deadlines stay what they are: who pauses its link again and again would
        otherwise never be judged.
        """
        if self.held_back_at is None:
            return
        paused = now - self.held_back_at
        self.heard_at = min(self.heard_at + paused, now)
        if paused > SHORT_PAUSE_S:
            self.grace_until = now + self.reconnect_grace
        self.held_back_at = None

    def set_in_force(self, timeout: float, now: float, *, before: float) -> None:
        """Note that its sessions are under *timeout* from their next event on.

        Until then, or their deadline, they are under the one *before*, which may be longer;
        or under a longer one of before that, whose time goes on.
        """
        if not self.users or timeout >= self.in_force:
            self.in_force = timeout
        elif before == self.in_force:
            self.in_force_until = now + before

    def clearance(self, now: float, *, hold: float) -> Clearance:
        """Say which due users may be judged at *now*."""
        if self.held_back_at is not None:
            # By its own doing, so this is part of the hold.
            return Clearance(NEVER, now - hold, NEVER, UNREAD)
        # Whoever had no turn to be read for some time, as after a long computation of
        # ours, may have spoken: for such a link that time is not part of the hold.
        looked_at = max(self.heard_at, self.empty_at) if self.is_linked else now
        given_up = looked_at - hold
        if self.is_linked and self._is_mute(now):
            return Clearance(NEVER, given_up, NEVER, MUTE)
        if not self.is_linked:
            if now < self.grace_until:
                return Clearance(NEVER, given_up, NEVER, AWAY)
            return Clearance(NEVER, now, NEVER, None)
        if now < self.grace_until:
            return Clearance(NEVER, given_up, self.renew_until, UNREAD)
        # What its users had said before was told in that time: it was not yet read when
        # the socket was empty before the welcome.
        empty_at = self.empty_at if self.empty_at >= self.grace_until else NEVER
        why = None if empty_at >= now else UNREAD
        return Clearance(min(empty_at, now), given_up, self.renew_until, why)

    def clearance_of_renewed(self, now: float) -> Clearance:
        """The same for users that have had their fresh timeout; no other is owed."""
        is_mute = self.is_linked and self._is_mute(now)
        return self.clearance(now, hold=0.0 if is_mute else self.reconnect_grace)

    def has_missed(self, now: float) -> bool:
        """Whether it is mute, and `missed` was not called since it was heard."""
        return (
            self.is_linked
            and self.held_back_at is None
            and self._is_mute(now)
            and not (self.missed_at and self.missed_at[-1] > self.heard_at)
        )

    def missed(self, now: float) -> float | None:
        """Count one time that it broke its promise.

        Returns:
            If it keeps doing so, the seconds within which it did the last `MISSES` times.
        """
        self.mutes += 1
        self.missed_at.append(now)
        within = now - self.missed_at[0]
        is_usual = len(self.missed_at) == MISSES and within <= MISSES_WITHIN_S
        return within if is_usual else None

    def absence(self, now: float) -> str | None:
        """Whether it is `AWAY` or `MUTE`, so that nobody is heard through it."""
        if not self.is_linked:
            return AWAY
        return MUTE if self.held_back_at is None and self._is_mute(now) else None

    def _is_mute(self, now: float) -> bool:
        ping = self.ping
        return ping is not None and now - self.heard_at > ping + max(ping, LEAST_LATE_S)
