"""Records that have come: who has still to finish them, and what may be acknowledged."""

from typing import Final

from liveness.core.inbox import Arrival, End, Inbox, View

LIMIT: Final = 20


def arrival(seq: int, *, ends: bool = True) -> Arrival:
    record = {"seq": seq, "kind": "offline"}
    return Arrival(seq, record, End("ada", seq, "silence", record) if ends else None)


def unwaiting(seq: int) -> Arrival:
    return Arrival(seq, {"seq": seq, "kind": "timer"}, None, waits=False)


def wants_all(_arrival: Arrival) -> bool:
    return True


def wants_ends(arrival: Arrival) -> bool:
    return arrival.end is not None


def inbox_of(*seqs: int) -> Inbox:
    inbox = Inbox()
    add(inbox, *seqs)
    return inbox


def add(inbox: Inbox, *seqs: int, ends: bool = True) -> None:
    for seq in seqs:
        assert inbox.is_new(seq)
        inbox.add(arrival(seq, ends=ends))


def read(view: View, most: int = LIMIT) -> list[int]:
    """Take so many in turn; the last one taken stays in hand."""
    taken: list[int] = []
    while len(taken) < most and (arrival := view.next()) is not None:
        taken.append(arrival.seq)
    return taken


def leave(inbox: Inbox, view: View, *, for_good: bool = False) -> None:
    inbox.left.append((view, for_good))


# --- one view ------------------------------------------------------------------------


def test_a_record_is_finished_when_its_reader_comes_back_for_the_next() -> None:
    inbox = inbox_of()
    view = inbox.view(wants_all)
    add(inbox, 3, 5)
    assert inbox.finished == 2
    assert read(view, 1) == [3]
    assert inbox.finished == 2
    assert read(view, 1) == [5]
    assert inbox.finished == 4
    assert view.next() is None
    assert inbox.finished == 5


def test_what_a_view_does_not_want_is_finished_as_it_comes() -> None:
    inbox = inbox_of()
    view = inbox.view(wants_ends)
    add(inbox, 3, 4, ends=False)
    assert inbox.finished == 4
    add(inbox, 5)
    add(inbox, 6, 7, ends=False)
    assert inbox.finished == 4
    assert read(view) == [5]
    assert inbox.finished == 7


def test_an_end_that_was_taken_back_meanwhile_is_passed_over() -> None:
    inbox = inbox_of()
    view = inbox.view(wants_ends)
    stale, good = arrival(1), arrival(2)
    inbox.add(stale)
    inbox.add(good)
    stale.end = None
    assert view.next() is good
    assert inbox.finished == 1


def test_what_comes_while_nobody_reads_waits_for_the_first_who_does() -> None:
    inbox = inbox_of(1, 2)
    add(inbox, 3, ends=False)
    assert inbox.finished == 0
    view, second = inbox.view(wants_ends), inbox.view(wants_all)
    assert read(second) == []
    assert read(view) == [1, 2]
    assert inbox.finished == 3


def test_nothing_waits_that_the_first_reader_does_not_want() -> None:
    inbox = inbox_of()
    add(inbox, 1, 2, ends=False)
    assert inbox.finished == 0
    inbox.view(wants_ends)
    assert inbox.finished == 2


def test_without_records_nothing_is_finished() -> None:
    inbox = inbox_of()
    assert inbox.finished == 0
    inbox.view(wants_all)
    assert inbox.finished == 0


def test_what_waits_for_nobody_is_finished_where_nobody_reads() -> None:
    inbox = inbox_of()
    for seq in (1, 2):
        inbox.add(unwaiting(seq))
    assert inbox.finished == 2
    add(inbox, 3)
    inbox.add(unwaiting(4))
    assert inbox.finished == 2
    view = inbox.view(wants_all)
    inbox.add(unwaiting(5))
    assert read(view) == [3, 5]
    assert inbox.finished == 5


def test_what_waits_for_nobody_holds_nothing_back_where_a_reader_left() -> None:
    inbox = inbox_of()
    view = inbox.view(wants_all, lasts=False)
    inbox.add(unwaiting(1))
    add(inbox, 2)
    inbox.add(unwaiting(3))
    leave(inbox, view)
    assert inbox.finished == 1
    assert read(inbox.view(wants_all)) == [2]
    assert inbox.finished == 3


# --- several views ---------------------------------------------------------------------


def test_only_what_every_view_has_finished_is_finished() -> None:
    inbox = inbox_of()
    slow, fast = inbox.view(wants_all), inbox.view(wants_all)
    add(inbox, 1, 2, 3)
    read(fast)
    assert inbox.finished == 0
    read(slow, 2)
    assert inbox.finished == 1
    read(slow)
    assert inbox.finished == 3


def test_each_view_is_given_each_record() -> None:
    inbox = inbox_of()
    views = [inbox.view(wants_all), inbox.view(wants_ends), inbox.view(wants_all)]
    add(inbox, 1, 2)
    assert [read(view) for view in views] == [[1, 2]] * 3


def test_a_view_that_is_opened_later_does_not_get_what_others_had() -> None:
    inbox = inbox_of()
    first = inbox.view(wants_all)
    add(inbox, 1)
    late = inbox.view(wants_all)
    add(inbox, 2)
    assert read(first) == [1, 2]
    assert read(late) == [2]


# --- views that are left ---------------------------------------------------------------


def test_what_the_last_view_had_not_finished_goes_to_the_next_in_its_order() -> None:
    inbox = inbox_of()
    view = inbox.view(wants_all)
    add(inbox, 1, 2, 3)
    read(view, 2)
    leave(inbox, view)
    assert inbox.finished == 1
    add(inbox, 4)
    assert read(inbox.view(wants_all)) == [2, 3, 4]
    assert inbox.finished == 4


def test_a_view_that_was_left_and_had_finished_everything_holds_nothing_back() -> None:
    inbox = inbox_of()
    view = inbox.view(wants_all)
    add(inbox, 1, 2)
    read(view)
    leave(inbox, view)
    assert inbox.finished == 2


def test_a_view_that_was_left_is_waited_for_unless_it_was_left_for_good() -> None:
    inbox = inbox_of()
    peek, stays = inbox.view(wants_all), inbox.view(wants_ends)
    add(inbox, 1, 2, 3)
    read(peek, 1)
    read(stays)
    leave(inbox, peek)
    assert inbox.finished == 0
    again = inbox.view(wants_all)
    assert read(again, 2) == [1, 2]
    leave(inbox, again, for_good=True)
    assert inbox.finished == 3


def test_whoever_goes_on_is_given_what_came_meanwhile_and_nobody_else_takes_it() -> (
    None
):
    inbox = inbox_of()
    view, other = inbox.view(wants_ends), inbox.view(wants_all)
    add(inbox, 1)
    read(view, 1)
    leave(inbox, view)
    add(inbox, 2)
    assert read(other) == [1, 2]
    assert read(inbox.view(wants_ends)) == [1, 2]
    assert inbox.finished == 2


def test_what_a_reader_left_goes_to_one_that_wants_the_same_and_came_after_it() -> None:
    inbox = inbox_of()
    first = inbox.view(wants_ends)
    add(inbox, 1, 2)
    read(first, 1)
    second = inbox.view(wants_ends)
    add(inbox, 3)
    leave(inbox, first)
    assert inbox.finished == 0
    assert read(second) == [1, 2, 3]
    assert inbox.finished == 3


def test_views_may_be_left_all_at_once() -> None:
    inbox = inbox_of()
    ahead, behind = inbox.view(wants_all), inbox.view(wants_all)
    add(inbox, 1, 2)
    read(ahead)
    leave(inbox, ahead)
    leave(inbox, behind)
    assert read(inbox.view(wants_all)) == [1, 2]


# --- numbers ---------------------------------------------------------------------------


def test_a_record_that_came_before_is_not_new_and_is_counted() -> None:
    inbox = inbox_of(1, 4)
    assert [inbox.is_new(seq) for seq in (1, 3, 4, 5)] == [False, False, False, True]
    assert inbox.duplicates == 3


def test_a_new_log_begins_at_0_and_what_was_not_finished_still_has_to_be() -> None:
    inbox = inbox_of()
    view, other = inbox.view(wants_all), inbox.view(wants_all)
    add(inbox, 7, 8, 9)
    read(view, 1)
    read(other)
    inbox.new_log()
    assert inbox.seen == inbox.finished == 0
    add(inbox, 1, 2)
    assert inbox.finished == 0
    assert [arrival.record["seq"] for arrival in view.unfinished] == [7, 8, 9, 1, 2]
    assert read(view) == [0, 0, 1, 2]
    assert read(other) == [1, 2]
    assert inbox.finished == 2


def test_what_waits_for_a_first_view_outlives_its_log_too() -> None:
    inbox = inbox_of(7)
    inbox.new_log()
    assert inbox.is_new(1)
    assert inbox.finished == 0
    assert read(inbox.view(wants_ends)) == [0]
    assert inbox.finished == 0
