"""Answers a hello: with the link's position in the log, and the terms in `welcome`."""

from collections import deque
from dataclasses import dataclass

from liveness.core.changes import Decisions
from liveness.core.cursors import ReadPosition
from liveness.core.disk import Disk
from liveness.core.effects import Effect, SearchSkipped
from liveness.core.limits import Limits
from liveness.core.links.link import Link
from liveness.core.links.skipped_ranges import SkippedRanges
from liveness.core.records import GATEWAY, Subscription
from liveness.core.wire.frames import CLUSTER, FEATURES, PROTOCOL
from liveness.core.wire.link_requests import Hello


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The part of `welcome` about the sidecar, besides its log.

    Args:
        version: Of the sidecar.
        timeout: The default silence timeout, in seconds.
        flush: How long a gateway may collect keepalives, in seconds.
        device_separator: Separates a device from its user in a uid; "" if it is not set.
        run_timeout: How long a gateway has to answer an attempt of a timer, in seconds.
        limits: Those of links.
        host: The name of this host in the cluster; "" if there is none.
    """

    version: str
    timeout: float
    flush: float
    run_timeout: float
    device_separator: str
    limits: Limits
    host: str


class Handshake:
    """Gives each link its position in the log, and the terms for its `welcome`."""

    def __init__(
        self,
        effects: deque[Effect],
        decided: Decisions,
        skipped: SkippedRanges,
        *,
        disk: Disk,
        terms: Terms,
    ) -> None:
        self._terms = terms
        self._effects = effects
        self._decided = decided
        self._skipped = skipped
        self._disk = disk

    def answer(
        self, link: Link, hello: Hello, at_ms: int
    ) -> tuple[dict[str, object], ReadPosition]:
        """Store the cursor of a name; return the terms, and where its link begins.

        *at_ms* is now, by the state's clock.
        """
        newest = self._decided.next_seq - 1  # it may not be durable yet
        position = self._start_position(hello, newest)
        terms = self._shown(link, hello, newest + 1)
        if hello.role == GATEWAY or hello.ack:
            cursors, key = self._decided.cursors, (hello.role, hello.name)
            stored = cursors.get(key)
            terms["known"] = stored is not None
            seq = position if stored is None else stored.seq
            if hello.role == GATEWAY and (hello.fresh or stored is None):
                after = None
                if stored is not None:
                    after = max(seq, cursors.sent.get(hello.name, 0))
                if self._skipped.add(hello.name, after=after, until=position):
                    self._effects.append(SearchSkipped())
            if hello.fresh:
                seq = position
            in_force = None if link.gateway is None else link.gateway.in_force
            cursors.introduce(
                key,
                seq=seq,
                timeout=hello.timeout,
                in_force=in_force,
                at_ms=at_ms,
            )
            if hello.after is None:
                position = seq
        wanted = Subscription(
            None if hello.scope == "all" else hello.name,
            hello.kinds,
            runs=hello.name if hello.role == GATEWAY else None,
            users=hello.users,
        )
        return terms, ReadPosition(wanted, position)

    def _start_position(self, hello: Hello, newest: int) -> int:
        """The position that a hello asks for; by default the newest."""
        if hello.after is None:
            return newest
        disk = self._disk
        # If this log ends before `after`, it lost records: treat it as another log.
        if hello.after == 0 or (hello.log == disk.log and hello.after <= newest):
            return hello.after
        if hello.log is not None and hello.log in disk.ancestors:
            return min(hello.after, disk.ancestors[hello.log])
        return disk.first - 1

    def _shown(self, link: Link, hello: Hello, following: int) -> dict[str, object]:
        own, limits = self._terms, self._terms.limits
        shown: dict[str, object] = {
            "protocol": PROTOCOL,
            "server": f"liveness/{own.version}",
            "features": sorted((*FEATURES, CLUSTER)) if own.host else FEATURES,
            "log": self._disk.log,
            "next": following,
            "timeout": hello.timeout or own.timeout,
            "flush": own.flush,
            "max_batch": limits.max_batch,
            "max_frame": limits.max_frame_bytes,
            "window": limits.window,
            "run_timeout": own.run_timeout,
        }
        if own.host:
            shown["host"] = own.host
        if own.device_separator:
            shown["device_separator"] = own.device_separator
        if hello.clock is not None:
            gateway = link.gateway
            shown["began"] = gateway is not None and gateway.clock_offset is not None
        return shown
