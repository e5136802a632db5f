"""Histories for judges, as lines of text: what happens, and which faults that has."""

from abc import ABC, abstractmethod
from typing import Any


def histories(text: str, **parts: str) -> dict[str, tuple[str, list[str]]]:
    """By name: a script, and the faults that a judge has to find in it.

    A line is `NAME: SCRIPT => FAULT, FAULT`, and goes on where the next one is indented.
    `{PART}` in it is one of *parts*, which may have others in them.
    """
    found = {}
    for line in text.strip().replace("\n    ", " ").splitlines():
        while "{" in line:
            line = line.format(**parts)
        name, _, rest = line.partition(": ")
        script, _, faults = rest.partition(" => ")
        found[name] = (script, faults.split(", ") if faults else [])
    return found


class Player(ABC):
    """Plays a script such as "100 joins ann, 112", from 100 s on, to a judge.

    A step is a method of this, or else one of the judge. Between the steps the judge looks
    ten times a second for what is missing.
    """

    judge: Any
    _next_tenth = 1_000

    def run(self, script: str) -> list[str]:
        """Plays it; the faults so far."""
        for step in script.split(", "):
            at, *words = step.split()
            while self._next_tenth <= int(float(at) * 10):
                self.write(self._next_tenth / 10)
                self.look(self._next_tenth / 10)
                self._next_tenth += 1
            if words and hasattr(self, words[0]):
                getattr(self, words[0])(float(at), *words[1:])
            elif words:
                getattr(self.judge, words[0])(*words[1:], float(at))
        faults = self.judge.faults
        assert faults.counts.total() == len(faults.listed)
        return [f"{fault.kind} {fault.who}" for fault in faults.listed]

    def look(self, at: float) -> None:
        self.judge.check_overdue(at)

    @abstractmethod
    def write(self, at: float) -> None:
        """Have the users write that are to go on writing."""
