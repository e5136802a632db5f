"""Carries out the effects of a scripted sidecar; reads and writes its links."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from socket import SHUT_WR
from socket import socket as Socket
from typing import Any, Final, assert_never

from liveness.core import effects
from liveness.core.changes import Commit
from liveness.core.cursors import Cursors, ReadPosition
from liveness.core.effects import Effect
from liveness.core.links.link import Link
from liveness.core.records import HostReading, Instant
from liveness.core.server import MayRead, Server, ServerParts, Shell
from liveness.core.wire.framing import encode_notices
from liveness.core.wire.link_requests import Refusal
from liveness.testing.scripted_disk import ScriptedDisk

RECEIVE_BYTES: Final = 16_384


@dataclass(slots=True, eq=False)
class ScriptedSocket:
    """A connected socket, and what is to be written to it."""

    sock: Socket
    link: Link
    unsent: bytes = b""
    position: ReadPosition | None = None
    sent: Callable[[], object] = bool  # to be called once `unsent` is written
    watched: int = 0  # the events that the selector waits for
    is_shut: bool = False
    extra: bytes = b""  # frames of the script, before the next of the server
    most_bytes: int | None = None  # of one write; None: as many as the socket takes


class ScriptedShell(Shell):
    """Has the sockets of all links, and the server that was started last."""

    def __init__(
        self,
        host_time: Callable[[], HostReading | None],
        *,
        now: Callable[[], Instant],
    ) -> None:
        self.sockets: dict[int, ScriptedSocket] = {}  # by number of the link
        self.selector = DefaultSelector()
        # Called with "opened" and the socket, "received" or "sent" and the bytes (none: the
        # peer has closed it), and "closed", for the link of this number.
        self.tap: Callable[[str, int, Any], object] = lambda *_: None
        self.is_reading = True
        self.unread_gateways: set[str] = set()  # whose links are not read
        self.refused: list[tuple[str | None, Refusal]] = []
        self._host_time = host_time
        self._now = now

    def start(
        self, server: Server, parts: ServerParts, disk: ScriptedDisk, cursors: Cursors
    ) -> None:
        """Call this server from now on; links of the last one may still be open."""
        super().__init__(server)
        self._parts = parts
        self._disk = disk
        self._cursors = cursors

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        super().__exit__(kind, error, traceback)
        self._write_disk()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Commit():
                self._disk.waiting.append(effect)
            case effects.Deliver():
                self.sockets[effect.link].position = effect.position
            case effects.ReadFirst():
                older = self.sockets[effect.link]
                self.read(older)
                self._server.replace(older.link)
            case effects.LogRefusal():
                self.refused.append((effect.name, effect.refusal))
            case effects.LogLine(fields={"exc_info": BaseException() as fault}):
                raise fault
            case effects.Close():
                self._finish(self.sockets[effect.link])
            case effects.WakeWriter() | effects.SearchSkipped():
                pass  # here nothing sleeps that would have to be woken
            case effects.LogLine() | effects.AskCluster():
                pass  # without the name of a host, the server asks no cluster
            case never:
                assert_never(never)

    def _write_disk(self) -> None:
        self._disk.write(self._cursors, self._parts.scheduler)

    def read(self, socket: ScriptedSocket) -> bool:
        """Read a link until it is empty; return whether there was data, or its end."""
        has_read, link = False, socket.link
        while link.number in self.sockets:
            if link.is_open:
                may_read = self._may_read(link)
                if may_read is MayRead.LATER:
                    self.write(socket)
                    may_read = self._may_read(link)
                if may_read is not MayRead.YES:
                    break
            try:
                data = socket.sock.recv(RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            has_read = True
            self.tap("received", link.number, data)
            if not data:
                self.write(socket)
                self.close(socket)
            elif link.is_open:
                self._received(link, data)
        return has_read

    def _received(self, link: Link, data: bytes) -> None:
        host = self._host_time() if link.hello is None else None
        with self as server:
            server.received(link, data, self._now(), host)
        while self._server.has_resets:
            with self as server:
                server.reset_sessions(self._now())

    def _may_read(self, link: Link) -> MayRead:
        with self as server:
            return server.may_read(link)

    def _finish(self, socket: ScriptedSocket) -> None:
        """Write the rest to a link that has ended, and shut it down."""
        self._write_disk()
        self.write(socket)
        outbox = socket.link.outbox
        if not outbox.is_broken and not socket.unsent:
            with suppress(OSError):
                sent = socket.sock.send(outbox.last_frame)
                self.tap("sent", socket.link.number, outbox.last_frame[:sent])
                socket.unsent = outbox.last_frame[sent:]
        if socket.unsent:
            self.close(socket)  # it may never read the rest
            return
        socket.is_shut = True
        with suppress(OSError):  # the peer may have closed
            # With unread bytes, a close would make the peer's next read fail.
            socket.sock.shutdown(SHUT_WR)

    def opened(self, socket: ScriptedSocket) -> None:
        self.sockets[socket.link.number] = socket
        self.tap("opened", socket.link.number, socket.sock)

    def write_all(self) -> None:
        """Write to all links what may be sent now, as far as their peers read."""
        for socket in [*self.sockets.values()]:
            self.write(socket)
            self._watch(socket)

    def write(self, socket: ScriptedSocket) -> None:
        """Write to a link what may be sent now, as far as its peer reads."""
        link, outbox = socket.link, socket.link.outbox
        while not outbox.is_broken and not socket.is_shut:
            if not socket.unsent:
                socket.sent = bool
                socket.unsent = self._next_bytes(socket)
            if not socket.unsent:
                return
            try:
                sent = socket.sock.send(socket.unsent[: socket.most_bytes])
            except BlockingIOError:
                outbox.blocked(True)
                return
            except OSError:
                # What the peer wrote before is still read.
                outbox.broken()
                socket.unsent = b""
                return
            self.tap("sent", link.number, socket.unsent[:sent])
            socket.unsent = socket.unsent[sent:]
            if not socket.unsent:
                outbox.blocked(False)
                socket.sent()
            if socket.most_bytes is not None:
                return

    def _next_bytes(self, socket: ScriptedSocket) -> bytes:
        outbox = socket.link.outbox
        if socket.extra:
            extra, socket.extra = socket.extra, b""
            return extra
        if frames := outbox.take_frames():
            socket.sent = partial(outbox.frames_sent, len(frames))
            return frames
        if outbox.take_up_list():
            data = self._disk.listed(outbox.lists[0].gateway)
            outbox.list_begins()
            socket.sent = outbox.list_sent
            return data
        if outbox.is_ending or socket.position is None:
            return b""
        before, room = socket.position.seq, outbox.room
        if room <= 0:
            return b""
        at = self._now()
        records, socket.position.seq = self._disk.read(
            before, socket.position.wanted, room, at.wall_ms
        )
        if not records:
            outbox.records_sent(at.state_ms)
            return b""
        outbox.records_begin([seq for seq, _ in records], before)
        socket.sent = partial(outbox.records_sent, at.state_ms)
        encoded = b"".join(encoded for _, encoded in records)
        return encode_notices(len(records), encoded)

    def _watch(self, socket: ScriptedSocket) -> None:
        """Set the events for which the selector waits on a link."""
        link = socket.link
        reads = self.is_read(link) and not (link.is_open and link.outbox.is_full)
        writes = bool(socket.unsent) and socket.most_bytes is None
        wanted = EVENT_READ * reads | EVENT_WRITE * writes
        if wanted != socket.watched and link.number in self.sockets:
            if socket.watched:
                self.selector.unregister(socket.sock)
            if wanted:
                self.selector.register(socket.sock, wanted)
            socket.watched = wanted

    def is_read(self, link: Link) -> bool:
        """Whether the script lets a link be read; one that has ended is read to its end."""
        is_unread = not self.is_reading or link.name in self.unread_gateways
        return not link.is_open or not is_unread

    def close(self, socket: ScriptedSocket) -> None:
        number = socket.link.number
        if self.sockets.pop(number, None) is None:
            return
        self.tap("closed", number, b"")
        if socket.watched:
            self.selector.unregister(socket.sock)
        socket.sock.close()
        if number in self._parts.registry.links:  # not of one before it
            with self as server:
                server.closed(socket.link)

    def close_all(self) -> None:
        for socket in [*self.sockets.values()]:
            self.close(socket)
