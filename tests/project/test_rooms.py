"""Each folder's `__init__.py` says what it may import, and it imports that and no more."""

import ast
import importlib.util
import re
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.tree import ROOT

PACKAGE = ROOT / "liveness"
# What begins the program, and knows every room or none.
START = {"__init__", "__main__"}


class Room(NamedTuple):
    """A folder of the package."""

    name: str
    files: list[Path]
    begins: str  # the text of its `__init__.py`

    def listed(self, what: str) -> set[str]:
        """The names after a word in its comment, as in `# Imports: core, errors.`"""
        found = re.search(rf"^# {what}: (.+?)\.$", self.begins, re.M | re.S)
        assert found, f"{self.name} does not say `# {what}: ….`"
        return set(re.findall(r"[\w.]+", found[1])) - {"nothing"}


def rooms() -> dict[str, Room]:
    """The folders below the package, by name."""
    return {
        name: Room(name, sorted(init.parent.glob("*.py")), init.read_text())
        for init in sorted(PACKAGE.glob("*/**/__init__.py"))
        for name in [".".join(init.parent.relative_to(PACKAGE).parts)]
    }


ROOMS = rooms()
FILES = {path.stem: [path] for path in PACKAGE.glob("*.py") if path.stem not in START}


def imported(path: Path) -> Iterator[str]:
    """Each module or name that a file imports, at its beginning or later."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def place_of(name: str, places: Collection[str]) -> str:
    """The room, or the part, that an imported name of the package lies in."""
    names = name.split(".")[1:]
    while names and ".".join(names) not in places:
        names.pop()
    return ".".join(names)


def parts() -> dict[str, list[Path]]:
    """What may not import itself through others: a room, or each file beside rooms."""
    found = dict(FILES)
    for name, room in ROOMS.items():
        if any(other.startswith(f"{name}.") for other in ROOMS):
            found |= {f"{name}.{path.stem}": [path] for path in room.files}
        else:
            found[name] = room.files
    return found


PARTS = parts()


def neighbours(
    files: list[Path], own: str, places: Collection[str] = (*ROOMS, *FILES)
) -> set[str]:
    """The other places that these files import from."""
    names = {name for path in files for name in imported(path)}
    ours = {name for name in names if name.partition(".")[0] == "liveness"}
    return {place_of(name, places) for name in ours} - {own, ""}


@pytest.mark.parametrize("room", ROOMS.values(), ids=lambda room: room.name)
def test_a_room_imports_what_it_says_and_no_more(room: Room) -> None:
    assert neighbours(room.files, room.name) == room.listed("Imports")


@pytest.mark.parametrize("room", ROOMS.values(), ids=lambda room: room.name)
def test_a_room_never_imports_what_it_says(room: Room) -> None:
    names = {name.partition(".")[0] for path in room.files for name in imported(path)}
    never = room.listed("Never")
    assert not names & never
    assert all(importlib.util.find_spec(name) for name in never)


def test_no_room_imports_itself_through_another() -> None:
    imports = {name: neighbours(files, name, PARTS) for name, files in PARTS.items()}
    TopologicalSorter(imports).prepare()  # raises CycleError


def _is_lab(room: str) -> bool:
    return room.partition(".")[0] == "lab"


def test_only_commands_import_the_laboratory() -> None:
    files = {name: neighbours(paths, name) for name, paths in FILES.items()}
    folders = {name: neighbours(room.files, name) for name, room in ROOMS.items()}
    importing = {
        name
        for name, others in (files | folders).items()
        if not _is_lab(name) and any(map(_is_lab, others))
    }
    assert importing == {"cli"}
