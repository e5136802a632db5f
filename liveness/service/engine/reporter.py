"""Logs what the server reports to the operator."""

from typing import Final

import structlog

from liveness.core.access import Peer
from liveness.core.effects import Refused, Report
from liveness.service.common.clock import Clock
from liveness.service.common.logs import LogThrottle

# The refusals of one name, code and user are logged this often.
REFUSALS_LOG_S: Final = 10.0


class Reporter:
    """Logs reports, each key once an interval."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._throttles: dict[float, LogThrottle] = {}  # by interval, in seconds

    def report(self, report: Report) -> None:
        """Log a report."""
        log = getattr(structlog.get_logger(report.area), report.level)
        if report.key is None:
            log(report.message, **report.fields)
        else:
            throttle = self._throttle(report.every_s)
            throttle(
                log, report.message, key=(report.area, report.key), **report.fields
            )

    def refused(self, refused: Refused, peer: Peer) -> None:
        """Log a refusal."""
        refusal, name = refused.refusal, refused.name
        self._throttle(REFUSALS_LOG_S)(
            structlog.get_logger("link").warning,
            "link refused" if refusal.fatal else "frame refused",
            key=(name, refusal.code, peer.uid),
            name=name,
            link=refused.link,
            pid=peer.pid,
            uid=peer.uid,
            code=refusal.code.value,
            detail=refusal.message,
        )

    def _throttle(self, every_s: float) -> LogThrottle:
        if every_s not in self._throttles:
            self._throttles[every_s] = LogThrottle(every_s, clock=self._clock.mono)
        return self._throttles[every_s]
