"""Situations that runs come into, counted by name: what no run ever meets is not tested.

A name is written once, where the situation is noticed. So all that there are can be read
from the code, and those that were never reached be told.

Source:
    The "sometimes" assertions of Antithesis, and `CODE_PROBE` of FoundationDB.
"""

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ONE_HOST: Final = ("core", "storage", "client", "outlets")
AREAS: Final = (*ONE_HOST, "cluster")

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


def never_reached(
    counts: Mapping[str, int], areas: Collection[str], *, though_rare: bool
) -> list[str]:
    """Situations of some areas that are not counted; those that are rare only if asked for."""
    return [
        name
        for name, is_rare in all_named().items()
        if name.partition(":")[0] in areas
        and (though_rare or not is_rare)
        and not counts.get(name)
    ]


def all_named(folder: Path = Path(__file__).parent) -> dict[str, bool]:
    """Every name in the code, and whether it is rare."""
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
            names[name] = names.get(name, True) and bool(node.keywords)
    return names
