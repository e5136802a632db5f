"""What is said of a promise that was not kept."""

from typing import Final, NamedTuple

# The number of what belongs to no single promise.
NO_PROMISE: Final = 0


class Breach(NamedTuple):
    """The number of a promise, and what broke it."""

    promise: int
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.what}"
