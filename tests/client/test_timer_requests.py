"""Requests about timers: only the newest, in order, until a pong has covered it."""

from typing import Any, Final

import pytest

from liveness.client.tasks import MAX_AT_ONCE, TaskQueues, Timer
from liveness.client.timer_requests import (
    MAX_AFTER_S,
    MIN_AFTER_S,
    POSTPONED_S,
    TimerRequests,
)
from liveness.core.wire.framing import decode
from liveness.errors import ReportError

NO_NAMES: Final = [
    "", "x" * 256, "é" * 128, "a\n", "a\x7f", "\0", "\ud800", 7, b"a", True,
]  # fmt: skip
NO_TEXTS: Final = ["a\0", "x" * 4_097, "é" * 2_049, "\ud800", 7, b"a"]
NO_SECONDS: Final = [
    0, 0.0999, -1, MAX_AFTER_S + 1, float("nan"), float("inf"), True, "1", None,
]  # fmt: skip


def after(requests: TimerRequests, key: Any, seconds: Any = 1, **options: Any) -> None:
    known = {"payload": None, "ext": None, "now": 0.0} | options
    requests.after(key, seconds, **known)


def told(requests: TimerRequests, now: float = 0.0) -> list[Any]:
    return [decode(frame) for frame in requests.frames(now)]


def keys(frames: list[Any]) -> list[str]:
    """What each is, and about which key or /ext."""
    found = []
    for name, about, *_ in frames:
        if name == "cancel":
            about = about["key"] if "key" in about else "/" + about["ext"]
        found.append(f"{name} {about}")
    return found


def take(requests: TimerRequests, steps: str) -> None:
    """Take steps like "after a/e, write, cancel /e, no room a"; "/e" is an ext."""
    for step in steps.split(", "):
        match step.split():
            case ["after", name]:
                key, _, ext = name.partition("/")
                after(requests, key, ext=ext or None)
            case ["cancel", name]:
                key, _, ext = name.partition("/")
                requests.cancel(key or None, ext or None)
            case ["no", "room", key]:
                requests.postpone(key)
            case ["write"]:
                told(requests)
            case ["ping"]:
                requests.ping_sent()
            case ["pong"]:
                requests.pong_received()
            case _:
                assert step == "lose"
                requests.link_lost()


def settle(requests: TimerRequests) -> None:
    """Answer a ping sent after all requests."""
    requests.ping_sent()
    requests.pong_received()


@pytest.mark.parametrize("seconds", NO_SECONDS)
def test_seconds_that_cannot_be_are_refused(seconds: object) -> None:
    requests = TimerRequests()
    with pytest.raises(ReportError, match="seconds for 'a'; it must be"):
        after(requests, "a", seconds)
    assert (requests.pending, requests.was_used) == (0, False)


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_name_that_cannot_be_is_refused_and_the_error_says_which(name: Any) -> None:
    requests = TimerRequests()
    for key, ext in ((name, None), ("a", name)):
        with pytest.raises(ReportError, match="key is" if ext is None else "ext is"):
            after(requests, key, ext=ext)
    with pytest.raises(ReportError, match="key is"):
        requests.cancel(name, None)
    with pytest.raises(ReportError, match="ext is"):
        requests.cancel(None, name)
    assert requests.pending == 0


@pytest.mark.parametrize("payload", NO_TEXTS)
def test_a_payload_that_cannot_be_is_refused(payload: object) -> None:
    with pytest.raises(ReportError, match="payload is"):
        after(TimerRequests(), "a", payload=payload)


SENT_AFTER_STEPS: Final = """\
cancel a, cancel /a -> cancel a, cancel /a
after a/e, after b/e, cancel /e, after a/e -> after b, cancel /e, after a
after a/e, write, ping, cancel /e, write, after a/e, write, lose -> cancel /e, after a
after a, write, ping, after b, write, pong, lose -> after b
after a, write, lose, cancel a -> cancel a
after a, write, ping, no room a, cancel a -> cancel a
after a/e, write, ping, no room a, cancel /e -> cancel /e, cancel a
after a/f, write, ping, pong, after a/e, write, ping, no room a, cancel /e -> cancel /e, cancel a
after a/e, write, ping, no room a, cancel /e, after a/f -> cancel /e, after a
after a, write, ping, no room a, after a -> after a
after a, write, ping, no room a, lose -> after a
after a, write, ping, cancel a, no room a -> cancel a
after a/e, write, ping, cancel /e, no room a -> cancel /e, cancel a
after a, write, ping, after a, no room a -> after a
after a, write, ping, cancel a, write, no room a -> nothing
after a/e, write, ping, cancel /e, write, no room a -> cancel a
after a, write, ping, after a, write, no room a -> nothing
cancel /e, after e/e, after a, write, no room e, no room a, cancel /a -> cancel /a; 2 wait for room
cancel b, write, no room a, no room b -> nothing
"""


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("x" * 4_097, "x" * 4_096),
        ("é" * 3_000, "é" * 2_048),
        ("x" + "é" * 3_000, "x" + "é" * 2_047),
        ("a\0b", "a\ufffdb"),
        ("\ud800", "?"),
    ],
)
def test_a_message_is_cut_to_the_longest_allowed(message: str, kept: str) -> None:
    requests = TimerRequests()
    requests.done("a", 1, message)
    requests.fail("a", 2, message, final=False)
    assert [frame[2] for frame in told(requests)] == [kept, kept]


@pytest.mark.parametrize("line", SENT_AFTER_STEPS.splitlines())
def test_what_is_sent_after_these_steps(line: str) -> None:
    steps, _, expected = line.partition(" -> ")
    requests = TimerRequests()
    take(requests, steps)
    refused = requests.postponed
    sent = ", ".join(keys(told(requests))) or "nothing"
    assert sent + f"; {refused} wait for room" * bool(refused) == expected


def test_a_timer_is_sent_with_the_seconds_that_are_left() -> None:
    requests = TimerRequests()
    after(requests, "a", 60, now=100.0)
    after(requests, "b", 10, now=100.0)
    assert [frame[2] for frame in told(requests, now=101.0)] == [59.0, 9.0]
    requests.link_lost()
    assert [frame[2] for frame in told(requests, now=130.0)] == [30.0, MIN_AFTER_S]
    after(requests, "c", MAX_AFTER_S, now=130.0)
    assert [frame[2] for frame in told(requests, now=129.9)] == [MAX_AFTER_S]


def test_a_timer_without_room_is_sent_again_with_the_seconds_that_are_left() -> None:
    requests = TimerRequests()
    after(requests, "a", 60, payload="p")
    told(requests)
    for now in (1.0, 20.0):  # as often as need be
        requests.postpone("a")
        assert not requests.has_unsent  # it is in no hurry
        assert told(requests, now) == []
        assert told(requests, now + POSTPONED_S - 0.01) == []
        left_s = 60 - now - POSTPONED_S
        assert told(requests, now + POSTPONED_S) == [
            ("after", "a", left_s, {"payload": "p"})
        ]
    settle(requests)
    assert (requests.pending, requests.unconfirmed) == (0, 0)


def test_waiting_commands_are_bounded_and_may_always_be_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("liveness.client.timer_requests.MAX_REQUESTS", 100)
    requests = TimerRequests()
    for n in range(100):
        requests.cancel(str(n), None)
    with pytest.raises(ReportError, match="timer requests wait"):
        after(requests, "one more")
    requests.done("a", 1, None)
    assert (requests.pending, requests.dropped) == (100, 1)
    after(requests, "0")
    told(requests)
    with pytest.raises(ReportError, match="timer requests wait"):
        requests.cancel("told is not confirmed", None)
    settle(requests)
    after(requests, "one more")
    requests.done("a", 1, None)
    assert requests.dropped == 1


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
