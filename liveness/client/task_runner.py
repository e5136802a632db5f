"""Runs a gateway's link, and its tasks for fired timers, and ends them in order."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from inspect import isawaitable, iscoroutinefunction
from traceback import format_exception_only
from typing import Any, Final, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
from anyio.lowlevel import checkpoint

from liveness.client.dialer import logger
from liveness.client.reconnecting_link import LinkState, ReconnectingLink
from liveness.client.tasks import AttemptQueue, Timer
from liveness.errors import ReportError, TaskFailed

F = TypeVar("F", bound=Callable[[Timer], object])


# When `connect` is left: time for running tasks to end, and then as long again for the
# last reports, as the sidecar may not be reading just then.
LAST_S: Final = 1.0


class TaskRunner:
    """The tasks of one gateway, and the workers that call them.

    A worker is a trio or asyncio task. It runs one attempt after the other until the
    queue is empty.

    Attributes:
        workers: Where workers run; none is started before this is set.
        is_stopping: Whether to start no more attempts.
    """

    def __init__(self, link: ReconnectingLink) -> None:
        self._link = link
        self._client = link.client
        self.workers: anyio.abc.TaskGroup | None = None
        self.is_stopping = False
        self._busy = 0  # the number of workers

    def add(self, function: F, prefix: str, at_once: int) -> F:
        if not callable(function):
            raise ReportError(
                f"{function!r:.80} is not a function; a timer has to call it"
            )
        with self._link.lock:
            self._client.tasks.add_task(prefix, at_once, function)
        self._link.call_soon(self.start_workers)
        return function

    async def wait_idle(self) -> None:
        await self._link.wait_until(lambda: not self._busy)

    def start_workers(self) -> None:
        """Start a worker for each attempt that may run now."""
        if self.workers is None:
            return
        for queue in self._client.tasks.queues:
            while (timer := self._next_of(queue)) is not None:
                self._busy += 1
                self.workers.start_soon(self._work, queue, timer)

    def _next_of(self, queue: AttemptQueue) -> Timer | None:
        with self._link.lock:
            return None if self.is_stopping else queue.take()

    async def _work(self, queue: AttemptQueue, timer: Timer | None) -> None:
        try:
            while timer is not None:
                try:
                    await self._call(queue.function, timer)
                finally:
                    with self._link.lock:
                        queue.ended(timer)
                await checkpoint()  # the task may have no checkpoint
                timer = self._next_of(queue)
        finally:
            self._busy -= 1
            if not self._busy:
                self._link.notify_waiters()  # `wait_idle`

    async def _call(self, function: Any, timer: Timer) -> None:
        try:
            if is_async(function):
                returned = await self._call_async(function, timer)
            else:
                # The sidecar fires the timer again after the run timeout, and the result
                # counts even then.
                returned = await anyio.to_thread.run_sync(
                    _call_plain,
                    function,
                    timer,
                    abandon_on_cancel=True,  # when the gateway stops
                    limiter=anyio.CapacityLimiter(1),  # the task's queue is the limit
                )
            with self._link.lock:
                self._client.done(
                    timer, returned if isinstance(returned, str) else None
                )
        except TaskFailed as failure:
            self._log(timer, f"failed: {failure}")
            self._fail(timer, str(failure), final=failure.final)
        except Exception as error:
            self._log(timer, "failed", error)
            self._fail(timer, "".join(format_exception_only(error)).strip())
        except BaseException:  # it was cancelled, or the program ends
            self._log(timer, "was cut short: its gateway stops")
            self._fail(timer, "its gateway stopped meanwhile")
            raise
        finally:
            self._link.write_soon()

    def _fail(self, timer: Timer, message: str, *, final: bool = False) -> None:
        with self._link.lock:
            self._client.fail(timer, message, final=final)

    async def _call_async(self, function: Any, timer: Timer) -> object:
        assert self._client.welcome is not None  # no timer fires before it
        limit_s = self._client.welcome.run_timeout
        with anyio.move_on_after(limit_s) as scope:
            returned: object = await function(timer)
        if scope.cancelled_caught:
            raise TaskFailed(f"no answer within {limit_s:g} s", final=False)
        return returned

    def _log(self, timer: Timer, what: str, error: Exception | None = None) -> None:
        line = "%s: the task of timer %r (attempt %d) %s"
        name = self._client.name
        logger.warning(line, name, timer.key, timer.attempt, what, exc_info=error)


@asynccontextmanager
async def running(link: ReconnectingLink, tasks: TaskRunner) -> AsyncIterator[None]:
    """Run them until the context is left, then write the last reports."""
    only: BaseException | None = None
    try:
        async with anyio.create_task_group() as group:
            tasks.workers = group
            group.start_soon(link.run, tasks.start_workers)
            try:
                yield
            finally:
                tasks.is_stopping = True
                with anyio.move_on_after(LAST_S, shield=True):
                    await tasks.wait_idle()
                group.cancel_scope.cancel()  # the link is shielded from it
                with anyio.move_on_after(LAST_S, shield=True):
                    await tasks.wait_idle()  # cancelled tasks answer their timers
                    await _flush_rest(link)
                link.close()
    except BaseExceptionGroup as errors:
        # The task group is internal: raise a single error as it is.
        if len(errors.exceptions) > 1:
            raise
        only = errors.exceptions[0]
    if only is not None:
        raise only


async def _flush_rest(link: ReconnectingLink) -> None:
    client = link.client
    is_pending = link.is_urgent or client.reports.pending
    is_shut_out = link.state in (LinkState.REFUSED, LinkState.REPLACED)
    if not is_shut_out and (is_pending or client.is_linked):
        # The link was closed, or the sidecar has no room for timers, which was logged.
        with suppress(anyio.ClosedResourceError, ReportError):
            await link.flush()


def is_async(function: Callable[..., object]) -> bool:
    """Whether *function* is async, or an object whose `__call__` is."""
    call = getattr(function, "__call__", None)  # noqa: B004 - inspected, not called
    return iscoroutinefunction(function) or iscoroutinefunction(call)


def _call_plain(function: Callable[[Timer], object], timer: Timer) -> object:
    returned = function(timer)
    if isawaitable(returned):  # nothing has run yet
        raise TypeError(
            f"{returned!r:.80} was returned and is never awaited; make the task async"
        )
    return returned
