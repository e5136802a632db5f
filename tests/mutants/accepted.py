"""Mutations that no test can notice, or need not, each with the reason: accepted.toml."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.operators import Mutation

PATH = Path("tests", "mutants", "accepted.toml")


@dataclass(frozen=True, slots=True)
class Accepted:
    """By what a mutation is known, whatever its line, and why it may survive."""

    file: str
    function: str
    operator: str
    text: str
    why: str

    def covers(self, file: str, mutation: Mutation) -> bool:
        known = (self.file, self.function, self.operator, self.text)
        return known == (file, mutation.function, mutation.operator, mutation.text)


def accepted(root: Path) -> list[Accepted]:
    """All entries of a project.

    Raises:
        TypeError: An entry lacks a key, or has one too many.
    """
    text = (root / PATH).read_text(encoding="utf-8")
    return [Accepted(**entry) for entry in tomllib.loads(text).get("accepted", [])]


def outdated(
    entries: Iterable[Accepted], mutations: Iterable[tuple[str, Mutation]]
) -> list[Accepted]:
    """The entries that cover none of these mutations: the code has changed."""
    known = {(file, it.function, it.operator, it.text) for file, it in mutations}
    return [
        entry
        for entry in entries
        if (entry.file, entry.function, entry.operator, entry.text) not in known
    ]
