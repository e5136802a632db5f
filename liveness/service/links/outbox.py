"""What is to be told on one link, and the writing of it.

Replies go in the order of the frames they answer, each once everything it covers is
on disk. A list that cannot be put together yet, for want of a turn, of room on the disk or
of a descriptor, is put off, and holds up no other reply. Records come straight from the
log by the link's cursor, as many as the window leaves room for; there is no queue of them
to grow or to lose.
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
from liveness.service.common.logs import SAY_AGAIN_S, Every
from liveness.service.common.notifier import Notifier
from liveness.service.links.unread_replies import SpoolFull, TooLarge, Unread
from liveness.service.storage.log_tail import Cursor, LogTail, TailEntry
from liveness.service.storage.log_writer import LogWriter

NOTICES_PER_FRAME: Final = 1_000
# Nor many more bytes: a frame is in memory until it is read, and timers may carry 4 KB each.
NOTICES_BYTES: Final = 2**17
# Replies are joined up to this size: more would be in memory twice while they are sent.
JOINED_BYTES: Final = 65_536
# What could not be read from the disk is tried again after this long.
RETRY_S: Final = 1.0
# A link that ends is given this long to read its last frames.
LINGER_S: Final = 1.0

_log = structlog.get_logger("link")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxLimits:
    """How much one link may leave unread."""

    window: int
    max_replies: int
    max_reply_bytes: int
    unread_s: float
    gateway_unread_s: float  # no user is given up before gateway_hold_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What all outboxes share; made once."""

    log_writer: LogWriter
    feed: LogTail
    clock: Clock
    counts: Counts
    limits: OutboxLimits
    unread: Unread
    # What troubles one reader of the disk troubles all.
    every: Every = field(
        default_factory=lambda: Every(SAY_AGAIN_S, clock=trio.current_time)
    )


class _Unreadable(Exception):
    """The other side takes nothing any more."""


@dataclass(slots=True)
class _Reply:
    ticket: int
    frame: bytes
    is_of_log: bool  # it says nothing of timers, and waits for the log alone


@dataclass(slots=True)
class _List:
    ticket: int
    gateway: str | None
    least: int = 0  # bytes that it takes on disk, as far as that is known


class Excess(NamedTuple):
    """Which bound the unread answers of a link have met."""

    limit: str
    why: str


class Outbox:
    """The writing half of a link.

    Args:
        sock: Non-blocking; not owned.
        delivery: What all outboxes share.
    """

    def __init__(self, sock: socket.socket, delivery: Delivery) -> None:
        self.wake = Notifier()
        self._sock = sock
        self._delivery = delivery
        self._replies: deque[_Reply | _List] = deque()
        self._lists: deque[_List] = deque()  # whose turn among the replies has come
        self._reply_bytes = 0
        self._sending = 0  # replies of the write under way; they count until it is done
        self._spooled = 0  # bytes on disk of the list that is being written
        self._stalled_s = 0.0  # for so long answers wait, and the socket took nothing
        self._no_list: Excess | None = None  # why the next list is put off
        self._put_off_s = 0.0  # for how long by now
        self._list_at = self._notices_at = 0.0  # not before; the disk was in trouble
        self._hello: Hello | None = None
        self._cursor: Cursor | None = None
        self._notices_from = 0  # the ticket of `welcome`, before which nothing is told
        self._unacked: deque[int] = deque()
        self._written_until: int | None = None  # before the frame that is being written
        self._farewell = b""
        self._is_ending = False
        self._is_given_up = False  # its answers are dropped
        self._is_broken = False  # nothing that is written arrives any more
        self._is_blocked = False  # the socket takes no more of what is being written
        self._patience = trio.CancelScope()  # with the last frames; `end` sets it

    @property
    def unacked(self) -> int:
        """Records sent and not acknowledged."""
        return len(self._unacked)

    @property
    def position(self) -> int | None:
        """Up to which seq records were written; None before the welcome."""
        if self._cursor is None or self._written_until is not None:
            return self._written_until
        return self._cursor.position

    @property
    def is_unread(self) -> bool:
        """Whether the other side leaves more replies unread than it may."""
        return self._is_blocked and self._has_most

    @property
    def is_full(self) -> bool:
        """Whether more replies wait than may, be it for the disk or for the reader."""
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
        """Replies that wait, with those of the write under way."""
        return len(self._replies) + len(self._lists) + self._sending

    @property
    def excess(self) -> Excess:
        """The bound that the replies of a link that `is_unread` have met."""
        limits = self._delivery.limits
        is_many = self._waiting > limits.max_replies
        return Excess(
            "limits.max_replies" if is_many else "limits.max_reply_bytes",
            f"more than {limits.max_replies} replies (limits.max_replies), or "
            f"{limits.max_reply_bytes} bytes of them (limits.max_reply_bytes), are left "
            "unread; read while you write",
        )

    def age(self, elapsed: float) -> Excess | None:
        """Note that time has passed; return the bound that was met by that, if any.

        Only answers count. Records that are not read wait in the log.
        """
        limits, hello = self._delivery.limits, self._hello
        is_gateway = hello is not None and hello.role == GATEWAY
        most = limits.gateway_unread_s if is_gateway else limits.unread_s
        # While the log cannot be written everything waits, and no link ends for it.
        if self._no_list is not None and self._delivery.log_writer.failure is None:
            self._put_off_s += elapsed
            if self._put_off_s > most:
                return self._no_list
        if not (self._is_blocked and self._waiting):
            self._stalled_s = 0.0
            return None
        self._stalled_s += elapsed
        if self._stalled_s <= most:
            return None
        return Excess(
            "limits.unread_s",
            f"nothing of an answer was read for {most:g} s (limits.unread_s); read while "
            "you write",
        )

    @property
    def burden(self) -> float:
        """How much it leaves unread in memory, for how long; 0: it reads."""
        if not self._is_blocked:
            return 0.0
        return self._reply_bytes * (1 + self._stalled_s)

    @property
    def stalled_burden(self) -> float:
        """The same, but only if it took nothing of late."""
        return self.burden if self._stalled_s else 0.0

    @property
    def stalled_spool(self) -> float:
        """How much of it lies on disk, for how long, and it took nothing of late."""
        return self._spooled * self._stalled_s

    def reply(self, frame: object, *, ticket: int = 0, is_of_log: bool = False) -> None:
        """Queue a frame, to be sent once everything up to *ticket* is on disk.

        Args:
            frame: The frame.
            ticket: As `LogWriter.ticket` was when all it tells of had been given.
            is_of_log: It does not tell of timers, whose table may be in trouble.
        """
        if self._is_broken:
            return
        encoded = encode(frame)
        self._hold(len(encoded))
        self._replies.append(_Reply(ticket, encoded, is_of_log))
        self.wake.notify()

    def reply_list(self, gateway: str | None, *, ticket: int) -> None:
        """Queue the answer to `list`: the sessions of *gateway*, or everyone's."""
        if self._is_broken:
            return
        self._replies.append(_List(ticket, gateway))
        self.wake.notify()

    def welcome(
        self, frame: object, *, hello: Hello, cursor: Cursor, ticket: int
    ) -> None:
        """Queue `welcome`; records follow it, from where *cursor* is."""
        self.reply(frame, ticket=ticket, is_of_log=True)
        self._hello, self._cursor, self._notices_from = hello, cursor, ticket
        self._delivery.feed.follow(cursor, self.wake.notify)

    def acknowledge(self, seq: int) -> None:
        """Note that everything up to *seq* is processed; move the stored cursor."""
        while self._unacked and self._unacked[0] <= seq:
            self._unacked.popleft()
            self._delivery.counts.notices_acked += 1
        self._store_cursor(seq)
        if self._cursor is not None and self._cursor.is_behind:
            self.wake.notify()  # the window has room again

    def give_up(self) -> None:
        """Drop the answers: of what is being written only the frame is finished."""
        self._replies.clear()
        self._lists.clear()
        self._hold(-self._reply_bytes)
        self._is_given_up = True

    def end(self, frame: object | None = None) -> None:
        """Let `run` write what is queued, then *frame*, and return."""
        if self.is_unread or self._delivery.log_writer.failure is not None:
            # Whoever does not read, or waits for a disk that does not write, is told
            # only why this is the end. What no pong covered is sent again.
            self.give_up()
        if frame is not None:
            self._farewell = encode(frame)
        self._is_ending = True
        # Also for a write that is stuck already: whoever does not read would keep the
        # socket, and a place among the links, for ever.
        self._patience.deadline = trio.current_time() + LINGER_S
        self.wake.notify()

    async def run(self) -> None:
        """Write whatever there is to tell until `end`, or until the link breaks."""
        try:
            with self._patience:
                while not self._is_ending:
                    wrote = await self._write_replies()
                    wrote |= await self._write_list()
                    if not await self._write_notices() and not wrote:
                        await self._wait()
                while self._replies or self._lists:
                    wrote = await self._write_replies()
                    if not await self._write_list() and not wrote:
                        await self._wait()
                await self._send(self._farewell)
        except _Unreadable:
            # Nobody reads there any more; what that one lacks is in the log. What it
            # had written is still taken, until the end of its stream ends the link.
            while not self._is_ending:
                await self.wake.wait()

    def close(self) -> None:
        """Let go of the log, and of what was not sent."""
        self.give_up()
        if self._cursor is not None:
            self._delivery.feed.unfollow(self._cursor)

    def follow(self) -> None:
        """With nothing outstanding, have the stored cursor follow the log."""
        if self._cursor is not None and not self._unacked:
            self._store_cursor(self._cursor.position)

    # --- within ---------------------------------------------------------------

    def _hold(self, more: int) -> None:
        self._reply_bytes += more
        self._delivery.unread.memory += more

    async def _wait(self) -> None:
        waits = self._replies or self._lists
        if waits or self._notices_from > self._delivery.log_writer.log_ticket:
            self._delivery.feed.notify_at_commit(self.wake.notify)
        now = trio.current_time()
        later = [at for at in (self._list_at, self._notices_at) if at > now]
        with trio.move_on_at(min(later, default=inf)):
            await self.wake.wait()

    def _may_send(self, reply: _Reply | _List) -> bool:
        log_writer = self._delivery.log_writer
        is_of_log = isinstance(reply, _Reply) and reply.is_of_log
        reached = log_writer.log_ticket
        hello = self._hello
        if not is_of_log and hello is not None and hello.role == GATEWAY:
            # Of timers only its own concern it; a watcher asks nothing of any.
            oldest = log_writer.timers.oldest_of(hello.name)
            reached = reached if oldest is None else min(reached, oldest - 1)
        return reply.ticket <= reached

    def _next_frames(self) -> list[bytes]:
        """Take out the first frames that may be sent by now, up to the next list."""
        frames, size = list[bytes](), 0
        while self._replies and size < JOINED_BYTES:
            reply = self._replies[0]
            if isinstance(reply, _List) or not self._may_send(reply):
                break
            self._replies.popleft()
            frames.append(reply.frame)
            size += len(reply.frame)
        return frames

    async def _write_replies(self) -> bool:
        """Write replies that may be sent by now; return whether there were any."""
        if frames := self._next_frames():
            data = b"".join(frames)
            self._sending = len(frames)
            frames.clear()  # or they would be in memory twice
            await self._send(data)
            self._sending = 0
            self._hold(-min(len(data), self._reply_bytes))
            return True
        if self._replies and self._may_send(reply := self._replies[0]):
            assert isinstance(reply, _List)
            self._replies.popleft()
            self._lists.append(reply)
            return True
        return False

    async def _write_list(self) -> bool:
        """Write the next list, if it can be put together now; return whether it was.

        No record is written from its snapshot to its end: whoever replaces what it knows
        by the list loses none that was told before.
        """
        delivery = self._delivery
        if (
            not self._lists
            or trio.current_time() < self._list_at
            or not delivery.unread.spools.may_fill(self.wake)
        ):
            return False
        wanted = self._lists[0]
        fill = partial(delivery.log_writer.store.spool_online, wanted.gateway)
        try:
            spool = await delivery.unread.spools.make(
                fill, limiter=delivery.feed.disk, least=wanted.least
            )
        except (sqlite3.Error, OSError, SpoolFull, TooLarge) as error:
            say = "a list is put off"
            delivery.every(_log.warning, say, key=say, error=str(error))
            self._list_at = trio.current_time() + RETRY_S
            limit, what_to_do = "limits.max_spool_bytes", ""  # those errors name it
            if isinstance(error, SpoolFull):
                wanted.least = error.least
            elif isinstance(error, TooLarge):
                self._put_off_s = inf
            else:
                limit, what_to_do = "limits.unread_s", "; mend that, and ask again"
            told = f"a list cannot be given: {error}{what_to_do}"
            self._no_list = Excess(limit, told)
            return False
        self._no_list, self._put_off_s = None, 0.0
        with spool:
            if self._lists:  # they may be dropped meanwhile
                self._lists.popleft()
            self._sending, self._spooled = 1, spool.size
            while not self._is_given_up and (piece := await spool.read()):
                await self._send(piece)
            self._sending = self._spooled = 0
        return True

    async def _write_notices(self) -> bool:
        """Write a frame of records, if there are any and the window has room."""
        cursor, hello = self._cursor, self._hello
        delivery = self._delivery
        if cursor is None or hello is None:
            return False
        if self._notices_from > delivery.log_writer.log_ticket:
            return False
        room = delivery.limits.window - len(self._unacked)
        position = cursor.position
        if room <= 0 or not cursor.is_behind or trio.current_time() < self._notices_at:
            return False
        try:
            entries = await cursor.take(
                min(room, NOTICES_PER_FRAME),
                wall_ms=delivery.clock.wall_ms(),
                most_bytes=NOTICES_BYTES,
            )
        except (sqlite3.Error, OSError) as error:
            say = "the log cannot be read; it is tried again"
            delivery.every(_log.warning, say, key=say, error=str(error))
            self._notices_at = trio.current_time() + RETRY_S
            return False
        if entries:
            if hello.ack:
                self._unacked.extend(entry.record.seq for entry in entries)
            frame = encode_notices([entry.encoded for entry in entries])
            count, due = len(entries), _due(entries, hello)
            # They take some times as much as the frame, which may wait for its reader.
            del entries
            self._written_until = position
            await self._send(frame)
            self._written_until = None
            self._count(count, due)
        if not self._unacked:
            self._store_cursor(cursor.position)
        return True

    def _count(self, notices: int, due: list[float]) -> None:
        self._delivery.counts.notices_sent += notices
        now = self._delivery.clock.mono()
        for moment in due:
            self._delivery.counts.lateness["sent"].observe(now - moment)

    def _store_cursor(self, seq: int) -> None:
        hello = self._hello
        assert hello is not None
        if hello.role == GATEWAY or hello.ack:
            cursor = self._cursor
            if not self._unacked and cursor is not None:
                # With nothing outstanding the cursor follows the log.
                seq = max(seq, cursor.position)
            self._delivery.log_writer.move_cursor(hello.role, hello.name, seq)

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                self._is_blocked = True
                await trio.lowlevel.wait_writable(self._sock)
                # Linux says so once three quarters of what was sent are read.
                self._is_blocked, self._stalled_s = False, 0.0
            except OSError as error:
                # Answers would only pile up, until the link is not read any more; and
                # what is lost waits no more, or the end of its stream would not be read.
                self._is_broken = True
                self._sending = self._spooled = 0
                self.give_up()
                raise _Unreadable from error


def _due(entries: list[TailEntry], hello: Hello) -> list[float]:
    """When those were due of which it counts how late their gateway is told."""
    return [
        entry.due
        for entry in entries
        # A gap is not due, and a watcher of one gateway is not that gateway.
        if entry.due
        and hello.role == GATEWAY
        and isinstance(entry.record, Record)
        and entry.record.gateway == hello.name
    ]
