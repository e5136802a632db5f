"""Refuses the use of a sidecar in a child of the process that has connected it.

After `os.fork` the child has a copy of the `Sidecar`, but neither its event loop nor its
thread: reports would be collected and never sent. So in the child every use of the copy
raises an error. The check costs the parent nothing: the child changes the classes of its
copies.
"""

import ctypes
import os
from typing import Any, Final, NoReturn
from weakref import WeakSet

from liveness.errors import ReportError

# By class, the class of its copies in a child.
_classes_in_child: Final[dict[type, type]] = {}
_made: Final[WeakSet[Any]] = WeakSet()
_connected_in = 0  # the process that has connected the copies in this one


def refuse_after_fork(made: object) -> None:
    """Have every use of *made* in a forked child raise a `ReportError`."""
    own = type(made)
    if own not in _classes_in_child:
        namespace = {"__getattribute__": _refuse, "__slots__": ()}
        _classes_in_child[own] = type(own.__name__, (own,), namespace)
    _made.add(made)


def leak(value: object) -> None:
    """Keep *value* until the process has ended, and longer than Python's own end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _refuse(made: object, name: str) -> object:
    if name.startswith("__") and name.endswith("__"):  # `isinstance` and the like
        return object.__getattribute__(made, name)
    return _raise_forked(name)


def _raise_forked(name: str) -> NoReturn:
    raise ReportError(
        f"{name}: this sidecar was connected before a fork, in process {_connected_in}, "
        f"and process {os.getpid()} has no link; call connect in each worker after the "
        'fork, with a name a worker, such as name=f"gw-1:{worker}"'
    )


def _after_in_child() -> None:
    global _connected_in
    if _made:
        _connected_in = os.getppid()
    for made in _made:
        made.__class__ = _classes_in_child[type(made)]
    _made.clear()


os.register_at_fork(after_in_child=_after_in_child)
