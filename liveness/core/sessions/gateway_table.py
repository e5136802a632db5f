"""All gateways, with their silence timeouts and how often their users send events."""

from typing import Final

from liveness.core.sessions.clearance import GatewayState
from liveness.core.wheel.wheel import Wheel

# Gateways whose cadence one call looks at: about a millisecond of work.
CADENCES_PER_LOOK: Final = 200


class GatewayTable:
    """The gateways that have a link or users, by name and by number on the wheel.

    *timeout* is the silence timeout, in seconds, of gateways that set none. A gateway has
    *reconnect_grace* seconds to catch up after its link began or ended.
    """

    def __init__(self, wheel: Wheel, *, timeout: float, reconnect_grace: float) -> None:
        self.timeout = timeout
        self.by_name: dict[str, GatewayState] = {}
        self.by_number: list[GatewayState] = []
        self._wheel = wheel
        self._reconnect_grace = reconnect_grace
        self._free: list[int] = []  # numbers of gateways that were forgotten
        self._next_cadence = 0  # number of the gateway to look at next

    def add(self, name: str) -> GatewayState:
        """Return the gateway of this name; add it if there is none.

        The caller sets a new one's timeout before it opens a session.
        """
        known = self.by_name.get(name)
        if known is None:
            number = self._free.pop() if self._free else self._wheel.add_gateway()
            known = GatewayState(
                name, number, self._reconnect_grace, in_force=self.timeout
            )
            self.by_name[name] = known
            self.by_number[number : number + 1] = [known]
        return known

    def remove(self, gateway: GatewayState) -> None:
        """Forget a gateway, which has neither users nor a link."""
        assert not gateway.users
        assert not gateway.is_linked
        del self.by_name[gateway.name]
        self._free.append(gateway.number)

    # --- timeouts -------------------------------------------------------------

    def set_timeout(
        self,
        gateway: GatewayState,
        timeout: float | None,
        now: float,
        *,
        in_force: float = 0.0,
    ) -> None:
        """Set a gateway's silence timeout, or the server's again with None.

        It holds for each of its users from the user's next event on. *in_force* is the
        longest timeout of the sessions that are to be restored.
        """
        gateway.timeout = timeout
        before, whole = self._wheel.timeout_of(gateway.number), timeout or self.timeout
        self._wheel.set_timeout(gateway.number, whole)
        gateway.set_in_force(whole, now, before=before)
        if in_force > whole:
            gateway.in_force, gateway.in_force_until = in_force, now + in_force

    def timeouts_over(self, now: float) -> list[GatewayState]:
        """Return gateways where the last session with an earlier, longer timeout is over.

        Each is returned once; from now on only its present timeout is in force.
        """
        over = [
            gateway
            for gateway in self.by_name.values()
            if gateway.in_force > self._wheel.timeout_of(gateway.number)
            and (
                not gateway.users
                or now
                > max(gateway.in_force_until, gateway.renew_until + gateway.in_force)
            )
        ]
        for gateway in over:
            gateway.in_force = self._wheel.timeout_of(gateway.number)
        return over

    # --- how often users send events ------------------------------------------

    def look_at_cadence(self, now: float) -> None:
        """Learn how often users send events, for some gateways; call every few seconds.

        Then `GatewayState.cadence.interval` is how often they usually do.
        """
        wheel = self._wheel
        first = self._next_cadence if self._next_cadence < len(self.by_number) else 0
        self._next_cadence = first + CADENCES_PER_LOOK
        for gateway in self.by_number[first : self._next_cadence]:
            gateway.cadence.look(
                wheel.silences(gateway.number),
                timeout=wheel.timeout_of(gateway.number),
                now=now,
            )
