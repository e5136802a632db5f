"""Situations that runs come into, counted by name: what no run ever meets is not tested.

A name is written once, where the situation is noticed. So all that there are can be read
from the code, and those that were never reached be told.

Source:
    The "sometimes" assertions of Antithesis, and `CODE_PROBE` of FoundationDB.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

AREAS: Final = ("core", "storage", "client", "outlets", "cluster")

_counts = Counter[str]()


def reached(name: str, *, rarely: bool = False) -> None:
    """Count a situation. The name begins with its area, as in "core: ...".

    Args:
        name: A literal, so that it is found in the code.
        rarely: Some hundred runs may do without it, and only a night reaches it.
    """
    _counts[name] += 1


@contextmanager
def noted() -> Iterator[Counter[str]]:
    """What is reached inside, and how often."""
    _counts.clear()
    yield _counts


def all_named(folder: Path = Path(__file__).parent) -> dict[str, bool]:
    """Every name in the code, and whether some hundred runs must reach it."""
    names = dict[str, bool]()
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            if not (isinstance(node.func, ast.Name) and node.func.id == "reached"):
                continue
            name = ast.literal_eval(node.args[0])
            area = name.partition(":")[0]
            assert area in AREAS, f"{path}:{node.lineno}: {name!r}: no area"
            names[name] = names.get(name, True) and not node.keywords
    return names
