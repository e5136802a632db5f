"""Arrived records: readers that have not finished them, and acknowledgements."""

from collections.abc import Callable
from typing import Final

import pytest

from liveness.client.inbox import Arrival, End, Inbox, ReaderQueue

LIMIT: Final = 20


def arrival(seq: int, what: str = "end") -> Arrival:
    record = {"seq": seq, "kind": "offline" if what == "end" else what}
    end = End("ada", seq, "silence", record) if what == "end" else None
    return Arrival(seq, record, end, waits_for_reader=what != "timer")


def add(inbox: Inbox, *seqs: int, what: str = "end") -> None:
    for seq in seqs:
        assert inbox.is_new(seq)
        inbox.add(arrival(seq, what))


def wants_all(_arrival: Arrival) -> bool:
    return True


def wants_ends(arrival: Arrival) -> bool:
    return arrival.end is not None


def read(queue: ReaderQueue, most: int = LIMIT) -> list[int]:
    """Take this many in turn; the last one stays unfinished."""
    taken: list[int] = []
    while len(taken) < most and (arrival := queue.next()) is not None:
        taken.append(arrival.seq)
    return taken


OPEN: Final[dict[str, Callable[[Inbox], ReaderQueue]]] = {
    "all": lambda inbox: inbox.open_queue(wants_all),
    "ends": lambda inbox: inbox.open_queue(wants_ends),
    "passing": lambda inbox: inbox.open_queue(wants_all, persists=False),
}

# Readers are opened ("a = ends"), read ("a reads 1 2"; "a reads 1 2 ." to the end), and
# leave. Records are ends, others, or timers, which wait for nobody. "finished" is up to
# where they may be acknowledged.
SCENES: Final = """\
a record is finished when its reader comes back for the next
    a = all, add 3 5, finished 2, a reads 3, finished 2, a reads 5, finished 4, a reads ., finished 5
what a queue does not want is finished as it comes
    a = ends, other 3 4, finished 4, add 5, other 6 7, finished 4, a reads 5 ., finished 7
what comes while nobody reads waits for the first reader
    add 1 2, other 3, finished 0, a = ends, b = all, b reads ., a reads 1 2 ., finished 3
nothing waits that the first reader does not want
    other 1 2, finished 0, a = ends, finished 2
without records nothing is finished
    finished 0, a = all, finished 0
timers wait for no first reader
    timer 1 2, finished 2, add 3, timer 4, finished 2, a = all, timer 5, a reads 3 5 ., finished 5
timers hold nothing back where a reader left
    a = passing, timer 1, add 2, timer 3, a leaves, finished 1, b = all, b reads 2 ., finished 3
only what every queue has finished is finished
    a = all, b = all, add 1 2 3, b reads 1 2 3 ., finished 0, a reads 1 2, finished 1, a reads 3 ., finished 3
each queue is given each record
    a = all, b = ends, c = all, add 1 2, a reads 1 2 ., b reads 1 2 ., c reads 1 2 .
a queue that is opened later does not get what others had
    a = all, add 1, b = all, add 2, a reads 1 2 ., b reads 2 .
what the last queue had not finished goes to the next in its order
    a = all, add 1 2 3, a reads 1 2, a leaves, finished 1, add 4, b = all, b reads 2 3 4 ., finished 4
a queue that was left and had finished everything holds nothing back
    a = all, add 1 2, a reads 1 2 ., a leaves, finished 2
a queue that was left is waited for unless it was left for good
    a = all, b = ends, add 1 2 3, a reads 1, b reads 1 2 3 ., a leaves, finished 0
    c = all, c reads 1 2, c leaves for good, finished 3
the next reader of the same gets what came meanwhile, and no other takes it
    a = ends, b = all, add 1, a reads 1, a leaves, add 2, b reads 1 2 .
    c = ends, c reads 1 2 ., finished 2
what a reader left goes to one that wants the same and came after it
    a = ends, add 1 2, a reads 1, b = ends, add 3, a leaves, finished 0, b reads 1 2 3 ., finished 3
queues may be left all at once
    a = all, b = all, add 1 2, a reads 1 2 ., a leaves, b leaves, c = all, c reads 1 2 .
what waits for a first queue outlives its log
    add 7, new log, add 1, finished 0, a = ends, a reads 0 1 ., finished 1
"""


def scenes() -> dict[str, list[str]]:
    """The steps of each scene, by its title."""
    found, title = dict[str, list[str]](), ""
    for line in SCENES.splitlines():
        if line.startswith(" "):
            found[title] += line.strip().split(", ")
        else:
            title = line
            found[title] = []
    return found


@pytest.mark.parametrize("steps", scenes().values(), ids=scenes())
def test_the_scene(steps: list[str]) -> None:
    inbox, queues = Inbox(), dict[str, ReaderQueue]()
    for step in steps:
        match step.split():
            case [("add" | "other" | "timer") as what, *seqs]:
                add(inbox, *map(int, seqs), what="end" if what == "add" else what)
            case ["finished", seq]:
                assert inbox.finished == int(seq), step
            case ["new", "log"]:
                inbox.begin_log()
            case [name, "=", kind]:
                queues[name] = OPEN[kind](inbox)
            case [name, "reads", *seqs, "."]:
                assert read(queues[name]) == [*map(int, seqs)], step
            case [name, "reads", *seqs]:
                assert read(queues[name], len(seqs)) == [*map(int, seqs)], step
            case [name, "leaves", *for_good]:
                inbox.abandoned.append((queues[name], bool(for_good)))
            case _:
                raise AssertionError(step)


def test_an_end_that_was_taken_back_meanwhile_is_passed_over() -> None:
    inbox = Inbox()
    queue = inbox.open_queue(wants_ends)
    stale, good = arrival(1), arrival(2)
    inbox.add(stale)
    inbox.add(good)
    stale.end = None
    assert queue.next() is good
    assert inbox.finished == 1


def test_a_record_that_came_before_is_not_new_and_is_counted() -> None:
    inbox = Inbox()
    add(inbox, 1, 4)
    assert [inbox.is_new(seq) for seq in (1, 3, 4, 5)] == [False, False, False, True]
    assert inbox.duplicates == 3


def test_a_new_log_begins_at_0_and_what_was_not_finished_still_has_to_be() -> None:
    inbox = Inbox()
    queue, other = inbox.open_queue(wants_all), inbox.open_queue(wants_all)
    add(inbox, 7, 8, 9)
    read(queue, 1)
    read(other)
    inbox.begin_log()
    assert inbox.newest == inbox.finished == 0
    add(inbox, 1, 2)
    assert inbox.finished == 0
    assert [arrival.record["seq"] for arrival in queue.unfinished] == [7, 8, 9, 1, 2]
    assert read(queue) == [0, 0, 1, 2]
    assert read(other) == [1, 2]
    assert inbox.finished == 2
