"""Situations that runs come into, counted by name: what no run ever meets is not tested.

A name is written once, where the situation is noticed. So all that there are can be read
from the code, and those that were never reached can be listed.

Source:
    The "sometimes" assertions of Antithesis, and `CODE_PROBE` of FoundationDB.
"""

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ONE_HOST: Final = ("core", "storage", "client", "outlets")
CLUSTER: Final = "cluster"
AREAS: Final = (*ONE_HOST, CLUSTER)

_counts = Counter[str]()


def reached(name: str) -> None:
    """Count a situation.

    Args:
        name: A literal, so that it is found in the code. It begins with its area, as in
            "core: ..."; or "core, rarely: ...", if some hundred runs may do without it
            and only a night reaches it.
    """
    _counts[name] += 1


def reached_of(found: Mapping[str, object]) -> None:
    """Count those of these situations that there are, by what is true of each."""
    _counts.update(name for name, is_there in found.items() if is_there)


@contextmanager
def noted() -> Iterator[Counter[str]]:
    """The situations reached inside, and how often."""
    _counts.clear()
    yield _counts


@dataclass(slots=True)
class Tally:
    """What many runs came into, all together, of these areas."""

    areas: Collection[str]
    seeds: list[int] = field(default_factory=list)
    virtual_s: float = 0.0
    reached: Counter[str] = field(default_factory=Counter)  # in how many runs

    def add(self, seed: int, reached: Iterable[str], lasted_s: float) -> None:
        self.seeds.append(seed)
        self.virtual_s += lasted_s
        self.reached.update({*reached})

    def never_reached(self, *, include_rare: bool) -> list[str]:
        """Situations that no run came into; those that are rare only if asked for."""
        return [
            name
            for name in all_named()
            if _area_of(name)[0] in self.areas
            and (include_rare or not _area_of(name)[1])
            and not self.reached[name]
        ]

    def __str__(self) -> str:
        return "\n".join(
            [
                *(f"{count:6} {name}" for name, count in sorted(self.reached.items())),
                *(f"never  {name}" for name in self.never_reached(include_rare=True)),
                f"seeds {min(self.seeds)} to {max(self.seeds)}: "
                f"{self.virtual_s / 3600:.2f} virtual hours, all promises kept",
            ]
        )


def _area_of(name: str) -> tuple[str, bool]:
    area, _, rarely = name.partition(":")[0].partition(", ")
    assert area in AREAS, f"{name!r}: no area"
    return area, bool(rarely)


def all_named(folder: Path = Path(__file__).parent) -> list[str]:
    names = dict[str, None]()
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id == "reached":
                names[ast.literal_eval(node.args[0])] = None
            elif node.func.id == "reached_of":
                assert isinstance(node.args[0], ast.Dict)
                for key in node.args[0].keys:
                    names[ast.literal_eval(key or "")] = None
    return [*names]
