"""Chooses between the compiled implementation and the reference, in pure Python.

The wheel, the reader of frames and the batch of records exist twice, in Python and in
Cython, and behave the same; the reference is slower. The compiled ones are used if all can
be loaded, otherwise none of them.

The choice is made once, at import. The core reads no environment, so the classes are
passed to it.
"""

import os
from importlib import import_module
from typing import Final

from liveness.config.schema import shown
from liveness.errors import ConfigError

PURE_WHEEL: Final = "LIVENESS_PURE_WHEEL"

_COMPILED: Final = (
    "liveness.core.wheel._table",
    "liveness.core.wheel._restart",
    "liveness.core.wheel._record_columns",
    "liveness.core.wheel._wheel_layers",
    "liveness.core.wheel._timing_wheel",
    "liveness.core.wheel._wheel",
    "liveness.core.wire._wire",
    "liveness.core.wheel._records",
)
_REMEDY: Final = (
    "apt install gcc python3-dev, then install liveness again (in a clone: make setup)"
)


def _why_reference(chosen: str) -> str:
    """Why the compiled modules are not used, and what to do about it; "" if they are.

    Raises:
        ConfigError: *chosen*, from the environment, is not a valid choice.
    """
    if chosen not in ("", "0", "1"):
        raise ConfigError(
            f"{PURE_WHEEL} is {shown(chosen)} (environment): it must be 0 or 1 (1: the "
            "reference wheel, though there is a compiled one)"
        )
    if chosen == "1":
        return f"{PURE_WHEEL} is set"
    try:
        for module in _COMPILED:
            import_module(module)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name in _COMPILED:
            return f"it was not compiled for this Python; {_REMEDY}"
        return f"the compiled modules cannot be loaded ({error}); {_REMEDY}"
    return ""


WHY_PURE_PYTHON: Final = _why_reference(os.environ.get(PURE_WHEEL, ""))
"""Why the reference is used, and what to do about it; "" with the compiled wheel."""

WHEEL: Final = "reference" if WHY_PURE_PYTHON else "compiled"

if WHY_PURE_PYTHON:
    from liveness.core.wheel.record_batch import RecordBatch
    from liveness.core.wheel.restart import SessionRestorer
    from liveness.core.wheel.wheel import Wheel
    from liveness.core.wire.framing import Reader
else:
    from liveness.core.wheel._records import RecordBatch
    from liveness.core.wheel._restart import SessionRestorer
    from liveness.core.wheel._wheel import Wheel
    from liveness.core.wire._wire import Reader

__all__ = [
    "PURE_WHEEL",
    "WHEEL",
    "WHY_PURE_PYTHON",
    "Reader",
    "RecordBatch",
    "SessionRestorer",
    "Wheel",
]
