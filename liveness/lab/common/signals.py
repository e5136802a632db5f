"""Ends a command that runs in trio by a signal, so that it cleans up."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import trio

from liveness.errors import LivenessError

T = TypeVar("T")


class Stopped(LivenessError):
    """The command was ended by a signal. Everything is cleaned up."""


async def until_signal(run: Callable[[], Awaitable[T]]) -> T:
    """Run to the end, or until a signal.

    It is raised from a task: Python would raise KeyboardInterrupt anywhere.

    Raises:
        Stopped: By SIGTERM or SIGHUP.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored under nohup
        numbers.append(signal.SIGHUP)
    with trio.open_signal_receiver(*numbers) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_raise_first, signals)
            result = await run()
            nursery.cancel_scope.cancel()
    return result


async def _raise_first(signals: AsyncIterator[int]) -> None:
    number = await anext(signals)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Stopped(f"ended by {signal.Signals(number).name}")
