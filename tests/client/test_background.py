"""The classes for threads offer what those for event loops do, with the same words."""

import inspect
from types import FunctionType

import pytest

import liveness

# Only for event loops.
ASYNC_ONLY = {"aclose"}
# What classes for threads write themselves, or do not need.
OWN = {
    "Sidecar": {"ended"},
    "Watch": {"batches", "is_closed", "take"},
    "ClusterWatch": {"batches", "finish", "has_event", "is_closed", "take"},
}


@pytest.mark.parametrize(
    ("loop", "threaded"),
    [
        (liveness.Sidecar, liveness.SyncSidecar),
        (liveness.Watch, liveness.SyncWatch),
        (liveness.ClusterWatch, liveness.SyncClusterWatch),
    ],
)
def test_a_class_for_threads_has_the_methods_of_the_one_for_loops(
    loop: type, threaded: type
) -> None:
    names = {name for name in dir(loop) if not name.startswith("_")} - ASYNC_ONLY
    names -= OWN[loop.__name__] - {*dir(threaded)}
    for name in names:
        method, sync = getattr(loop, name), getattr(threaded, name)
        if not isinstance(method, FunctionType):
            assert isinstance(sync, property)
        elif name not in OWN[loop.__name__]:
            assert inspect.signature(sync) == inspect.signature(method)
            if name not in {"keepalive", "message"}:
                assert sync.__doc__ == method.__doc__
        assert not inspect.iscoroutinefunction(sync)
