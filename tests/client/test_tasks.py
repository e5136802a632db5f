"""Timers that have fired: which task takes them, in which order, and how many at once."""

from typing import Any, Final

import pytest

from liveness.client.tasks import MAX_AT_ONCE, TaskQueues, Timer
from liveness.errors import ReportError

MANY: Final = 100


def attempt(seq: int, key: str, **options: Any) -> Timer:
    known: dict[str, Any] = {"log": "one", "payload": None, "ext": None}
    known |= {"due": 0, "attempt": 1}
    return Timer(seq=seq, key=key, **(known | options))


def taken(queue: Any) -> list[int]:
    """The records of the runs that may be started now."""
    seqs = list[int]()
    while (one := queue.take()) is not None:
        seqs.append(one.seq)
    return seqs


def waiting(tasks: TaskQueues) -> list[int]:
    """The records of the attempts without a task."""
    return [timer.seq for timer in tasks.unclaimed]


def add(tasks: TaskQueues, *keys: str, first: int = 1) -> None:
    for seq, key in enumerate(keys, first):
        tasks.add(attempt(seq, key))


def test_the_longest_prefix_wins_and_others_wait() -> None:
    tasks = TaskQueues()
    orders, big = tasks.add_task("order:", MANY), tasks.add_task("order:big:", MANY)
    add(tasks, "order:1", "order:big:1", "remind", "order:", "order")
    assert (taken(orders), taken(big), waiting(tasks)) == ([1, 4], [2], [3, 5])


def test_timers_that_came_before_their_task_go_to_it_in_order() -> None:
    tasks = TaskQueues()
    add(tasks, "order:1", "a", "order:2", "order:big:1")
    every = tasks.add_task("", MANY)
    big, orders = tasks.add_task("order:big:", MANY), tasks.add_task("order:", MANY)
    assert (taken(every), taken(orders), taken(big)) == ([2], [1, 3], [4])


def test_a_prefix_has_one_task() -> None:
    tasks = TaskQueues()
    tasks.add_task("order:", MANY)
    with pytest.raises(ReportError, match="a task for 'order:' already"):
        tasks.add_task("order:", MANY)


@pytest.mark.parametrize("at_once", [0, -1, True, 1.5, MAX_AT_ONCE + 1, None])
def test_at_once_is_a_number_of_tasks(at_once: Any) -> None:
    with pytest.raises(ReportError, match="at_once is"):
        TaskQueues().add_task("", at_once)


def test_no_more_attempts_run_than_may_and_no_queue_holds_up_another() -> None:
    tasks = TaskQueues()
    stuck, other = tasks.add_task("a", 2), tasks.add_task("b", 2)
    add(tasks, "a1", "a2", "a3", "b1", "b2", "b3")
    assert (taken(stuck), taken(other)) == ([1, 2], [4, 5])
    other.ended(attempt(5, "b2"))
    assert (taken(stuck), taken(other)) == ([], [6])
    stuck.ended(attempt(1, "a1"))
    assert taken(stuck) == [3]


def test_a_key_that_is_under_way_is_not_started_again_until_it_has_ended() -> None:
    tasks = TaskQueues()
    queue = tasks.add_task("", MANY)
    add(tasks, "a")
    assert taken(queue) == [1]
    add(tasks, "a", "b", "a", first=2)
    assert tasks.waiting == 2
    assert taken(queue) == [3]
    queue.ended(attempt(1, "a"))
    assert taken(queue) == [4]
    queue.ended(attempt(4, "a"))
    assert (taken(queue), tasks.waiting) == ([], 0)


def test_a_full_queue_drops_attempts_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("liveness.client.tasks.MAX_WAITING", 100)
    tasks = TaskQueues()
    queue, other = tasks.add_task("a", MAX_AT_ONCE), tasks.add_task("b", 1)
    for _ in range(2):
        add(tasks, *(f"a{n}" for n in range(100)))
        remarks = [
            tasks.add(attempt(0, key)) for key in ("a one", "a another", "a0", "b")
        ]
        assert remarks[0] is not None
        assert "100 timers wait for the task 'a'" in remarks[0]
        assert remarks[1] is not None
        assert remarks[2:] == [None, None]
        for started in (queue, other):
            for one in iter(started.take, None):
                started.ended(one)
    assert (tasks.dropped, tasks.waiting) == (4, 0)
