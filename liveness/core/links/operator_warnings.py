"""Warns the operator of short timeouts and of stalled readers."""

from collections import deque
from collections.abc import Iterable
from math import ceil
from typing import Final

from liveness.core.cursors import NOT_READING, UNACKNOWLEDGED
from liveness.core.effects import Effect, LogLine
from liveness.core.links.link import Link
from liveness.core.sessions.cadence import TIMES
from liveness.core.sessions.gateway_table import GatewayTable

# How often it checks conditions that change over seconds and minutes.
CHECK_EVERY_S: Final = 2.0
# Advice to change a setting is repeated no more often than this.
ADVICE_EVERY_S: Final = 3_600.0
# The warning that a name takes no records is repeated no more often, also for a new link.
STALLS_EVERY_S: Final = 60.0

_WHY_STOPPED: Final = {
    UNACKNOWLEDGED: "it has not acknowledged the records that it was sent",
    NOT_READING: "it does not read its link",
}
_TODO: Final = {
    UNACKNOWLEDGED: "have it acknowledge what it has processed; until then it gets no "
    "record",
    NOT_READING: "have it read while it writes; until then it gets no record",
}


class OperatorWarnings:
    """Warns of trouble with gateways and watchers."""

    def __init__(self, effects: deque[Effect], gateways: GatewayTable) -> None:
        self._effects = effects
        self._gateways = gateways
        self._check_at = 0.0  # monotonic
        self._stalled: set[int] = set()  # links reported as stalled, and still so

    def look(self, mono: float, now: float, links: Iterable[Link]) -> None:
        """Warn of timeouts that are too short, and of links that take no more records.

        Does nothing if the last check was less than `CHECK_EVERY_S` ago.
        """
        if mono >= self._check_at:
            self._check_at = mono + CHECK_EVERY_S
            self._short_timeouts(now)
            self._stalled_links(links)

    def _short_timeouts(self, now: float) -> None:
        for gateway in self._gateways.look_at_cadence(now):
            timeout = gateway.timeout or self._gateways.timeout
            interval = gateway.cadence.interval
            assert interval is not None
            self._warn(
                "cadence",
                "the timeout is under twice the usual interval of its users",
                key=gateway.name,
                gateway=gateway.name,
                timeout_s=timeout,
                interval_s=round(interval, 3),
                todo=f"raise the timeout to {ceil(TIMES * interval)} s or more, or have its "
                f"users send something every {timeout / TIMES:g} s",
            )

    def _stalled_links(self, links: Iterable[Link]) -> None:
        """Warn of each once, and again only if it took records in between."""
        before, self._stalled = self._stalled, set()
        for link in links:
            stop, hello = link.outbox.stop, link.hello
            if stop is None or hello is None or not link.outbox.stalled_s:
                continue
            self._stalled.add(link.number)
            if link.number not in before:
                self._warn(
                    "link",
                    "a reader takes no more records",
                    key=("stalled", hello.role, hello.name),
                    every_s=STALLS_EVERY_S,
                    role=hello.role,
                    name=hello.name,
                    link=link.number,
                    pid=link.peer.pid,
                    unacked=link.outbox.unacked,
                    why=_WHY_STOPPED[stop],
                    todo=_TODO[stop],
                )

    def _warn(
        self,
        area: str,
        message: str,
        *,
        key: object,
        every_s: float = ADVICE_EVERY_S,
        **fields: object,
    ) -> None:
        self._effects.append(LogLine(area, "warning", message, fields, key, every_s))
