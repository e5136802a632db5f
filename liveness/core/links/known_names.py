"""The names that links have said hello with: what uses each, and how far it has read."""

from liveness.core.cursors import (
    FORGOTTEN,
    NOT_LINKED,
    PENDING,
    SENT,
    UNWANTED,
    Cursors,
    Unacknowledged,
    losing_gateway,
)
from liveness.core.disk import Disk
from liveness.core.links.link_registry import LinkRegistry
from liveness.core.links.skipped_ranges import SkippedRanges
from liveness.core.records import GATEWAY, Logged
from liveness.core.sessions.gateway_table import GatewayTable


class KnownNames:
    """Joins what links, users, cursors and the log say of a name; changes nothing."""

    def __init__(
        self,
        registry: LinkRegistry,
        gateways: GatewayTable,
        cursors: Cursors,
        skipped: SkippedRanges,
        disk: Disk,
    ) -> None:
        self._registry = registry
        self._gateways = gateways.by_name
        self._cursors = cursors
        self._skipped = skipped
        self._disk = disk

    def in_use(self) -> list[tuple[str, str]]:
        gateways = self._gateways.values()
        with_users = [(GATEWAY, gateway.name) for gateway in gateways if gateway.users]
        return [*self._registry.named, *with_users]

    def why_in_use(self, role: str, name: str) -> str | None:
        """Why a name cannot be forgotten now; None if it can."""
        if (role, name) in self._registry.named:
            return "is connected; stop it first"
        gateway = self._gateways.get(name) if role == GATEWAY else None
        if gateway is not None and gateway.users:
            return (
                f"has {gateway.users} users online; they go offline by themselves if it "
                "does not come back"
            )
        return None

    def delivered_seq(self, gateway: str) -> int:
        """The seq up to which a gateway was sent its records."""
        link = self._registry.named.get((GATEWAY, gateway))
        cursor = self._cursors.get((GATEWAY, gateway))
        if link is not None and link.outbox.position is not None:
            position = link.outbox.position
        elif cursor is not None:
            position = cursor.seq
        else:
            return 0  # a name that was forgotten; it may come back
        position = self._skipped.delivered(gateway, position)
        # Records that were trimmed will never be sent.
        return max(position, self._disk.first - 1)

    def unacknowledged(self, record: Logged) -> Unacknowledged | None:
        """Why the gateway that loses a user by *record* has not acknowledged it.

        None if it has, or if there is no such gateway.
        """
        gateway = losing_gateway(record)
        if gateway is None:
            return None
        link = self._registry.named.get((GATEWAY, gateway))
        cursor = self._cursors.get((GATEWAY, gateway))
        if cursor is None:
            return Unacknowledged(gateway, FORGOTTEN)
        if link is not None and link.hello and record.kind not in link.hello.kinds:
            return Unacknowledged(gateway, UNWANTED)
        if cursor.seq >= record.seq:
            return None
        if link is None:
            return Unacknowledged(gateway, NOT_LINKED)
        outbox = link.outbox
        is_sent = (outbox.position or 0) >= record.seq
        why = SENT if is_sent else outbox.stop or PENDING
        return Unacknowledged(gateway, why, outbox.unacked)
