"""The packages that the locks pin."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from packaging.markers import Marker
from packaging.utils import NormalizedName, canonicalize_name

_PIN = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?: ; (?P<marker>[^\\\n]+?))? \\$"
)


class Pin(NamedTuple):
    """A package of a lock."""

    name: NormalizedName
    version: str
    marker: str  # for which Pythons; empty: for all

    @property
    def is_for_this_python(self) -> bool:
        return not self.marker or Marker(self.marker).evaluate()


def locks(root: Path) -> list[Path]:
    return sorted(root.glob("requirements/*.lock"))


def pins(locks: Iterable[Path]) -> list[Pin]:
    """Every package that any of the locks pins, once."""
    found = {
        Pin(canonicalize_name(pin["name"]), pin["version"], pin["marker"] or "")
        for lock in locks
        for pin in map(_PIN.match, lock.read_text().splitlines())
        if pin is not None
    }
    return sorted(found)
