"""Logs what the server has to say to the operator."""

from typing import Final

import structlog

from liveness.core.access import Peer
from liveness.core.effects import LogLine, LogRefusal
from liveness.errors import Code
from liveness.service.common.clock import Clock
from liveness.service.common.logs import LogThrottle

# The refusals of one name, code and user are logged this often.
REFUSALS_LOG_S: Final = 10.0


class OperatorLog:
    """Logs lines, each key once an interval."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._throttles: dict[float, LogThrottle] = {}  # by interval, in seconds

    def log(self, line: LogLine) -> None:
        """Log a line."""
        log = getattr(structlog.get_logger(line.area), line.level)
        if line.key is None:
            log(line.message, **line.fields)
        else:
            throttle = self._throttle(line.every_s)
            throttle(log, line.message, key=(line.area, line.key), **line.fields)

    def log_refusal(self, effect: LogRefusal, peer: Peer) -> None:
        """Log a refusal."""
        refusal, name = effect.refusal, effect.name
        if refusal.code is Code.REPLACED:
            return  # the line `link replaced` says more
        self._throttle(REFUSALS_LOG_S)(
            structlog.get_logger("link").warning,
            "link refused" if refusal.fatal else "frame refused",
            key=(name, refusal.code, peer.unix_user),
            name=name,
            link=effect.link,
            pid=peer.pid,
            unix_user=peer.unix_user,
            code=refusal.code.value,
            detail=refusal.message,
        )

    def _throttle(self, every_s: float) -> LogThrottle:
        if every_s not in self._throttles:
            self._throttles[every_s] = LogThrottle(every_s, clock=self._clock.mono)
        return self._throttles[every_s]
