"""The writing side of a link: replies in order, then records from the log.

Replies are sent in the order of the frames that they answer, each once everything that it
describes is durable. A list that cannot be made yet does not delay other replies. Records
are not queued: the outbox holds only its link's position in the log, and how many records
may still be sent before some are acknowledged.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from liveness.core.cursors import (
    NOT_READING,
    UNACKNOWLEDGED,
    Cursors,
    ReadPosition,
)
from liveness.core.disk import Disk
from liveness.core.limits import Limits
from liveness.core.records import GATEWAY
from liveness.core.wire.framing import encode
from liveness.core.wire.link_requests import Ack, Hello

NOTICES_PER_FRAME: Final = 1_000
# Roughly the largest frame of records: it is in memory until it is read, and a timer may
# have 4 KB.
NOTICES_BYTES: Final = 2**17
# A reader is reported if for this long it has blocked all records, by not reading or not
# acknowledging. One that is a moment behind, as after a mass offline, is not.
STALLED_S: Final = 30.0
# Replies are joined only up to this size, as they are then in memory twice.
JOINED_BYTES: Final = 65_536


class Reply(NamedTuple):
    """A frame, and the commit that has to be durable before it is sent."""

    frame: bytes
    after: int
    is_log_only: bool = False  # it depends on the log alone, not on the timers' table


class ListReply(NamedTuple):
    """The sessions of a gateway (None: of all), as they are on disk when it is sent."""

    gateway: str | None
    after: int


@dataclass(slots=True)
class UnreadReplies:
    """How many bytes of unread replies of all links are in memory.

    Above `limits.max_unread_bytes`, the sidecar does not read links with unread replies;
    above twice as many, it ends the links with the most.
    """

    memory: int = 0


class Outbox:
    """The writing half of a link, without its socket."""

    def __init__(
        self,
        limits: Limits,
        unread: UnreadReplies,
        disk: Disk,
        cursors: Cursors,
    ) -> None:
        self.is_ending = False
        self.is_given_up = False  # replies are dropped
        self.is_broken = False  # the socket can no longer be written to
        self.last_frame = b""
        self.lists: deque[ListReply] = deque()  # to be made and sent next
        self._limits = limits
        self._unread = unread
        self._disk = disk
        self._cursors = cursors
        self._hello: Hello | None = None
        self._reading: ReadPosition | None = None
        self._welcome_ticket = 0  # no record is sent before `welcome`
        self._replies: deque[Reply | ListReply] = deque()
        self._reply_bytes = 0
        self._sending = 0  # replies being written; they count as waiting
        self._is_blocked = False  # the socket's buffer is full
        self._stalled_s = 0.0  # how long replies have waited for the socket
        self._list_limit: tuple[str, str] | None = None  # why the next list waits
        self._list_waited_s = 0.0
        self._unacked: deque[int] = deque()
        self._acked = 0  # the highest seq that the peer has acknowledged
        self._processed = 0  # the highest seq that it has processed
        # Set while a frame of records is written.
        self._position_before: int | None = None
        self._progress = (0, 0)  # as of the last `note_stall`
        self._stopped_s = 0.0  # seconds without progress, caused by the reader

    @property
    def unacked(self) -> int:
        return len(self._unacked)

    @property
    def position(self) -> int | None:
        """The seq up to which records were written; None before the welcome."""
        if self._reading is None or self._position_before is not None:
            return self._position_before
        return self._reading.seq

    @property
    def has_replies(self) -> bool:
        return bool(self._replies or self.lists)

    @property
    def waits_for_disk(self) -> bool:
        """Whether it may have more to send after a commit."""
        return self.has_replies or self._welcome_ticket > self._disk.log_ticket

    # --- readers that block their records -------------------------------------

    @property
    def stop(self) -> str | None:
        """How the reader blocks the next records; None if it does not."""
        if len(self._unacked) >= self._limits.window:
            return UNACKNOWLEDGED
        is_unread = self._is_blocked and self._position_before is not None
        return NOT_READING if is_unread else None

    @property
    def stalled_s(self) -> float:
        """For how many seconds; 0 below `STALLED_S`."""
        is_stalled = self._stopped_s >= STALLED_S and self.stop is not None
        return self._stopped_s if is_stalled else 0.0

    def note_stall(self, elapsed: float) -> None:
        """Count time in which the reader may have blocked its records."""
        oldest = self._unacked[0] if self._unacked else 0
        progress = oldest, self.position or 0
        is_stopped = self.stop is not None and progress == self._progress
        self._stopped_s = self._stopped_s + elapsed if is_stopped else 0.0
        self._progress = progress

    # --- bounds on what is unread ---------------------------------------------

    @property
    def is_unread(self) -> bool:
        """Whether the peer reads nothing now, and too many replies are unread."""
        return self._is_blocked and self._has_most

    @property
    def is_full(self) -> bool:
        """Whether too many replies wait, for the disk or for the peer."""
        return self._has_most or (
            self._reply_bytes > 0
            and self._unread.memory > self._limits.max_unread_bytes
        )

    @property
    def _has_most(self) -> bool:
        limits = self._limits
        return (
            self._waiting > limits.max_replies
            or self._reply_bytes > limits.max_reply_bytes
        )

    @property
    def _waiting(self) -> int:
        return len(self._replies) + len(self.lists) + self._sending

    @property
    def excess(self) -> tuple[str, str]:
        """The limit of replies that is exceeded, and a text about it."""
        limits = self._limits
        is_many = self._waiting > limits.max_replies
        return (
            "limits.max_replies" if is_many else "limits.max_reply_bytes",
            f"more than {limits.max_replies} replies (limits.max_replies), or "
            f"{limits.max_reply_bytes} bytes of them (limits.max_reply_bytes), are left "
            "unread; read while you write",
        )

    def add_waiting(self, elapsed: float) -> tuple[str, str] | None:
        """Count time in which replies waited; return the limit that it exceeds, if any.

        Only replies count: unread records wait in the log.
        """
        limits, hello = self._limits, self._hello
        is_gateway = hello is not None and hello.role == GATEWAY
        # The users of a gateway may be held for longer.
        hold_s = limits.gateway_hold_s if is_gateway else 0.0
        most_s = max(limits.unread_s, hold_s)
        # While the log cannot be written, everything waits, and no link ends for that.
        if self._list_limit is not None and self._disk.failure is None:
            self._list_waited_s += elapsed
            # A link that leaves a list on the disk unread ends before.
            if self._list_waited_s > limits.unread_s + limits.gateway_hold_s:
                return self._list_limit
        if not (self._is_blocked and self._waiting):
            self._stalled_s = 0.0
            return None
        self._stalled_s += elapsed
        if self._stalled_s <= most_s:
            return None
        return (
            "limits.unread_s",
            f"nothing of an answer was read for {most_s:g} s (limits.unread_s); read "
            "while you write",
        )

    @property
    def burden(self) -> float:
        """Unread bytes in memory, weighted by their waiting time; 0 if the peer reads."""
        if not self._is_blocked:
            return 0.0
        return self._reply_bytes * (1 + self._stalled_s)

    # --- queueing -------------------------------------------------------------

    def queue(self, reply: Reply | ListReply) -> None:
        if isinstance(reply, Reply):
            self._count_bytes(len(reply.frame))
        self._replies.append(reply)

    def welcome(self, hello: Hello, reading: ReadPosition, ticket: int) -> None:
        """Send the records after *reading*, once *ticket* is durable."""
        self._hello, self._reading, self._welcome_ticket = hello, reading, ticket

    def acknowledge(self, ack: Ack, at_ms: int) -> int:
        """Move the cursor; return how many sent records *ack* covers."""
        before = len(self._unacked)
        while self._unacked and self._unacked[0] <= ack.seq:
            self._unacked.popleft()
        cursor = ack.seq if ack.cursor is None else ack.cursor
        self._acked = max(self._acked, ack.seq)
        self._processed = max(self._processed, cursor)
        self._store_cursor(cursor, at_ms)
        return before - len(self._unacked)

    def follow(self, at_ms: int) -> None:
        """Move the cursor to the position if all records are acknowledged and processed."""
        if self.position is not None and self._may_follow:
            self._store_cursor(self.position, at_ms)

    def drop_replies(self) -> None:
        """Drop the queued replies; complete the frame that is being written."""
        self._replies.clear()
        self.lists.clear()
        self._count_bytes(-self._reply_bytes)
        self._list_limit = None
        self.is_given_up = True

    def end(self, frame: object | None) -> None:
        """Write what is queued, then *frame*, and no more."""
        if self.is_unread or self._disk.failure is not None:
            # If the peer does not read, or the disk fails, send only the reason. The client
            # repeats reports that no pong has confirmed.
            self.drop_replies()
        if frame is not None:
            self.last_frame = encode(frame)
        self.is_ending = True

    def broken(self) -> None:
        self.is_broken = True
        self._sending = 0
        # With too many waiting replies, the end of the stream would not be read.
        self.drop_replies()

    def _count_bytes(self, more: int) -> None:
        self._reply_bytes += more
        self._unread.memory += more

    @property
    def _may_follow(self) -> bool:
        return not self._unacked and self._processed >= self._acked

    def _store_cursor(self, seq: int, at_ms: int) -> None:
        hello = self._hello
        assert hello is not None
        if hello.role == GATEWAY or hello.ack:
            if self._may_follow:
                seq = max(seq, self.position or 0)
            self._cursors.move((hello.role, hello.name), seq, at_ms)

    # --- writing --------------------------------------------------------------

    def blocked(self, is_blocked: bool) -> None:
        self._is_blocked = is_blocked
        if not is_blocked:
            self._stalled_s = 0.0

    def take_frames(self) -> bytes:
        """Take the replies that may be sent now, up to the next list; b"" if none may."""
        frames, size = list[bytes](), 0
        while self._replies and size < JOINED_BYTES:
            reply = self._replies[0]
            if isinstance(reply, ListReply) or not self._may_send(reply):
                break
            self._replies.popleft()
            frames.append(reply.frame)
            size += len(reply.frame)
        self._sending = len(frames)
        return b"".join(frames)

    def frames_sent(self, size: int) -> None:
        self._sending = 0
        self._count_bytes(-min(size, self._reply_bytes))

    def take_up_list(self) -> bool:
        """Move a list that may be made now to `lists`; return whether one was."""
        if not self._replies or not self._may_send(reply := self._replies[0]):
            return False
        assert isinstance(reply, ListReply)
        self._replies.popleft()
        self.lists.append(reply)
        return True

    def list_put_off(self, why: tuple[str, str], *, is_hopeless: bool) -> None:
        self._list_limit = why
        if is_hopeless:
            self._list_waited_s = float("inf")

    def list_begins(self) -> None:
        """Note that the first of `lists` was made."""
        self._list_limit, self._list_waited_s = None, 0.0
        if self.lists:  # `drop_replies` may have dropped it
            self.lists.popleft()
        self._sending = 1

    def list_sent(self) -> None:
        self._sending = 0

    @property
    def room(self) -> int:
        if self._reading is None or self._welcome_ticket > self._disk.log_ticket:
            return 0
        if self._reading.seq >= self._disk.durable_seq:
            return 0
        return min(self._limits.window - len(self._unacked), NOTICES_PER_FRAME)

    def records_begin(self, seqs: Sequence[int], before: int) -> None:
        """Note that the records *seqs* are about to be written, after position *before*."""
        hello = self._hello
        assert hello is not None
        if hello.ack:
            self._unacked.extend(seqs)
        self._position_before = before

    def records_sent(self, at_ms: int) -> None:
        """Note that all records up to the position are written, or skipped."""
        self._position_before = None
        self.follow(at_ms)

    @property
    def gateway(self) -> str | None:
        hello = self._hello
        return hello.name if hello is not None and hello.role == GATEWAY else None

    def _may_send(self, reply: Reply | ListReply) -> bool:
        is_log_only = isinstance(reply, Reply) and reply.is_log_only
        hello = self._hello
        if not is_log_only and hello is not None and hello.role == GATEWAY:
            # A gateway waits only for its own timer commands; a watcher has none.
            return reply.after <= self._disk.ticket_of(hello.name)
        return reply.after <= self._disk.log_ticket
