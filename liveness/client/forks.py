"""Refuses the use of a sidecar or a watch in a forked child of the process that made it.

After `os.fork` the child has a copy of the `Sidecar`, but neither its event loop nor its
thread: reports would be collected and never sent. The copy of a `Watch` has its parent's
name, and would read from its parent's socket. So every use of a copy in the child raises an
error. This costs the parent nothing: the child changes the classes of its copies.
"""

import ctypes
import os
from typing import Any, Final, NoReturn
from weakref import WeakSet

from liveness.errors import ReportError

# By class: the class of its copies in a child.
_classes_in_child: Final[dict[type, type]] = {}
# For `refuse_after_fork`.
CONNECT: Final = (
    "call connect in each worker after the fork, with a name a worker, such as "
    'name=f"gw-1:{worker}"'
)
WATCH: Final = "call watch in each worker after the fork, and give no two the same name"
_made: Final[WeakSet[Any]] = WeakSet()
_made_in = 0  # the process that made the originals


def refuse_after_fork(made: object, remedy: str) -> None:
    """Have every use of *made* in a forked child raise a `ReportError`.

    The remedy is advice for the error, the same for all objects of this class.
    """
    own = type(made)
    if own not in _classes_in_child:

        def refuse(made: object, name: str) -> object:
            if name.startswith("__") and name.endswith(
                "__"
            ):  # used by `isinstance` and the like
                return object.__getattribute__(made, name)
            return _raise_forked(name, remedy)

        namespace = {"__getattribute__": refuse, "__slots__": ()}
        _classes_in_child[own] = type(own.__name__, (own,), namespace)
    _made.add(made)


def leak(value: object) -> None:
    """Keep *value* until the process has ended, and longer than Python's own end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _raise_forked(name: str, remedy: str) -> NoReturn:
    raise ReportError(
        f"{name}: this was made before a fork, in process {_made_in}, and process "
        f"{os.getpid()} has no link; {remedy}"
    )


def _after_in_child() -> None:
    global _made_in
    if _made:
        _made_in = os.getppid()
    for made in _made:
        made.__class__ = _classes_in_child[type(made)]
    _made.clear()


os.register_at_fork(after_in_child=_after_in_child)
