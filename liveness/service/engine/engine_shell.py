"""Carries out the server's effects on sockets, log and tasks."""

from collections import deque
from typing import assert_never

from liveness.core import effects
from liveness.core.changes import Commit
from liveness.core.effects import Effect
from liveness.core.server import Server
from liveness.core.server_parts import ServerParts
from liveness.core.shell import Shell
from liveness.service.common.clock import Clock
from liveness.service.common.notifier import Notifier
from liveness.service.engine.link_reader import LinkReader
from liveness.service.engine.operator_log import OperatorLog
from liveness.service.links.link_socket import LinkSocket
from liveness.service.timers.skipped_attempts import SkippedAttempts
from liveness.service.timers.state_writer import StateWriter


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
        self.cluster_questions = deque[
            effects.AskCluster
        ]()  # the server bounds their number
        self._attended = parts.attended
        self._log_writer = log_writer
        self._skipped_attempts = skipped_attempts
        self._operator_log = OperatorLog(clock)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case effects.WakeWriter():
                self.sockets[effect.link].writer.wake.notify()
            case Commit():
                self._log_writer.append(effect)
            case effects.Deliver():
                self.sockets[effect.link].writer.deliver(effect.position)
            case effects.Close():
                socket = self.sockets[effect.link]
                socket.writer.end()
                socket.drained.notify()
            case effects.ReadFirst():
                older = self.sockets[effect.link].link
                self.reader.read_sent(older, self._attended.now)
                self._server.replace(older)
            case effects.WriteAttempt():
                self._log_writer.write_attempt(effect.gateway, effect.key)
            case effects.SearchSkipped():
                self._skipped_attempts.wake.notify()
            case effects.AskCluster():
                self.cluster_questions.append(effect)
                self.cluster_wanted.notify()
            case effects.LogRefusal():
                peer = self.sockets[effect.link].link.peer
                self._operator_log.log_refusal(effect, peer)
            case effects.LogLine():
                self._operator_log.log(effect)
            case never:
                assert_never(never)
