"""May the due users of a gateway be judged now?

A user who is due has been silent for its whole timeout as far as we have heard. That
is the user's silence only if its gateway would have told us otherwise: if the socket
has been read empty since, and the gateway itself is there and talking. Until then
the user waits on its gateway's due list. No wait is without end: `hold` seconds past
its deadline a user is given up with the gateway.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liveness.core.cadence import Cadence

NEVER: Final = float("-inf")

# A link that was left unread for no longer than this is only read empty before its users
# are judged: what they said cannot have gathered anywhere but in its socket.
SHORT_PAUSE_S: Final = 1.0

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
class Gateway:
    """One gateway: what is known of its link, and how many users it has.

    All times are attended seconds. `settle` is how long a gateway whose link began
    or ended just now is given to say what it had collected.
    """

    name: str
    number: int
    settle: float
    timeout: float | None = None
    users: int = 0
    is_linked: bool = False
    held_back_at: float | None = None  # when we ceased to read its link; None: we read
    ping: float | None = None
    heard_at: float = NEVER
    empty_at: float = NEVER
    settles_at: float = NEVER
    renew_until: float = NEVER
    # The longest timeout that a session of its may still be under, and until when.
    in_force: float = 0.0
    in_force_until: float = NEVER
    cadence: Cadence = field(default_factory=Cadence)

    def linked(self, *, ping: float | None, now: float) -> None:
        """A link of this name said hello."""
        self.heard(now)
        self.ping = ping
        self.is_linked = True
        self.empty_at = NEVER
        if self.users:
            self.settles_at = now + self.settle

    def unlinked(self, now: float) -> None:
        """The link ended."""
        self.is_linked = False
        self.held_back_at = None
        self.settles_at = now + self.settle

    def heard(self, now: float) -> None:
        """Any bytes came. Ends the hold of a mute gateway.

        Those who were due get a fresh timeout; those who come due next get the time
        in which it says what it had collected, as after a reconnect.
        """
        if self._is_mute(now):
            self.renew_until = now
            self.settles_at = now + self.settle
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
            self.settles_at = now + self.settle
        self.held_back_at = None

    def set_in_force(self, timeout: float, now: float) -> None:
        """Note that its sessions are under *timeout* from their next event on.

        Until then, or their deadline, they are under the one before, which may be longer.
        """
        self.in_force = max(self.in_force, timeout) if self.users else timeout
        self.in_force_until = now + self.in_force

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
            if now < self.settles_at:
                return Clearance(NEVER, given_up, NEVER, AWAY)
            return Clearance(NEVER, now, NEVER, None)
        if now < self.settles_at:
            return Clearance(NEVER, given_up, self.renew_until, UNREAD)
        # What its users had said before was told in that time: it was not yet read when
        # the socket was empty before the welcome.
        empty_at = self.empty_at if self.empty_at >= self.settles_at else NEVER
        why = None if empty_at >= now else UNREAD
        return Clearance(min(empty_at, now), given_up, self.renew_until, why)

    def absence(self, now: float) -> str | None:
        """Whether it is `AWAY` or `MUTE`, so that nobody is heard through it."""
        if not self.is_linked:
            return AWAY
        return MUTE if self.held_back_at is None and self._is_mute(now) else None

    def _is_mute(self, now: float) -> bool:
        return self.ping is not None and now - self.heard_at > self.ping
