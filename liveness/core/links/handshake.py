"""Answers a hello: with the link's position in the log, and the terms in `welcome`.

A gateway that says `fresh`, or whose name was forgotten, begins to read at the end of the
log. It does not need older records of sessions, but its timers outlive its process. So the
records that it skipped are searched for attempts of its timers, and these timers fire
again, which does not count as another attempt. If the sidecar ends before that, such an
attempt times out, like one without an answer.
"""

from collections import deque

from liveness.core.changes import Decisions
from liveness.core.cursors import ReadPosition
from liveness.core.disk import Disk
from liveness.core.effects import Effect, SearchSkipped
from liveness.core.links.link import Link
from liveness.core.records import GATEWAY, Subscription
from liveness.core.wire.link_requests import Hello


class SkippedRanges(dict[str, tuple[int | None, int]]):
    """By gateway, the skipped part of the log: above the first seq, up to the second.

    If it skips another part before that is searched, the records between them count as
    skipped too, although the gateway got them.
    """

    def add(self, gateway: str, *, after: int | None, until: int) -> bool:
        """Note that a gateway skips the records above *after*, up to *until*.

        *after* is None if its last record is unknown. Returns whether there are any.
        """
        if (after or 0) >= until:
            return False
        first, _ = self.get(gateway, (after, until))
        self[gateway] = first, until
        return True

    def delivered(self, gateway: str, position: int) -> int:
        """The seq up to which a gateway with its cursor at *position* skipped nothing."""
        after, _ = self.get(gateway, (position, position))
        return min(position, after or 0)

    def searched(self, gateway: str, reached: int) -> None:
        """Note that the records of a gateway were searched up to *reached*."""
        _, until = self[gateway]
        if reached < until:  # there are more, or it skipped more meanwhile
            self[gateway] = reached, until
        else:
            del self[gateway]


class Handshake:
    """Gives each link its position in the log, and the terms for its `welcome`."""

    def __init__(
        self,
        effects: deque[Effect],
        decided: Decisions,
        skipped: SkippedRanges,
        *,
        disk: Disk,
        terms: dict[str, object],
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
        terms = self._terms | {"log": self._disk.log, "next": newest + 1}
        if hello.timeout is not None:
            terms["timeout"] = hello.timeout
        if hello.clock is not None:
            gateway = link.gateway
            terms["began"] = gateway is not None and gateway.clock_offset is not None
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
