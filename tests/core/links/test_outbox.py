"""What a link is sent, in which order, and when: replies, lists, records, its end."""

from dataclasses import dataclass
from typing import Any

import pytest

from liveness.core.cursors import (
    NOT_READING,
    UNACKNOWLEDGED,
    CursorRow,
    Cursors,
    ReadPosition,
)
from liveness.core.limits import Limits
from liveness.core.links.outbox import (
    JOINED_BYTES,
    NOTICES_PER_FRAME,
    STALLED_S,
    ListReply,
    Outbox,
    Reply,
    UnreadReplies,
)
from liveness.core.records import KINDS, Subscription
from liveness.core.wire.framing import encode
from liveness.core.wire.link_requests import Ack, Hello
from liveness.testing.scripted_disk import FULL, ScriptedDisk

KEY = ("gateway", "g")
LIST = ListReply("g", 1)


@dataclass(slots=True)
class Disk(ScriptedDisk):
    """A disk in memory, whose log has only a length."""

    timers_behind: int = 0  # tickets by which timer commands are behind the log
    records_kept: int = 0

    @property
    def durable_seq(self) -> int:
        return self.records_kept

    def ticket_of(self, _gateway: str) -> int:
        return self.log_ticket - self.timers_behind


class Link:
    """The outbox of a link, and all that it looks at."""

    def __init__(self, **limits: Any) -> None:
        self.disk = Disk(written=1)
        self.cursors = Cursors({KEY: CursorRow(0, 0, None)})
        self.unread = UnreadReplies()
        self.outbox = Outbox(Limits(**limits), self.unread, self.disk, self.cursors)

    def welcome(
        self, *, role: str = "gateway", ack: bool = True, ticket: int = 1
    ) -> None:
        kinds = frozenset(KINDS)
        hello = Hello(name="g", role=role, ack=ack, kinds=kinds)
        self.reading = ReadPosition(Subscription(None, kinds), 0)
        self.outbox.welcome(hello, self.reading, ticket)

    def queue(self, *frames: bytes, after: int = 1) -> None:
        for frame in frames:
            self.outbox.queue(Reply(frame, after))

    def send_records(self, *seqs: int, until: int | None = None) -> None:
        """Write these records; the position is the last, or *until*."""
        self.outbox.records_begin(seqs, self.reading.seq)
        self.reading.seq = until or seqs[-1]
        self.outbox.records_sent(5)

    @property
    def cursor(self) -> int:
        return self.cursors[KEY].seq


@pytest.fixture
def link() -> Link:
    """A gateway's, welcomed, with ten records in the log and the default limits."""
    made = Link()
    made.welcome()
    made.disk.records_kept = 10
    return made


def test_a_reply_behind_one_that_is_not_durable_waits_too(link: Link) -> None:
    link.queue(b"a")
    link.queue(b"b", after=2)
    link.queue(b"c")
    assert link.outbox.take_frames() == b"a"
    assert link.outbox.take_frames() == b""
    assert link.outbox.waits_for_disk
    link.disk.written = 2
    assert link.outbox.take_frames() == b"bc"
    assert not link.outbox.has_replies


@pytest.mark.parametrize(("role", "sent"), [("gateway", b"a"), ("watcher", b"ab")])
def test_only_a_gateway_waits_for_timer_commands_and_not_with_its_welcome(
    role: str, sent: bytes
) -> None:
    link = Link()
    link.welcome(role=role)
    link.disk.timers_behind = 1
    link.outbox.queue(Reply(b"a", 1, is_log_only=True))
    link.queue(b"b")
    assert link.outbox.take_frames() == sent


def test_replies_are_joined_up_to_a_size(link: Link) -> None:
    frame = b"x" * (JOINED_BYTES // 2)
    link.queue(frame, frame, b"y")
    assert link.outbox.take_frames() == frame * 2
    assert link.outbox.take_frames() == b"y"


def test_a_list_is_taken_up_in_its_turn_and_passes_no_reply(link: Link) -> None:
    link.queue(b"a")
    link.outbox.queue(LIST._replace(after=2))
    link.queue(b"b")
    assert link.outbox.take_frames() == b"a"
    assert link.outbox.take_frames() == b""
    assert not link.outbox.take_up_list()
    link.disk.written = 2
    assert link.outbox.take_up_list()
    assert [*link.outbox.lists] == [LIST._replace(after=2)]
    assert link.outbox.take_frames() == b"b"
    link.outbox.list_begins()
    assert not link.outbox.has_replies


def test_unread_bytes_are_counted_until_they_are_sent_or_dropped(link: Link) -> None:
    link.queue(b"abc", b"de")
    assert link.unread.memory == 5
    link.outbox.take_frames()
    link.outbox.frames_sent(3)
    assert link.unread.memory == 2
    link.outbox.broken()
    assert (link.unread.memory, link.outbox.is_given_up) == (0, True)


@pytest.mark.parametrize(
    ("limits", "most", "limit"),
    [
        ({"max_replies": 2}, 2, "limits.max_replies"),
        ({"max_reply_bytes": 3}, 3, "limits.max_reply_bytes"),
    ],
)
def test_a_link_with_one_reply_too_many_is_full(
    limits: dict[str, int], most: int, limit: str
) -> None:
    link = Link(**limits)
    link.queue(*[b"x"] * most)
    assert not link.outbox.is_full
    link.queue(b"x")
    assert link.outbox.excess[0] == limit
    assert link.outbox.is_full
    assert not link.outbox.is_unread
    link.outbox.blocked(True)
    assert link.outbox.is_unread
    link.outbox.take_frames()
    link.outbox.frames_sent(most + 1)
    assert not link.outbox.is_full


def test_above_the_bound_of_all_links_those_with_unread_replies_are_full() -> None:
    link = Link(max_unread_bytes=10)
    link.unread.memory = 11
    assert not link.outbox.is_full
    link.queue(b"x")
    assert link.outbox.is_full


def test_replies_being_written_and_lists_count_as_waiting() -> None:
    link = Link(max_replies=2)
    link.queue(b"a", b"b")
    link.outbox.queue(LIST)
    link.outbox.take_frames()
    assert link.outbox.is_full
    assert link.outbox.take_up_list()
    assert link.outbox.is_full
    link.outbox.list_begins()
    link.queue(b"c")
    assert not link.outbox.is_full
    link.queue(b"d")
    assert link.outbox.is_full
    link.outbox.list_sent()
    assert not link.outbox.is_full


def test_what_a_broken_link_had_to_send_does_not_count() -> None:
    link = Link(max_replies=0)
    link.queue(b"a")
    link.outbox.queue(LIST)
    link.outbox.take_frames()
    link.outbox.take_up_list()
    link.outbox.list_put_off(("limits.max_spool_bytes", "no room"), is_hopeless=True)
    link.outbox.broken()
    assert (link.outbox.is_broken, link.outbox.has_replies) == (True, False)
    assert not link.outbox.is_full
    assert link.outbox.add_waiting(1) is None
    link.outbox.list_begins()  # it was being made


@pytest.mark.parametrize(("role", "most_s"), [("gateway", 60), ("watcher", 30)])
def test_a_link_that_reads_no_reply_has_its_time(role: str, most_s: int) -> None:
    link = Link(gateway_hold_s=60, unread_s=30)
    link.welcome(role=role)
    link.outbox.blocked(True)
    assert link.outbox.add_waiting(100) is None  # only records are unread
    link.queue(b"a")
    assert link.outbox.add_waiting(most_s) is None
    assert link.outbox.burden == 1 + most_s
    limit, message = link.outbox.add_waiting(1) or ("", "")
    assert (limit, f"{most_s} s" in message) == ("limits.unread_s", True)
    link.outbox.blocked(False)
    assert link.outbox.burden == 0
    link.outbox.blocked(True)
    assert link.outbox.add_waiting(most_s) is None


def test_a_list_without_room_waits_no_longer_than_others_may_leave_theirs_unread() -> (
    None
):
    link = Link(gateway_hold_s=60, unread_s=30)
    why = ("limits.max_spool_bytes", "no room")
    link.outbox.queue(LIST)
    link.outbox.list_put_off(why, is_hopeless=False)
    assert link.outbox.add_waiting(90) is None
    link.disk.failure = FULL
    assert link.outbox.add_waiting(100) is None
    link.disk.failure = None
    assert link.outbox.add_waiting(1) == why
    link.outbox.take_up_list()
    link.outbox.list_begins()
    assert link.outbox.add_waiting(1_000) is None
    link.outbox.list_put_off(why, is_hopeless=True)
    assert link.outbox.add_waiting(0) == why


def test_no_record_is_sent_before_the_welcome_is_durable() -> None:
    link = Link()
    link.disk.records_kept = 10
    assert (link.outbox.room, link.outbox.position) == (0, None)
    link.welcome(ticket=2)
    assert (link.outbox.room, link.outbox.waits_for_disk) == (0, True)
    link.disk.written = 2
    assert (link.outbox.room, link.outbox.waits_for_disk) == (NOTICES_PER_FRAME, False)


def test_there_is_room_for_what_the_window_leaves_if_there_are_records() -> None:
    link = Link(window=5)
    link.welcome()
    link.disk.records_kept = 7
    link.send_records(1, 2, 3)
    assert (link.outbox.room, link.outbox.unacked) == (2, 3)
    assert link.outbox.acknowledge(Ack(2), 5) == 2
    assert link.outbox.room == 4
    link.send_records(4, 5, 6, 7)
    assert link.outbox.room == 0
    link.outbox.acknowledge(Ack(7), 5)
    assert link.outbox.room == 0  # the log has no more


def test_a_reader_stops_its_records_by_not_acknowledging_or_not_reading() -> None:
    link = Link(window=2)
    link.welcome()
    link.send_records(1)
    link.outbox.blocked(True)
    assert link.outbox.stop is None  # no record is being written
    link.outbox.records_begin([2], 1)
    assert link.outbox.stop == UNACKNOWLEDGED
    link.outbox.acknowledge(Ack(1), 5)
    assert link.outbox.stop == NOT_READING


def test_a_reader_that_makes_no_progress_for_a_while_is_stalled() -> None:
    link = Link(window=1)
    link.welcome()
    link.send_records(1)
    link.outbox.note_stall(100)  # it had progress since the last look
    link.outbox.note_stall(STALLED_S - 1)
    assert link.outbox.stalled_s == 0
    link.outbox.note_stall(1)
    assert link.outbox.stalled_s == STALLED_S
    link.outbox.acknowledge(Ack(1), 5)
    assert link.outbox.stalled_s == 0
    link.outbox.note_stall(1)
    link.send_records(2)
    link.outbox.note_stall(100)
    assert link.outbox.stalled_s == 0


def test_a_cursor_follows_acks_and_what_does_not_concern_the_link(link: Link) -> None:
    link.send_records(2, 4, until=6)
    assert link.cursor == 0
    link.outbox.acknowledge(Ack(2), 5)
    assert link.cursor == 2
    link.outbox.acknowledge(Ack(4), 5)
    assert link.cursor == 6
    link.reading.seq = 9
    link.outbox.follow(5)
    assert link.cursor == 9


def test_a_cursor_stays_at_what_was_processed_of_what_was_received(link: Link) -> None:
    link.send_records(1, 2, 3, until=5)
    link.outbox.acknowledge(Ack(3, 1), 5)
    assert (link.outbox.unacked, link.cursor) == (0, 1)
    link.outbox.acknowledge(Ack(3, 3), 5)
    assert link.cursor == 5


@pytest.mark.parametrize("why", ["neither", "unread", "disk"])
def test_at_its_end_a_link_is_sent_what_is_queued_unless_that_is_in_vain(
    why: str,
) -> None:
    link = Link(max_replies=1)
    link.queue(b"a", b"b")
    link.outbox.blocked(why == "unread")
    link.disk.failure = FULL if why == "disk" else None
    link.outbox.end(["bye"])
    assert link.outbox.has_replies is (why == "neither")
    assert (link.outbox.is_ending, link.outbox.last_frame) == (True, encode(["bye"]))
