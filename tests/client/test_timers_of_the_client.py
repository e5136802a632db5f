"""Timers of `liveness.connect` and `connect_sync`, against a sidecar that a test plays."""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.from_thread
import pytest
import trio
from trio.testing import MockClock

import liveness
from liveness.client.task_runner import LAST_S
from tests.helpers.peer import SOON_S, Link, Peer, listening, timer

Linked = tuple[liveness.Sidecar, Link]

SHORT_S: Final = 0.05  # a run timeout that is to be met


@asynccontextmanager
async def linking(peer: Peer, **welcome: Any) -> AsyncIterator[Linked]:
    """A gateway and its link, which is read when the gateway leaves."""
    async with (
        anyio.create_task_group() as tasks,
        liveness.connect(peer.path, name="gw-1") as sidecar,
    ):
        link = await peer.link(**welcome)
        yield sidecar, link
        tasks.start_soon(link.drain)


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    async with listening(tmp_path / "s") as peer:
        yield peer


@pytest.fixture
async def linked(peer: Peer) -> AsyncIterator[Linked]:
    async with linking(peer) as linked:
        yield linked


async def answers(link: Link, count: int) -> list[tuple[Any, ...]]:
    """The next *count* answers: name, key, message, options."""
    return [tuple(await link.next("done", "fail")) for _ in range(count)]


async def test_flush_raises_while_the_sidecar_has_no_room_for_a_timer(
    autojump_clock: MockClock, linked: Linked, caplog: pytest.LogCaptureFixture
) -> None:
    no_room = {"code": "too-many-timers", "message": "full", "fatal": False, "n": 2}

    sidecar, link = linked
    sidecar.after("a", 60)
    link.is_answering = False
    await link.next("after")
    await link.send(["error", no_room | {"frame": "after", "key": "a"}])
    link.is_answering = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.next, "after")
        with pytest.raises(liveness.ReportError, match="no room for 1 timers"):
            await sidecar.flush()
    # Sent again, and now accepted.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.next, "login")
        await sidecar.flush()
        sidecar.login("u")
    assert sidecar.stats().refused == 0

    assert "timers wait until the sidecar has room for them: full" in caplog.text


# Some of it mypy would not let anyone ask for: those who do not use it still may.
BAD: Final[dict[str, Callable[[liveness.Sidecar], object]]] = {
    "no time": lambda sidecar: sidecar.after("a", 0),
    "a cancel of nothing": lambda sidecar: sidecar.cancel(),
    "a task of a number": lambda sidecar: sidecar.task(7)(print),  # type: ignore[call-overload]
    "a task that is none": lambda sidecar: sidecar.task("a")(7),  # type: ignore[type-var]
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_argument_raises_at_the_call_and_nothing_is_sent(
    linked: Linked, what: str
) -> None:
    sidecar, _ = linked
    with pytest.raises(liveness.ReportError):
        BAD[what](sidecar)
    assert sidecar.stats().pending == 0


async def nothing(_timer: liveness.Timer) -> None:
    """An async task with nothing to say."""


WORKS: Final[list[tuple[Callable[[liveness.Timer], Any], str | None]]] = [
    (nothing, None),
    (lambda one: one.payload, "p"),
    (lambda _one: 7, None),  # its work is done all the same
]


@pytest.mark.parametrize(("work", "message"), WORKS)
async def test_the_return_value_of_a_task_is_the_message_of_done(
    linked: Linked, work: Callable[[liveness.Timer], Any], message: str | None
) -> None:
    sidecar, link = linked
    assert sidecar.task(work) is work
    await link.fire(timer(1, "a", payload="p", ext="e", attempt=2))
    assert await answers(link, 1) == [("done", "a", message, {"seq": 1})]


def raising(error: Exception) -> Callable[[liveness.Timer], Any]:
    def fail(_timer: liveness.Timer) -> None:
        raise error

    return fail


FAILURES: Final[list[tuple[Exception, str, dict[str, Any]]]] = [
    (ValueError("no such order"), "ValueError: no such order", {}),
    (StopIteration(), "RuntimeError: ", {}),
    (liveness.TaskFailed("never"), "never", {"final": True}),
    (liveness.TaskFailed("later", final=False), "later", {}),
]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("error", "message", "options"), FAILURES, ids="{!a:.15}".format
)
async def test_a_task_that_raises_fails_its_timer(
    linked: Linked,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    message: str,
    options: dict[str, Any],
    is_async: bool,
) -> None:
    fail = raising(error)

    async def fail_async(one: liveness.Timer) -> None:
        fail(one)

    sidecar, link = linked
    sidecar.task("a")(fail_async if is_async else fail)
    sidecar.task(nothing)
    await link.fire(timer(1, "a"))
    ((name, key, told, what),) = await answers(link, 1)
    assert (name, key, what) == ("fail", "a", {"seq": 1} | options)
    assert told.startswith(message)
    await link.fire(timer(2, "b"))
    assert await answers(link, 1) == [("done", "b", None, {"seq": 2})]

    (line,) = [line for line in caplog.messages if "task of timer" in line]
    assert line.startswith("gw-1: the task of timer 'a' (attempt 1) failed")


async def test_a_plain_task_that_returns_an_awaitable_has_failed(
    linked: Linked,
) -> None:
    sidecar, link = linked
    made = list[Any]()

    @sidecar.task
    def forgetful(one: liveness.Timer) -> Any:
        made.append(nothing(one))
        return made[0]

    await link.fire(timer(1, "a"))
    ((name, _key, message, _what),) = await answers(link, 1)
    assert name == "fail"
    assert "make the task async" in message
    made[0].close()


async def test_an_async_task_that_takes_too_long_is_cancelled_and_has_failed(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    ended = list[str]()
    async with linking(peer, run_timeout=SHORT_S) as (sidecar, link):

        @sidecar.task(at_once=1)
        async def hang(one: liveness.Timer) -> None:
            try:
                if one.key == "a":
                    await anyio.sleep_forever()
            finally:
                ended.append(one.key)

        await link.fire(timer(1, "a"), timer(2, "b"))
        assert await answers(link, 2) == [
            ("fail", "a", "no answer within 0.05 s", {"seq": 1}),
            ("done", "b", None, {"seq": 2}),
        ]
    assert ended == ["a", "b"]
    assert "no answer within 0.05 s" in caplog.text


async def test_a_plain_task_that_takes_too_long_keeps_its_place_and_its_result_counts(
    peer: Peer,
) -> None:
    started, go_on = threading.Event(), threading.Event()
    async with linking(peer, run_timeout=SHORT_S) as (sidecar, link):

        @sidecar.task(at_once=2)
        def hang(one: liveness.Timer) -> str:
            if one.seq == 1:
                started.set()
                assert go_on.wait(SOON_S)
            return "at last"

        await link.fire(timer(1, "a"))
        await anyio.to_thread.run_sync(started.wait, SOON_S)
        await anyio.sleep(2 * SHORT_S)
        # The next attempt waits for it; others do not.
        await link.fire(timer(2, "a", attempt=2), timer(3, "b"))
        assert (await link.next("done"))[1:] == ["b", "at last", {"seq": 3}]
        go_on.set()
        for seq in (1, 2):
            assert (await link.next("done"))[1:] == ["a", "at last", {"seq": seq}]


async def test_on_leaving_tasks_may_end_or_are_given_up_and_all_are_answered(
    peer: Peer, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    started, leave, has_left = trio.Event(), trio.Event(), trio.Event()
    go_on = threading.Event()

    async def serve() -> None:
        async with liveness.connect(peer.path, name="gw-1") as sidecar:

            @sidecar.task
            async def work(one: liveness.Timer) -> str:
                if one.key == "hangs":
                    started.set()
                    await trio.sleep_forever()
                await leave.wait()
                return "ended"

            sidecar.task("never returns")(lambda _one: go_on.wait(SOON_S))
            await leave.wait()
        has_left.set()

    nursery.start_soon(serve)
    link = await peer.link()
    await link.fire(timer(1, "ends"), timer(2, "never returns"), timer(3, "hangs"))
    await link.acks(3)
    await started.wait()
    leave.set()
    why = "its gateway stopped meanwhile"
    assert sorted(await answers(link, 3), key=str) == [
        ("done", "ends", "ended", {"seq": 1}),
        ("fail", "hangs", why, {"seq": 3}),
        ("fail", "never returns", why, {"seq": 2}),
    ]
    await link.next("ping")
    with trio.fail_after(SOON_S / 2 + LAST_S):
        await has_left.wait()
    go_on.set()
    assert "was cut short" in caplog.text


def test_tasks_run_in_threads_and_may_ask_for_timers_themselves(tmp_path: Path) -> None:
    main = threading.current_thread()
    with (
        anyio.from_thread.start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(listening(tmp_path / "s")) as peer,
        liveness.connect_sync(peer.path, name="gw-1") as sidecar,
    ):
        call = portal.call
        link = call(peer.link)

        @sidecar.task("a", at_once=2)
        def again(one: liveness.Timer) -> str:
            assert threading.current_thread() is not main
            sidecar.after("next", 60)
            sidecar.cancel("other")
            sidecar.login("ada", conn=1)
            return f"was {one.payload}"

        @sidecar.task
        def fail(_timer: liveness.Timer) -> None:
            raise ValueError("mine")

        call(link.fire, timer(1, "a", payload="p"), timer(2, "b"))
        told = {answer[1]: answer[::2] for answer in call(answers, link, 2)}
        assert told == {"a": ("done", "was p"), "b": ("fail", "ValueError: mine")}
        assert sidecar.stats().open == 1


def test_threads_cannot_have_async_tasks(tmp_path: Path) -> None:
    with liveness.connect_sync(tmp_path / "none", name="gw-1") as sidecar:
        for register in (sidecar.task, sidecar.task("a")):
            with pytest.raises(liveness.ReportError, match="is async"):
                register(nothing)
