"""Carries out the server's effects on sockets, log and tasks, and reads the sockets.

Links are read without waiting, within a time budget per turn of the engine: piece by
piece, and the server applies each piece before the next is read. While many records wait
for the disk, a turn reads about one small piece of each link. A link that sends less is
still read empty, so that its due users can go offline.
"""

from collections import deque
from typing import Final, assert_never

import structlog

from liveness.core import effects
from liveness.core.changes import Commit
from liveness.core.effects import Effect, LogLine, LogRefusal
from liveness.core.links.link import Link
from liveness.core.server import MayRead, Server, ServerParts, Shell
from liveness.errors import Code
from liveness.service.common.clock import Clock
from liveness.service.common.logs import LogThrottle
from liveness.service.common.notifier import Notifier
from liveness.service.links.link_socket import PIECE_BYTES, LinkSocket
from liveness.service.timers.state_writer import StateWriter
from liveness.service.timers.timer_loop import SkippedAttempts

# Lines with one key, and refusals of one name, code and user, are logged this often.
REFUSALS_LOG_S: Final = 10.0
# A turn reads gateways for no longer than this; links it did not reach come first in the
# next turn. So a flooding gateway delays the others by this and one receive at most.
READING_S: Final = 0.002
# The time for watchers and links before their hello: half as much.
OTHERS_S: Final = 0.001


class EngineShell(Shell):
    """Owns the links' sockets, and the questions to the cluster."""

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
        self.cluster_wanted = Notifier()  # there are `cluster_questions`
        # The server bounds their number.
        self.cluster_questions = deque[effects.AskCluster]()
        self._attended = parts.attended
        self._registry, self._pressure = parts.registry, parts.pressure
        self._clock = clock
        self._ready: dict[int, Link] = {}
        # Links that had data in the last turn: the next one reads them again,
        # without waiting for their sockets to become readable.
        self._recently_active: dict[int, Link] = {}
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
                self.read_sent(older, self._attended.now)
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

    # --- reading ---------------------------------------------------------------

    def add(self, link: Link) -> None:
        self._ready[link.number] = link

    def discard(self, link: Link) -> None:
        self._ready.pop(link.number, None)
        self._recently_active.pop(link.number, None)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def expects_more(self) -> bool:
        """Whether the next turn should come soon, since links will have more to read."""
        return bool(self._recently_active) or (
            bool(self._ready) and self._pressure.reads_small_pieces
        )

    def read_ready(self, now: float) -> bool:
        """Read the links that are ready, and those that the server wants to be read.

        Returns:
            Whether to read on in another turn at once.
        """
        links = self._ready | self._recently_active
        with self as server:
            links |= {link.number: link for link in server.links_to_read()}
        self._ready, self._recently_active = {}, {}
        # The link whose last data is oldest comes first, so that one that floods cannot
        # use up the time of a gateway whose users are due.
        in_order = sorted(links.values(), key=lambda link: link.read_at)
        # Other links have a budget of their own: no due user waits for them.
        for is_gateway, budget_s in ((True, READING_S), (False, OTHERS_S)):
            until = self._clock.mono() + budget_s
            for link in in_order:
                if (link.gateway is not None) is not is_gateway or not link.is_open:
                    continue
                if not self.read(link, now, until=until):
                    self._ready[link.number] = link
        can_continue = any(link.can_read_on for link in self._ready.values())
        return can_continue and not self._pressure.reads_small_pieces

    def read_all(self, now: float) -> bool:
        """Read every link within one budget; return whether all were read empty."""
        until = self._clock.mono() + READING_S
        is_empty = [
            self.read(link, now, until=until)
            for link in [*self._registry.links.values()]
        ]
        return all(is_empty)

    def read_sent(self, link: Link, now: float, *, most: int | None = None) -> None:
        """Read what a link has sent up to now, and not what it goes on to send.

        If *most* is given, it stops soon after that many bytes.
        """
        unread = self.sockets[link.number].unread()
        must_read = unread if most is None else min(unread, most)
        self.read(link, now, must_read_bytes=must_read)

    def note_unread(self) -> None:
        """Note for each link how much it has sent that must be read."""
        for socket in self.sockets.values():
            socket.link.must_read_bytes = socket.unread()

    def read(
        self, link: Link, now: float, *, until: float = 0.0, must_read_bytes: int = 0
    ) -> bool:
        """Read one link; return whether it was read empty or ended.

        The budget ends at *until*, in monotonic seconds; *must_read_bytes* are read
        whatever the budget and the disk.
        """
        pressure, clock = self._pressure, self._clock
        socket = self.sockets[link.number]
        taken = 0
        mono = clock.mono()
        while taken < must_read_bytes or (
            mono < until and not (taken >= PIECE_BYTES and pressure.reads_small_pieces)
        ):
            with self as server:
                may_read = server.may_read(link, must=taken < must_read_bytes)
                if may_read is not MayRead.YES:
                    return may_read is MayRead.NO
                most = (
                    PIECE_BYTES if pressure.reads_small_pieces else socket.piece_bytes
                )
                data = socket.receive(most)
                if data is None:
                    server.read_empty(link, now)
                    if taken:
                        self._recently_active[link.number] = link
                    else:
                        socket.drained.notify()
                    return True
                taken += len(data)
                mono = clock.mono()
                at = clock.instant(self._attended.at(mono), mono)
                host = clock.host() if link.hello is None and data else None
                server.received(link, data, at, host)
            if not data:
                return True
            socket.measure(clock.mono() - mono, was_full=len(data) == most)
        return False
