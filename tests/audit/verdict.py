"""What one part of the audit has found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """The checked items, and their faults.

    Attributes:
        about: A line about the checked items, and their number.
        faults: A line for each thing that is wrong, which says what to do; none if
            nothing is.
        list: What a person may want to read all the same.
    """

    about: str
    faults: tuple[str, ...] = ()
    list: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self.about, *(f"  {line}" for line in self.list)]
        return "\n".join([*lines, *(f"  FAULT: {line}" for line in self.faults)])
