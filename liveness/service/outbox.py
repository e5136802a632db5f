"""What is to be told on one link, and the writing of it.

Replies go in the order of the frames they answer, each once everything it covers is
on disk. Records come straight from the log by the link's cursor, as many as the
window leaves room for; there is no queue of them to grow or to lose.
"""

import socket
import sqlite3
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import BinaryIO, Final

import structlog
import trio

from liveness.core.records import GATEWAY, Hello, Record
from liveness.core.wire import encode, encode_notices
from liveness.metrics import Counts
from liveness.service.clock import Clock
from liveness.service.feed import Cursor, Entry, Feed
from liveness.service.journal import Journal
from liveness.service.logs import Every
from liveness.service.wake import Wake
from liveness.service.writer import SAY_AGAIN_S

NOTICES_PER_FRAME: Final = 1_000
# Answers to `list` that are put together at the same time, over all links.
LISTS_AT_ONCE: Final = 2
LIST_PIECE_BYTES: Final = 65_536
# A page of the log that could not be read is tried again after this long.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What all outboxes share; made once."""

    journal: Journal
    feed: Feed
    clock: Clock
    counts: Counts
    limits: OutboxLimits
    lists: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(LISTS_AT_ONCE)
    )
    # What troubles one reader of the disk troubles all.
    every: Every = field(
        default_factory=lambda: Every(SAY_AGAIN_S, clock=trio.current_time)
    )


class _Unreadable(Exception):
    """The other side takes nothing any more."""


@dataclass(slots=True)
class _Reply:
    mark: int
    frame: bytes
    is_of_log: bool  # it says nothing of timers, and waits for the log alone


@dataclass(slots=True)
class _List:
    mark: int
    gateway: str | None


class Outbox:
    """The writing half of a link.

    Args:
        sock: Non-blocking; not owned.
        delivery: What all outboxes share.
    """

    def __init__(self, sock: socket.socket, delivery: Delivery) -> None:
        self.wake = Wake()
        self._sock = sock
        self._delivery = delivery
        self._replies: deque[_Reply | _List] = deque()
        self._reply_bytes = 0
        self._sending = 0  # replies of the write under way; they count until it is done
        self._hello: Hello | None = None
        self._cursor: Cursor | None = None
        self._notices_from = 0  # the mark of `welcome`, before which nothing is told
        self._unacked: deque[int] = deque()
        self._is_ending = False
        self._is_broken = False  # nothing that is written arrives any more
        self._is_blocked = False  # the socket takes no more of what is being written
        self._patience = trio.CancelScope()  # with the last frames; `end` sets it

    @property
    def unacked(self) -> int:
        """Records sent and not acknowledged."""
        return len(self._unacked)

    @property
    def position(self) -> int | None:
        """Up to which seq records were handed over; None before the welcome."""
        return None if self._cursor is None else self._cursor.position

    @property
    def is_unread(self) -> bool:
        """Whether the other side leaves more replies unread than it may."""
        return self._is_blocked and self.is_full

    @property
    def is_full(self) -> bool:
        """Whether more replies wait than may, be it for the disk or for the reader."""
        limits = self._delivery.limits
        return (
            len(self._replies) + self._sending > limits.max_replies
            or self._reply_bytes > limits.max_reply_bytes
        )

    @property
    def limit(self) -> str:
        """The setting whose bound the replies have met, if they have."""
        is_many = len(self._replies) + self._sending > self._delivery.limits.max_replies
        return "limits.max_replies" if is_many else "limits.max_reply_bytes"

    @property
    def why_overloaded(self) -> str:
        """What is to be said of more unread replies than there may be."""
        limits = self._delivery.limits
        return (
            f"more than {limits.max_replies} replies (limits.max_replies), or "
            f"{limits.max_reply_bytes} bytes of them (limits.max_reply_bytes), are left "
            "unread; read while you write"
        )

    def reply(self, frame: object, *, mark: int = 0, is_of_log: bool = False) -> None:
        """Queue a frame, to be sent once everything up to *mark* is on disk.

        Args:
            frame: The frame.
            mark: As `Journal.mark` was when all it tells of had been given.
            is_of_log: It does not tell of timers, whose table may be in trouble.
        """
        if self._is_broken:
            return
        encoded = encode(frame)
        self._reply_bytes += len(encoded)
        self._replies.append(_Reply(mark, encoded, is_of_log))
        self.wake.ring()

    def reply_list(self, gateway: str | None, *, mark: int) -> None:
        """Queue the answer to `list`: the sessions of *gateway*, or everyone's."""
        self._replies.append(_List(mark, gateway))
        self.wake.ring()

    def welcome(
        self, frame: object, *, hello: Hello, cursor: Cursor, mark: int
    ) -> None:
        """Queue `welcome`; records follow it, from where *cursor* is."""
        self.reply(frame, mark=mark, is_of_log=True)
        self._hello, self._cursor, self._notices_from = hello, cursor, mark
        self._delivery.feed.follow(cursor, self.wake.ring)

    def acknowledge(self, seq: int) -> None:
        """Note that everything up to *seq* is processed; move the stored cursor."""
        while self._unacked and self._unacked[0] <= seq:
            self._unacked.popleft()
            self._delivery.counts.notices_acked += 1
        self._store_cursor(seq)
        if self._cursor is not None and self._cursor.is_behind:
            self.wake.ring()  # the window has room again

    def end(self, frame: object | None = None) -> None:
        """Let `run` write what is queued, then *frame*, and return."""
        if self.is_unread or self._delivery.journal.failure is not None:
            # Whoever does not read, or waits for a disk that does not write, is told
            # only why this is the end. What no pong covered is sent again.
            self._replies.clear()
            self._reply_bytes = 0
        if frame is not None:
            self.reply(frame)
        self._is_ending = True
        # Also for a write that is stuck already: whoever does not read would keep the
        # socket, and a place among the links, for ever.
        self._patience.deadline = trio.current_time() + LINGER_S
        self.wake.ring()

    async def run(self) -> None:
        """Write whatever there is to tell until `end`, or until the link breaks."""
        try:
            with self._patience:
                while not self._is_ending:
                    wrote = await self._write_replies()
                    if not await self._write_notices() and not wrote:
                        await self._wait()
                while self._replies:
                    if not await self._write_replies():
                        await self._wait()
        except _Unreadable:
            # Nobody reads there any more; what that one lacks is in the log. What it
            # had written is still taken, until the end of its stream ends the link.
            while not self._is_ending:
                await self.wake.wait()

    def close(self) -> None:
        """Let go of the log."""
        if self._cursor is not None:
            self._delivery.feed.unfollow(self._cursor)

    def follow(self) -> None:
        """With nothing outstanding, have the stored cursor follow the log."""
        if self._cursor is not None and not self._unacked:
            self._store_cursor(self._cursor.position)

    # --- within ---------------------------------------------------------------

    async def _wait(self) -> None:
        if self._replies or self._notices_from > self._delivery.journal.log_mark:
            self._delivery.feed.ring_at_commit(self.wake.ring)
        await self.wake.wait()

    def _next_reply(self) -> _Reply | _List | None:
        """The first reply, if it may be sent by now."""
        if not self._replies:
            return None
        reply, journal = self._replies[0], self._delivery.journal
        is_of_log = isinstance(reply, _Reply) and reply.is_of_log
        reached = journal.log_mark
        hello = self._hello
        if not is_of_log and hello is not None and hello.role == GATEWAY:
            # Of timers only its own concern it; a watcher asks nothing of any.
            oldest = journal.timers.oldest_of(hello.name)
            reached = reached if oldest is None else min(reached, oldest - 1)
        return reply if reply.mark <= reached else None

    async def _write_replies(self) -> bool:
        """Write the replies that may be sent by now; return whether there were any."""
        frames: list[bytes] = []
        while isinstance(reply := self._next_reply(), _Reply):
            self._replies.popleft()
            frames.append(reply.frame)
        if frames:
            data = b"".join(frames)
            self._sending = len(frames)
            await self._send(data)
            self._sending = 0
            self._reply_bytes = max(0, self._reply_bytes - len(data))
            return True
        if reply is not None:
            self._replies.popleft()
            await self._write_list(reply.gateway)
            return True
        return False

    async def _write_list(self, gateway: str | None) -> None:
        # Through a file: a snapshot held open for a slow reader would keep the WAL
        # growing, and a million rows do not belong in memory.
        store = self._delivery.journal.store
        with ExitStack() as stack:
            while True:
                try:
                    spool = stack.enter_context(TemporaryFile(dir=store.folder))
                    async with self._delivery.lists:
                        await trio.to_thread.run_sync(
                            store.spool_online,
                            gateway,
                            spool,
                            limiter=self._delivery.feed.disk,
                        )
                    break
                except (sqlite3.Error, OSError) as error:
                    say = "a list is put off"
                    self._delivery.every(_log.warning, say, key=say, error=str(error))
                    stack.close()
                    await trio.sleep(RETRY_S)
            spool.seek(0)
            while piece := await _read(spool):
                await self._send(piece)

    async def _write_notices(self) -> bool:
        """Write a frame of records, if there are any and the window has room."""
        cursor, hello = self._cursor, self._hello
        delivery = self._delivery
        if cursor is None or hello is None:
            return False
        if self._notices_from > delivery.journal.log_mark:
            return False
        room = delivery.limits.window - len(self._unacked)
        if room <= 0 or not cursor.is_behind:
            return False
        try:
            entries = await cursor.take(
                min(room, NOTICES_PER_FRAME), wall_ms=delivery.clock.wall_ms()
            )
        except (sqlite3.Error, OSError) as error:
            say = "the log cannot be read; it is tried again"
            delivery.every(_log.warning, say, key=say, error=str(error))
            await trio.sleep(RETRY_S)
            return True
        if entries:
            if hello.ack:
                self._unacked.extend(entry.record.seq for entry in entries)
            await self._send(encode_notices([entry.encoded for entry in entries]))
            self._count(entries, hello)
        if not self._unacked:
            self._store_cursor(cursor.position)
        return True

    def _count(self, entries: list[Entry], hello: Hello) -> None:
        self._delivery.counts.notices_sent += len(entries)
        if hello.role != GATEWAY:
            return
        now = self._delivery.clock.mono()
        lateness = self._delivery.counts.lateness["sent"]
        for entry in entries:
            record = entry.record
            # A gap is not due, and a watcher of one gateway is not that gateway.
            if (
                entry.due
                and isinstance(record, Record)
                and record.gateway == hello.name
            ):
                lateness.observe(now - entry.due)

    def _store_cursor(self, seq: int) -> None:
        hello = self._hello
        assert hello is not None
        if hello.role == GATEWAY or hello.ack:
            cursor = self._cursor
            if not self._unacked and cursor is not None:
                # With nothing outstanding the cursor follows the log.
                seq = max(seq, cursor.position)
            self._delivery.journal.move_cursor(hello.role, hello.name, seq)

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                self._is_blocked = True
                await trio.lowlevel.wait_writable(self._sock)
                self._is_blocked = False
            except OSError as error:
                # Answers would only pile up, until the link is not read any more.
                self._is_broken = True
                self._replies.clear()
                self._reply_bytes = 0
                raise _Unreadable from error


async def _read(spool: BinaryIO) -> bytes:
    return await trio.to_thread.run_sync(spool.read, LIST_PIECE_BYTES)
