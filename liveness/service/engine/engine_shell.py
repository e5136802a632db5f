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

# Lines with one key, and refusals of one name, code and user, are logged this often.
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
        self._log_throttled = LogThrottle(REFUSALS_LOG_S, clock=clock.mono)

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
            key = line.area, line.key
            self._log_throttled(log, line.message, key=key, **line.fields)

    def _log_refusal(self, effect: LogRefusal) -> None:
        peer = self.sockets[effect.link].link.peer
        refusal, name = effect.refusal, effect.name
        if refusal.code is Code.REPLACED:
            return  # the line `link replaced` says more
        self._log_throttled(
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
