"""Sends replies and records on one link.

Replies are sent in the order of the frames that they answer, each once all that it
describes is durable. A list that must wait for its turn, for room on the disk or for a
file descriptor does not delay other replies. Records are read from the log by the link's
cursor, as many as the window has room for: there is no queue of them that could grow or
be lost.
"""

import socket
import sqlite3
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final, NamedTuple

import structlog
import trio

from liveness.core.framing import encode, encode_notices
from liveness.core.records import GATEWAY, Hello, Record
from liveness.metrics import Counts
from liveness.service.common.clock import Clock
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.notifier import Notifier
from liveness.service.links.unread_replies import SpoolFull, TooLarge, Unread
from liveness.service.storage.log_tail import Cursor, LogTail, TailEntry
from liveness.service.storage.log_writer import LogWriter

NOTICES_PER_FRAME: Final = 1_000
# A frame ends at about this many bytes: it is in memory until it is read, and a timer may
# have 4 KB.
NOTICES_BYTES: Final = 2**17
# Replies are joined up to this size, as they are then in memory twice.
JOINED_BYTES: Final = 65_536
# The pause after a failure to read the disk.
RETRY_S: Final = 1.0
# How long a link that ends may take to read its last frames.
LINGER_S: Final = 1.0

_log = structlog.get_logger("link")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxLimits:
    """How much one link may leave unread."""

    window: int
    max_replies: int
    max_reply_bytes: int
    unread_s: float
    gateway_unread_s: float  # at least gateway_hold_s, for which its users are held


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What all outboxes share."""

    log_writer: LogWriter
    feed: LogTail
    clock: Clock
    counts: Counts
    limits: OutboxLimits
    unread: Unread
    # One for all, as a failing disk concerns all links.
    every: LogThrottle = field(
        default_factory=lambda: LogThrottle(REPEAT_LOG_S, clock=trio.current_time)
    )


class _BrokenLink(Exception):
    """The socket can no longer be written to."""


@dataclass(slots=True)
class _Reply:
    ticket: int
    frame: bytes
    is_log_only: bool  # it depends on the log alone, not on the timers' table


@dataclass(slots=True)
class _ListReply:
    ticket: int
    gateway: str | None
    needed_bytes: int = 0  # on disk, as far as is known


class LimitMet(NamedTuple):
    """A limit that a link exceeds."""

    limit: str
    why: str


class Outbox:
    """The writing half of a link, on a non-blocking socket that it does not close."""

    def __init__(self, sock: socket.socket, delivery: Delivery) -> None:
        self.wake = Notifier()
        self._sock = sock
        self._delivery = delivery
        self._hello: Hello | None = None
        self._cursor: Cursor | None = None
        self._replies: deque[_Reply | _ListReply] = deque()
        self._lists: deque[_ListReply] = deque()  # to be made and sent next
        self._reply_bytes = 0
        self._sending = 0  # replies that are being written; they count as waiting
        self._spooled = 0  # bytes on disk of the list that is being sent
        self._stalled_s = 0.0  # how long replies have waited for the socket
        self._list_limit: LimitMet | None = None  # why the next list waits
        self._list_waited_s = 0.0
        # When to try again, after a failure to read the disk.
        self._list_retry_at = self._notices_retry_at = 0.0
        self._welcome_ticket = 0  # no record is sent before `welcome`
        self._unacked: deque[int] = deque()
        self._position_before: int | None = None  # while a frame of records is written
        self._last_frame = b""
        self._is_ending = False
        self._is_given_up = False  # replies are dropped
        self._is_broken = False  # the socket can no longer be written to
        self._is_blocked = False  # the socket's buffer is full
        self._linger = trio.CancelScope()  # `end` sets its deadline

    @property
    def unacked(self) -> int:
        """How many records were sent and not acknowledged."""
        return len(self._unacked)

    @property
    def position(self) -> int | None:
        """The seq up to which records were written; None before the welcome."""
        if self._cursor is None or self._position_before is not None:
            return self._position_before
        return self._cursor.position

    # --- bounds on what is unread ---------------------------------------------

    @property
    def is_unread(self) -> bool:
        """Whether the peer reads nothing now, and too many replies are unread."""
        return self._is_blocked and self._has_most

    @property
    def is_full(self) -> bool:
        """Whether too many replies wait, for the disk or for the peer."""
        unread = self._delivery.unread
        return self._has_most or (
            self._reply_bytes > 0 and unread.memory > unread.most_bytes
        )

    @property
    def _has_most(self) -> bool:
        limits = self._delivery.limits
        return (
            self._waiting > limits.max_replies
            or self._reply_bytes > limits.max_reply_bytes
        )

    @property
    def _waiting(self) -> int:
        """How many replies are queued or being written."""
        return len(self._replies) + len(self._lists) + self._sending

    @property
    def excess(self) -> LimitMet:
        """The limit that is exceeded if `is_unread`."""
        limits = self._delivery.limits
        is_many = self._waiting > limits.max_replies
        return LimitMet(
            "limits.max_replies" if is_many else "limits.max_reply_bytes",
            f"more than {limits.max_replies} replies (limits.max_replies), or "
            f"{limits.max_reply_bytes} bytes of them (limits.max_reply_bytes), are left "
            "unread; read while you write",
        )

    def add_waiting(self, elapsed: float) -> LimitMet | None:
        """Count time for which replies waited; return the limit that it exceeds, if any.

        Only replies count: unread records wait in the log.
        """
        limits, hello = self._delivery.limits, self._hello
        is_gateway = hello is not None and hello.role == GATEWAY
        most_s = limits.gateway_unread_s if is_gateway else limits.unread_s
        # While the log cannot be written, everything waits, and no link ends for that.
        if self._list_limit is not None and self._delivery.log_writer.failure is None:
            self._list_waited_s += elapsed
            if self._list_waited_s > most_s:
                return self._list_limit
        if not (self._is_blocked and self._waiting):
            self._stalled_s = 0.0
            return None
        self._stalled_s += elapsed
        if self._stalled_s <= most_s:
            return None
        return LimitMet(
            "limits.unread_s",
            f"nothing of an answer was read for {most_s:g} s (limits.unread_s); read "
            "while you write",
        )

    @property
    def burden(self) -> float:
        """Unread bytes in memory, weighted by how long they wait; 0 if the peer reads."""
        if not self._is_blocked:
            return 0.0
        return self._reply_bytes * (1 + self._stalled_s)

    @property
    def stalled_burden(self) -> float:
        """`burden`; 0 if the socket has taken bytes since the last `add_waiting`."""
        return self.burden if self._stalled_s else 0.0

    @property
    def stalled_spool(self) -> float:
        """As `stalled_burden`, for bytes on disk."""
        return self._spooled * self._stalled_s

    # --- queueing -------------------------------------------------------------

    def reply(
        self, frame: object, *, ticket: int = 0, is_log_only: bool = False
    ) -> None:
        """Queue a frame, to be sent once everything up to *ticket* is durable.

        Args:
            frame: The frame.
            ticket: `LogWriter.ticket` at the time that the frame describes.
            is_log_only: The frame does not depend on timers: do not wait for their table.
        """
        if self._is_broken:
            return
        encoded = encode(frame)
        self._count_bytes(len(encoded))
        self._replies.append(_Reply(ticket, encoded, is_log_only))
        self.wake.notify()

    def reply_list(self, gateway: str | None, *, ticket: int) -> None:
        """Queue the answer to `list`: the sessions of *gateway*; None: all sessions."""
        if self._is_broken:
            return
        self._replies.append(_ListReply(ticket, gateway))
        self.wake.notify()

    def welcome(
        self, frame: object, *, hello: Hello, cursor: Cursor, ticket: int
    ) -> None:
        """Queue `welcome`; the records behind *cursor* follow it."""
        self.reply(frame, ticket=ticket, is_log_only=True)
        self._hello, self._cursor, self._welcome_ticket = hello, cursor, ticket
        self._delivery.feed.follow(cursor, self.wake.notify)

    def acknowledge(self, seq: int) -> None:
        """Count records up to *seq* as acknowledged, and move the stored cursor."""
        while self._unacked and self._unacked[0] <= seq:
            self._unacked.popleft()
            self._delivery.counts.notices_acked += 1
        self._store_cursor(seq)
        if self._cursor is not None and self._cursor.is_behind:
            self.wake.notify()  # the window has room again

    def follow(self) -> None:
        """If all records are acknowledged, move the stored cursor to the position."""
        if self._cursor is not None and not self._unacked:
            self._store_cursor(self._cursor.position)

    def drop_replies(self) -> None:
        """Drop the queued replies; complete the frame that is being written."""
        self._replies.clear()
        self._lists.clear()
        self._count_bytes(-self._reply_bytes)
        self._is_given_up = True

    def end(self, frame: object | None = None) -> None:
        """Have `run` write what is queued, then *frame*, and return."""
        if self.is_unread or self._delivery.log_writer.failure is not None:
            # If the peer does not read, or the disk fails, send only why the link ends.
            # The client repeats what no pong has confirmed.
            self.drop_replies()
        if frame is not None:
            self._last_frame = encode(frame)
        self._is_ending = True
        # This ends even a write that is stuck: otherwise a peer that does not read would
        # keep its link for ever.
        self._linger.deadline = trio.current_time() + LINGER_S
        self.wake.notify()

    def close(self) -> None:
        """Stop following the log, and drop the queued replies."""
        self.drop_replies()
        if self._cursor is not None:
            self._delivery.feed.unfollow(self._cursor)

    def _count_bytes(self, more: int) -> None:
        self._reply_bytes += more
        self._delivery.unread.memory += more

    def _store_cursor(self, seq: int) -> None:
        hello = self._hello
        assert hello is not None
        if hello.role == GATEWAY or hello.ack:
            if not self._unacked and self._cursor is not None:
                seq = max(seq, self._cursor.position)
            self._delivery.log_writer.move_cursor(hello.role, hello.name, seq)

    # --- writing --------------------------------------------------------------

    async def run(self) -> None:
        """Write replies and records until `end`, or until the link breaks."""
        try:
            with self._linger:
                while not self._is_ending:
                    wrote = await self._write_replies()
                    wrote |= await self._write_list()
                    if not await self._write_notices() and not wrote:
                        await self._wait()
                while self._replies or self._lists:
                    wrote = await self._write_replies()
                    if not await self._write_list() and not wrote:
                        await self._wait()
                await self._send(self._last_frame)
        except _BrokenLink:
            # Unsent records are in the log. What the peer sent is still read: the link
            # ends with the end of that stream.
            while not self._is_ending:
                await self.wake.wait()

    async def _wait(self) -> None:
        has_replies = self._replies or self._lists
        if has_replies or self._welcome_ticket > self._delivery.log_writer.log_ticket:
            self._delivery.feed.notify_at_commit(self.wake.notify)
        now = trio.current_time()
        later = [at for at in (self._list_retry_at, self._notices_retry_at) if at > now]
        with trio.move_on_at(min(later, default=inf)):
            await self.wake.wait()

    def _may_send(self, reply: _Reply | _ListReply) -> bool:
        log_writer = self._delivery.log_writer
        is_log_only = isinstance(reply, _Reply) and reply.is_log_only
        durable = log_writer.log_ticket
        hello = self._hello
        if not is_log_only and hello is not None and hello.role == GATEWAY:
            # A gateway waits only for its own timer commands; a watcher has none.
            oldest = log_writer.timers.oldest_ticket_of(hello.name)
            durable = durable if oldest is None else min(durable, oldest - 1)
        return reply.ticket <= durable

    def _next_frames(self) -> list[bytes]:
        """Take the frames that may be sent now, up to the next list."""
        frames, size = list[bytes](), 0
        while self._replies and size < JOINED_BYTES:
            reply = self._replies[0]
            if isinstance(reply, _ListReply) or not self._may_send(reply):
                break
            self._replies.popleft()
            frames.append(reply.frame)
            size += len(reply.frame)
        return frames

    async def _write_replies(self) -> bool:
        """Write replies that may be sent now, or take up a list; return whether any."""
        if frames := self._next_frames():
            data = b"".join(frames)
            self._sending = len(frames)
            frames.clear()  # so that they are in memory only once
            await self._send(data)
            self._sending = 0
            self._count_bytes(-min(len(data), self._reply_bytes))
            return True
        if self._replies and self._may_send(reply := self._replies[0]):
            assert isinstance(reply, _ListReply)
            self._replies.popleft()
            self._lists.append(reply)
            return True
        return False

    async def _write_list(self) -> bool:
        """Write the next list, if it can be made now; return whether it was.

        No record is written between its snapshot and its end: a client that replaces its
        sessions by the list would lose that record.
        """
        delivery = self._delivery
        if (
            not self._lists
            or trio.current_time() < self._list_retry_at
            or not delivery.unread.spools.may_fill(self.wake)
        ):
            return False
        reply = self._lists[0]
        fill = partial(delivery.log_writer.store.spool_online, reply.gateway)
        try:
            spool = await delivery.unread.spools.make(
                fill, limiter=delivery.feed.disk, needed_bytes=reply.needed_bytes
            )
        except (sqlite3.Error, OSError, SpoolFull, TooLarge) as error:
            message = "a list is put off"
            delivery.every(_log.warning, message, key=message, error=str(error))
            self._list_retry_at = trio.current_time() + RETRY_S
            limit, what_to_do = "limits.max_spool_bytes", ""  # the error says it
            if isinstance(error, SpoolFull):
                reply.needed_bytes = error.needed_bytes
            elif isinstance(error, TooLarge):
                self._list_waited_s = inf
            else:
                limit, what_to_do = "limits.unread_s", "; mend that, and ask again"
            why = f"a list cannot be given: {error}{what_to_do}"
            self._list_limit = LimitMet(limit, why)
            return False
        self._list_limit, self._list_waited_s = None, 0.0
        with spool:
            if self._lists:  # `drop_replies` may have dropped it meanwhile
                self._lists.popleft()
            self._sending, self._spooled = 1, spool.size
            while not self._is_given_up and (piece := await spool.read()):
                await self._send(piece)
            self._sending = self._spooled = 0
        return True

    async def _write_notices(self) -> bool:
        """Write a frame of records; return whether any were read from the log."""
        cursor, hello = self._cursor, self._hello
        delivery = self._delivery
        if cursor is None or hello is None:
            return False
        if self._welcome_ticket > delivery.log_writer.log_ticket:
            return False
        room = delivery.limits.window - len(self._unacked)
        position = cursor.position
        if (
            room <= 0
            or not cursor.is_behind
            or trio.current_time() < self._notices_retry_at
        ):
            return False
        try:
            entries = await cursor.take(
                min(room, NOTICES_PER_FRAME),
                wall_ms=delivery.clock.wall_ms(),
                most_bytes=NOTICES_BYTES,
            )
        except (sqlite3.Error, OSError) as error:
            message = "the log cannot be read; it is tried again"
            delivery.every(_log.warning, message, key=message, error=str(error))
            self._notices_retry_at = trio.current_time() + RETRY_S
            return False
        if entries:
            if hello.ack:
                self._unacked.extend(entry.record.seq for entry in entries)
            frame = encode_notices([entry.encoded for entry in entries])
            count, deadlines = len(entries), _deadlines(entries, hello)
            # They take several times the memory of the frame, which may wait for long.
            del entries
            self._position_before = position
            await self._send(frame)
            self._position_before = None
            self._count(count, deadlines)
        if not self._unacked:
            self._store_cursor(cursor.position)
        return True

    def _count(self, notices: int, deadlines: list[float]) -> None:
        self._delivery.counts.notices_sent += notices
        now = self._delivery.clock.mono()
        for deadline in deadlines:
            self._delivery.counts.lateness["sent"].observe(now - deadline)

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                self._is_blocked = True
                await trio.lowlevel.wait_writable(self._sock)
                # Linux returns here once three quarters of the buffer are read.
                self._is_blocked, self._stalled_s = False, 0.0
            except OSError as error:
                # Too many waiting replies would keep the stream's end from being read.
                self._is_broken = True
                self._sending = self._spooled = 0
                self.drop_replies()
                raise _BrokenLink from error


def _deadlines(entries: list[TailEntry], hello: Hello) -> list[float]:
    """The deadlines of records that were sent to their own gateway."""
    return [
        entry.due
        for entry in entries
        # A gap has no deadline, and a watcher may read a gateway's records too.
        if entry.due
        and hello.role == GATEWAY
        and isinstance(entry.record, Record)
        and entry.record.gateway == hello.name
    ]
