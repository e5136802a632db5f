"""Functions of the event loop, of trio or asyncio, for the client library."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident


def loop_call_soon() -> Callable[[Callable[[], object]], None]:
    """Return a function that has this event loop call another; for use in any thread."""
    own_thread = get_ident()
    trio = sys.modules.get("trio")
    soon: Callable[[Callable[[], object]], object]
    if trio is not None and trio.lowlevel.in_trio_run():
        soon = trio.lowlevel.current_trio_token().run_sync_soon
    else:
        soon = sys.modules["asyncio"].get_running_loop().call_soon_threadsafe

    def call_soon(function: Callable[[], object]) -> None:
        if get_ident() == own_thread:
            function()
            return
        with suppress(RuntimeError):  # the loop has ended, and the link with it
            soon(function)

    return call_soon


def loop_clock() -> Callable[[], float]:
    """The event loop's own clock. One call is cheaper than `anyio.current_time`."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        clock: Callable[[], float] = trio.lowlevel.current_clock().current_time
        return clock
    return time.monotonic
