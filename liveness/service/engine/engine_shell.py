"""Carries out the server's effects on sockets, log and tasks."""

from collections import deque
from typing import Final, assert_never

import structlog

from liveness.core import effects
from liveness.core.changes import Commit
from liveness.core.effects import Effect, LogLine, LogRefusal
from liveness.core.server import Server, ServerParts, Shell
from liveness.errors import Code
from liveness.service.common.clock import Clock
from liveness.service.common.logs import LogThrottle
from liveness.service.common.notifier import Notifier
from liveness.service.engine.link_reader import LinkReader
from liveness.service.links.link_socket import LinkSocket
from liveness.service.timers.state_writer import StateWriter
from liveness.service.timers.timer_loop import SkippedAttempts

# The refusals of one name, code and user are logged this often.
REFUSALS_LOG_S: Final = 10.0


class EngineShell(Shell):
    """Owns the links' sockets, what reads them, and the questions to the cluster."""

    def __init__(
        self,
        server: Server,
        parts: ServerParts,
        *,
        clock: Clock,
        log_writer: StateWriter,
        skipped_attempts: SkippedAttempts,
    ) -> None:
        super().__init__(server)
        self.sockets: dict[int, LinkSocket] = {}  # by number of the link
        self.reader = LinkReader(self, parts, self.sockets, clock)
        self.cluster_wanted = Notifier()  # there are `cluster_questions`
        # The server bounds their number.
        self.cluster_questions = deque[effects.AskCluster]()
        self._attended = parts.attended
        self._log_writer = log_writer
        self._skipped_attempts = skipped_attempts
        self._clock = clock
        self._throttles: dict[float, LogThrottle] = {}  # by interval, in seconds

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case effects.WakeWriter():
                self.sockets[effect.link].wake.notify()
            case Commit():
                self._log_writer.append(effect)
            case effects.Deliver():
                self.sockets[effect.link].deliver(effect.position)
            case effects.Close():
                socket = self.sockets[effect.link]
                socket.end()
                socket.drained.notify()
            case effects.ReadFirst():
                older = self.sockets[effect.link].link
                self.reader.read_sent(older, self._attended.now)
                self._server.replace(older)
            case effects.SearchSkipped():
                self._skipped_attempts.wake.notify()
            case effects.AskCluster():
                self.cluster_questions.append(effect)
                self.cluster_wanted.notify()
            case LogRefusal():
                self._log_refusal(effect)
            case LogLine():
                self._log_line(effect)
            case never:
                assert_never(never)

    def _log_line(self, line: LogLine) -> None:
        log = getattr(structlog.get_logger(line.area), line.level)
        if line.key is None:
            log(line.message, **line.fields)
        else:
            throttle = self._throttle(line.every_s)
            throttle(log, line.message, key=(line.area, line.key), **line.fields)

    def _log_refusal(self, effect: LogRefusal) -> None:
        peer = self.sockets[effect.link].link.peer
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
