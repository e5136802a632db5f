"""The storm guard: when most users of a gateway come due at once, it holds them.

Users usually fall silent one by one. If more than a set share of a gateway's users come
due within one revolution of the ring, the likely cause is a fault between them and us,
and each of their offlines would be correct but useless. So they are held, and an operator
is warned. A user whose event arrives during the hold stays online.

    calm    due users go offline as usual. The guard counts those of the last revolution,
            plus users that are due and waiting
    storm   begins when a user may go offline while the count is too high. From now on
            only users go offline whose deadline is `hold` seconds past
    calm    again once the storm's first user was held for `hold` seconds; or when no user
            is due and the count has fallen to half of what is too high

Two rules bound every hold. No storm holds a user whose deadline is `hold` seconds past.
And when a storm is over all its users go offline: deadlines up to that moment are not held
again, and the count starts over with later ones. No storm begins while a user is due that
cannot be held, so such users are never counted.

The guard has no clock: `now` is attended seconds, as for the wheel.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from liveness.core.effects import LogLine
from liveness.core.sessions.clearance import NEVER, Clearance, GatewayState
from liveness.core.wheel.wheel import Wheel

# The parts of a revolution in which users are counted: a count is up to a thirtieth of a
# revolution out of date, which is the default ring's resolution.
PIECES: Final = 30

# A storm ends below this part of the share: with one bound for both, it would begin and
# end with each single user.
HALF: Final = 0.5

# The reasons for the end of a storm.
BY_TIME: Final = "its time is over"
BY_CALM: Final = "no user is due any more"
BY_FRESH: Final = "the gateway came back without its sessions"


class GuardRules(NamedTuple):
    """When a storm begins, and how long it lasts; in attended seconds.

    A user counts for one `revolution`.
    """

    share: float
    least_users: int
    hold: float
    revolution: float


# It never begins a storm.
NO_GUARD: Final = GuardRules(share=inf, least_users=0, hold=inf, revolution=inf)


class Storm(NamedTuple):
    """A current storm: its due users, and for how many seconds they may be held."""

    gateway: str
    users: int
    left_s: float


@dataclass(slots=True)
class _Watch:
    """The guard's state of one gateway."""

    gateway: GatewayState
    # Those that count for a storm, by the part of a revolution in which they went offline.
    offlines: Counter[int] = field(default_factory=Counter)
    released: float = NEVER  # deadlines up to here are not held
    held_above: float = inf  # the latest storm held deadlines above this
    ends_at: float | None = None  # of the current storm; None: there is none


class Guard:
    """The storm guard over all gateways; it changes nothing on the wheel."""

    def __init__(self, rules: GuardRules, wheel: Wheel) -> None:
        self.begun = 0
        self._rules = rules
        self._wheel = wheel
        self._watches: dict[int, _Watch] = {}
        self._storms: dict[int, _Watch] = {}  # of gateways with a storm
        self._news: list[LogLine] = []

    # --- when users go offline --------------------------------------------------

    def look(self, now: float) -> None:
        for number, watch in list(self._storms.items()):
            assert watch.ends_at is not None
            if now >= watch.ends_at:
                self._end(watch, BY_TIME, now)
            elif not self._wheel.due(number) and not self._is_over_share(
                watch, now, HALF
            ):
                self._end(watch, BY_CALM, now)

    def clear(
        self, gateway: GatewayState, cleared: Clearance, renewed: Clearance, now: float
    ) -> tuple[Clearance, Clearance]:
        """Limit a gateway's clearances by its storm; this may begin one.

        The gateway has due users, none of which is to be renewed. *cleared* is its own
        clearance, *renewed* that for users that have had a fresh timeout.
        """
        watch = self._watch(gateway)
        limit = max(watch.released, now - self._rules.hold)
        if watch.ends_at is None:
            wheel, number = self._wheel, gateway.number
            fresh = wheel.longest_due(number)
            again = wheel.longest_due(number, renewed=True)
            # Users that cannot be held, as after a storm or a failing disk, go offline
            # first; the others may begin a storm only after that.
            if (first := min(fresh, again)) > limit:
                if fresh > max(cleared.silence, cleared.lost) and again > max(
                    renewed.silence, renewed.lost
                ):
                    return cleared, renewed
                if not self._is_storm(watch, now):
                    return cleared, renewed
                self._begin(watch, now, first=first, limit=limit)
        return _limited(cleared, limit), _limited(renewed, limit)

    def counted_above(self, gateway: GatewayState, now: float) -> float:
        """Users that go offline now count if their deadline is above this one."""
        return max(self._watch(gateway).released, now - self._rules.revolution)

    def judged(self, gateway: GatewayState, counted: int, now: float) -> None:
        """Count users of a gateway that went offline by silence, or with the gateway.

        Their deadlines were above `counted_above`.
        """
        if counted:
            watch = self._watch(gateway)
            self._count(watch, now)
            watch.offlines[self._piece(now)] += counted

    def reset_sessions(self, gateway: GatewayState, now: float) -> None:
        watch = self._storms.get(gateway.number)
        if watch is not None:
            self._end(watch, BY_FRESH, now)

    def forget(self, gateway: GatewayState, now: float) -> None:
        """Forget a gateway without users, whose number may become another's."""
        watch = self._watches.pop(gateway.number, None)
        if watch is not None and watch.ends_at is not None:
            self._end(watch, BY_CALM, now)

    # --- storms ---------------------------------------------------------------

    def holds(self, gateway: GatewayState) -> bool:
        return gateway.number in self._storms

    def held_range(self, gateway: GatewayState) -> tuple[float, float]:
        """Due users that go offline now waited for a storm if their deadline is in here.

        It excludes the first deadline, and includes the last.
        """
        watch = self._watch(gateway)
        return watch.held_above, inf if watch.ends_at is not None else watch.released

    def storms(self, now: float) -> list[Storm]:
        """Return the current storms, the largest first."""
        storms = [
            Storm(
                watch.gateway.name,
                self._wheel.due(number),
                round(max(0.0, (watch.ends_at or now) - now), 3),
            )
            for number, watch in self._storms.items()
        ]
        return sorted(storms, key=lambda storm: (-storm.users, storm.gateway))

    def take(self) -> list[LogLine]:
        """Return what to log of storms that began or ended since the last call."""
        news, self._news = self._news, []
        return news

    # --- within ---------------------------------------------------------------

    def _watch(self, gateway: GatewayState) -> _Watch:
        watch = self._watches.get(gateway.number)
        if watch is None:
            watch = self._watches[gateway.number] = _Watch(gateway)
        return watch

    def _piece(self, now: float) -> int:
        return int(now * PIECES / self._rules.revolution)

    def _count(self, watch: _Watch, now: float) -> int:
        """How many went offline within a revolution; forgets the earlier ones."""
        since = self._piece(now) - PIECES
        for piece in [piece for piece in watch.offlines if piece < since]:
            del watch.offlines[piece]
        return watch.offlines.total()

    def _note(self, what: str, **fields: object) -> None:
        self._news.append(LogLine("guard", "warning", what, fields))

    def _came_due(self, watch: _Watch, now: float) -> tuple[int, int]:
        """How many users came due within a revolution, and how many there are."""
        offlines = self._count(watch, now)
        return (
            offlines + self._wheel.due(watch.gateway.number),
            offlines + watch.gateway.users,
        )

    def _is_over_share(self, watch: _Watch, now: float, part: float = 1.0) -> bool:
        due, users = self._came_due(watch, now)
        return due > part * self._rules.share * users

    def _is_storm(self, watch: _Watch, now: float) -> bool:
        _, users = self._came_due(watch, now)
        return users >= self._rules.least_users and self._is_over_share(watch, now)

    def _begin(self, watch: _Watch, now: float, *, first: float, limit: float) -> None:
        due, users = self._came_due(watch, now)
        watch.ends_at = first + self._rules.hold
        watch.held_above = limit
        self._storms[watch.gateway.number] = watch
        self.begun += 1
        self._note(
            "storm: too many users came due at once, and are held",
            gateway=watch.gateway.name,
            due=due,
            users=users,
            hold_s=round(watch.ends_at - now, 1),
        )

    def _end(self, watch: _Watch, why: str, now: float) -> None:
        del self._storms[watch.gateway.number]
        watch.ends_at, watch.released = None, now
        watch.offlines.clear()
        due, name = self._wheel.due(watch.gateway.number), watch.gateway.name
        self._note("storm is over", gateway=name, why=why, due=due)


def _limited(cleared: Clearance, limit: float) -> Clearance:
    """A clearance for no deadline above *limit*."""
    return cleared._replace(
        silence=min(cleared.silence, limit), lost=min(cleared.lost, limit)
    )
