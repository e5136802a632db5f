"""The functions on Redis: their source (`functions.lua`), named by a hash of it.

So sidecars of two versions each call their own functions on one Redis.
"""

import hashlib
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

_SERVER_CLOCK: Final = "local t = call('TIME'); return t[1] * 1000000 + t[2]"


class Functions(NamedTuple):
    """A library of functions."""

    source: str  # for FUNCTION LOAD
    prefix: str  # in front of the name of each function


@cache
def functions(clock: str = _SERVER_CLOCK) -> Functions:
    """The library.

    Args:
        clock: Lua that returns the microseconds now; a simulation has a clock of its own.
    """
    file = resources.files("liveness.cluster") / "functions.lua"
    source = file.read_text(encoding="utf-8").replace("@NOW@", clock)
    digest = hashlib.sha256(source.encode()).hexdigest()[:8]
    prefix = f"lv_{digest}_"
    source = source.replace("@LIBRARY@", f"liveness_{digest}")
    return Functions(source.replace("@PREFIX@", prefix), prefix)
