"""The socket of a link, and what writes the outbox of the link to it.

A list that must wait for its turn, for room on the disk or for a file descriptor does not
delay other replies. Records are read from the log at the link's position, as many as the
window has room for: there is no queue of them that could grow or be lost.
"""

import socket
import sqlite3
from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from functools import partial
from math import inf
from termios import FIONREAD
from typing import Final

import structlog
import trio

from liveness.core.cursors import ReadPosition
from liveness.core.links.link import Link
from liveness.core.links.outbox import NOTICES_BYTES
from liveness.core.wheel.record_batch import Encoded
from liveness.core.wire.framing import encode, encode_notices
from liveness.core.wire.link_requests import Refusal
from liveness.errors import Code
from liveness.metrics.counts import Counts
from liveness.service.common.clock import Clock
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.notifier import Notifier
from liveness.service.storage import online_list
from liveness.service.storage.log_tail import LogTail, TailReader
from liveness.service.storage.log_writer import LogWriter
from liveness.service.storage.online_list import SpoolFull, Spools

# The pause after a failure to read the disk.
RETRY_S: Final = 1.0
# How long a link that ends may take to read its last frames.
LINGER_S: Final = 1.0
# Bytes read at once: as many as take `PIECE_S` to process, from some hundred logins to some
# two thousand keepalives.
PIECE_BYTES: Final = 4_096
MOST_PIECE_BYTES: Final = 65_536
PIECE_S: Final = 0.002

_log = structlog.get_logger("link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Shared by the writers of all links."""

    log_writer: LogWriter
    feed: LogTail
    clock: Clock
    counts: Counts
    spools: Spools
    # One for all, as a failing disk concerns all links.
    every: LogThrottle = field(
        default_factory=lambda: LogThrottle(REPEAT_LOG_S, clock=trio.current_time)
    )


class _BrokenLink(Exception):
    """The socket can no longer be written to."""


class LinkSocket:
    """A link's connected socket, which is non-blocking, and what writes its outbox there."""

    def __init__(self, sock: socket.socket, link: Link, delivery: Delivery) -> None:
        self.sock = sock
        self.link = link
        self.wake = Notifier()  # notified when there may be something to write
        self.drained = Notifier()  # notified when it was read empty, or the link ended
        self.piece_bytes = PIECE_BYTES
        self._outbox = link.outbox
        self._delivery = delivery
        self._reader: TailReader | None = None
        # A watcher's replies wait while the log is searched for its next records: so two
        # pongs without records between them show that it has all.
        self._is_searching = False
        self._needed_bytes = 0  # of the next list on disk, as far as is known
        # When to try again, after a failure to read the disk.
        self._list_retry_at = self._notices_retry_at = 0.0
        self._linger = trio.CancelScope()  # `end` sets its deadline

    # --- reading --------------------------------------------------------------

    def receive(self, most: int) -> bytes | None:
        """Read at most *most* bytes; None if there are none now, b"" at the end."""
        try:
            return self.sock.recv(most)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def unread(self) -> int:
        """How many bytes have arrived and are unread."""
        count = array("i", [0])
        ioctl(self.sock, FIONREAD, count)
        return count[0]

    def measure(self, took_s: float, *, was_full: bool) -> None:
        """Adapt how much to read at once to how long the last piece took.

        Only a full piece raises it: otherwise the first burst of a quiet link would be read
        whole, and its thousands of requests would delay all others.
        """
        if took_s > PIECE_S:
            self.piece_bytes = max(PIECE_BYTES, self.piece_bytes // 2)
        elif was_full:
            self.piece_bytes = min(MOST_PIECE_BYTES, self.piece_bytes * 2)

    def send_fault(self) -> None:
        """Send a refusal without the outbox, which may have failed, if there is room."""
        message = "a fault of the sidecar, see its log; connect anew"
        n = self.link.conversation.n
        refusal = Refusal(Code.INTERNAL, message, n, fatal=True)
        with suppress(OSError):
            self.sock.send(encode(refusal.as_frame()))

    # --- writing --------------------------------------------------------------

    def deliver(self, reading: ReadPosition) -> None:
        """Write the records after a position, too."""
        delivery = self._delivery
        self._reader = TailReader(delivery.log_writer, delivery.feed, reading)
        delivery.feed.follow(self._reader, self.wake.notify)

    def end(self) -> None:
        """Have `run` write the outbox, and return."""
        # This ends even a write that is stuck: otherwise a peer that does not read would
        # keep its link for ever.
        self._linger.deadline = trio.current_time() + LINGER_S
        self.wake.notify()

    def close(self) -> None:
        if self._reader is not None:
            self._delivery.feed.unfollow(self._reader)
        trio.lowlevel.notify_closing(self.sock)
        self.sock.close()

    async def run(self) -> None:
        """Write replies and records until `end`, or until the link breaks."""
        outbox = self._outbox
        try:
            with self._linger:
                while not outbox.is_ending:
                    wrote = False
                    if not self._is_searching:
                        wrote = await self._write_replies()
                        wrote |= await self._write_list()
                    if not await self._write_notices() and not wrote:
                        await self._wait()
                while outbox.has_replies:
                    wrote = await self._write_replies()
                    if not await self._write_list() and not wrote:
                        await self._wait()
                await self._send(outbox.last_frame)
        except _BrokenLink:
            # Unsent records are in the log. The peer's frames are still read: the link
            # ends with that stream.
            while not outbox.is_ending:
                await self.wake.wait()

    async def _wait(self) -> None:
        if self._outbox.waits_for_disk:
            self._delivery.log_writer.hurry()
            self._delivery.feed.notify_at_commit(self.wake.notify)
        now = trio.current_time()
        later = [at for at in (self._list_retry_at, self._notices_retry_at) if at > now]
        with trio.move_on_at(min(later, default=inf)):
            await self.wake.wait()

    async def _write_replies(self) -> bool:
        """Write replies that may be sent now, or take up a list; return whether any."""
        if data := self._outbox.take_frames():
            await self._send(data)
            self._outbox.frames_sent(len(data))
            return True
        return self._outbox.take_up_list()

    async def _write_list(self) -> bool:
        """Write the next list, if it can be made now; return whether it was.

        No record is written between its snapshot and its end: a client that replaces its
        sessions by the list would lose that record.
        """
        outbox, delivery = self._outbox, self._delivery
        if (
            not outbox.lists
            or trio.current_time() < self._list_retry_at
            or not delivery.spools.may_fill(self.wake)
        ):
            return False
        store, gateway = delivery.log_writer.store, outbox.lists[0].gateway
        fill = partial(online_list.write_frames, store, gateway)
        try:
            spool = await delivery.spools.make(
                fill, limiter=delivery.feed.disk, needed_bytes=self._needed_bytes
            )
        except (sqlite3.Error, OSError, SpoolFull) as error:
            self._put_off_list(error)
            return False
        self._needed_bytes = 0
        with spool:
            outbox.list_begins()
            while not outbox.is_given_up and (piece := await spool.read()):
                await self._send(piece)
            outbox.list_sent()
        return True

    def _put_off_list(self, error: Exception) -> None:
        message = "a list is put off"
        self._delivery.every(_log.warning, message, key=message, error=str(error))
        self._list_retry_at = trio.current_time() + RETRY_S
        limit, what_to_do = "limits.unread_s", "; mend that, and ask again"
        is_hopeless = False
        if isinstance(error, SpoolFull):
            limit, what_to_do = "limits.max_spool_bytes", ""  # the error says it
            self._needed_bytes = error.needed_bytes
            is_hopeless = self._needed_bytes > self._delivery.spools.most_bytes
        why = limit, f"a list cannot be given: {error}{what_to_do}"
        self._outbox.list_put_off(why, is_hopeless=is_hopeless)

    async def _write_notices(self) -> bool:
        """Write a frame of records; return whether any were read from the log."""
        reader, outbox, delivery = self._reader, self._outbox, self._delivery
        self._is_searching = False
        if reader is None or trio.current_time() < self._notices_retry_at:
            return False
        room, position = outbox.room, reader.position
        if room <= 0:
            return False
        wall_ms = delivery.clock.wall_ms()
        try:
            found = await reader.take_encoded(
                room, wall_ms=wall_ms, most_bytes=NOTICES_BYTES, own=outbox.gateway
            )
        except (sqlite3.Error, OSError) as error:
            message = "the log cannot be read; it is tried again"
            delivery.every(_log.warning, message, key=message, error=str(error))
            self._notices_retry_at = trio.current_time() + RETRY_S
            return False
        if found.seqs:
            outbox.records_begin(found.seqs, position)
            frame = encode_notices(len(found.seqs), found.maps)
            # They are in the frame, which may wait long.
            found = found._replace(maps=b"")
            await self._send(frame)
            self._count(found)
        elif outbox.gateway is None:
            self._is_searching = reader.is_behind
        outbox.records_sent(delivery.clock.state_ms())
        if delivery.log_writer.cursors.has_moved:
            delivery.log_writer.cursors_moved()
        return True

    def _count(self, sent: Encoded) -> None:
        self._delivery.counts.notices_sent += len(sent.seqs)
        now = self._delivery.clock.mono()
        for deadline in sent.deadlines:
            self._delivery.counts.lateness["sent"].observe(now - deadline)

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                self._outbox.blocked(True)
                await trio.lowlevel.wait_writable(self.sock)
                # Linux returns here once three quarters of the buffer are read.
                self._outbox.blocked(False)
            except OSError as error:
                self._outbox.broken()
                raise _BrokenLink from error
