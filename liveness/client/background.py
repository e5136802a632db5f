"""Runs the event loop in a thread, for programs without one, and refuses forked copies.

A class for threads has the methods of the one for event loops: `waits` makes each from an
async one.
"""

import ctypes
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from threading import Lock
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar
from weakref import WeakSet

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from liveness.errors import ReportError

P = ParamSpec("P")
T = TypeVar("T")

_unforked: Final[WeakSet[Any]] = WeakSet()


@contextmanager
def background_loop() -> Iterator[tuple[BlockingPortal, ExitStack]]:
    """An event loop in a thread, for a block; contexts on the stack are left before it ends.

    In a child that was forked in the block nothing is left: the thread is its parent's, and
    waiting for it to end would take for ever.
    """
    own_process = os.getpid()
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal("asyncio", name="liveness"))
        try:
            yield portal, stack
        finally:
            if os.getpid() != own_process:  # keep it even beyond Python's own end
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(stack.pop_all()))


def waits(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """The method of a `Threaded` class that waits for *method* of its `_target`."""

    @wraps(method)
    def wait(made: Any, /, *args: P.args, **options: P.kwargs) -> T:
        result: T = made._wait(partial(method, made._target, *args, **options))
        return result

    return wait


class Threaded:
    """The base of classes for threads: runs `_target` in the thread of a portal."""

    def __init__(self, target: Any, portal: BlockingPortal) -> None:
        self._target = target
        self._portal = portal
        refuse_after_fork(self)

    @property
    def _is_closed(self) -> bool:
        return bool(self._target.is_closed)

    def _wait(self, wait: Callable[[], Awaitable[T]]) -> T:
        try:
            return self._portal.call(wait)
        except RuntimeError:  # there is no thread, or it is this one
            if not self._is_closed:
                raise
        raise anyio.ClosedResourceError("its context was left")


class ThreadedWatch(Threaded, Generic[T]):
    """A `Watch` or `ClusterWatch` in a thread, for one loop at a time."""

    def __init__(self, watch: Any, portal: BlockingPortal) -> None:
        super().__init__(watch, portal)
        self._lock = Lock()  # of the loop

    def batches(self) -> Iterator[T]:
        """Iterate over lists of what has arrived; see `batches` of the watch."""
        while True:
            with self._lock:
                try:
                    batch: T = self._next(self._target._next_batch)
                except StopIteration:
                    return
            yield batch

    def _next(self, wait: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return self._wait(wait)
        except (StopAsyncIteration, anyio.ClosedResourceError):
            raise StopIteration from None


# --- forks ------------------------------------------------------------------------------


def refuse_after_fork(made: object) -> None:
    """Have every use of *made* in a forked child raise a `ReportError`.

    The child has a copy, but neither its event loop nor its thread: reports would be
    collected and never sent, and a watch would read from its parent's socket. This costs
    the parent nothing, as the child changes the class of the copy.
    """
    _unforked.add(made)


def _after_in_child() -> None:
    parent = os.getppid()

    def refuse(made: object, name: str) -> Any:
        if name.startswith("__"):  # `isinstance`, for one, looks these up
            return object.__getattribute__(made, name)
        raise ReportError(
            f"{name}: this was made before a fork, in process {parent}, and process "
            f"{os.getpid()} has no link; call connect or watch in each worker after the "
            'fork, with a name a worker, such as name=f"gw-1:{worker}"'
        )

    for made in _unforked:
        refusing = {"__getattribute__": refuse, "__slots__": ()}
        made.__class__ = type("Forked", (type(made),), refusing)
    _unforked.clear()


os.register_at_fork(after_in_child=_after_in_child)
