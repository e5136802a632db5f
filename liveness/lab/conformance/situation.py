"""What a situation is, and the list of all of them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from liveness.lab.conformance.stage import Stage

Play: TypeAlias = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Situation:
    """Something that happens to a gateway, and the rules that show in it."""

    name: str
    rules: tuple[int, ...]
    play: Play
    needs_users: bool
    needs_process: bool
    needs_link: bool


SITUATIONS: Final[list[Situation]] = []


def situation(
    *rules: int, users: bool = True, process: bool = False, link: bool = True
) -> Callable[[Play], Play]:
    """Add a function to the situations, which are named like it.

    Args:
        rules: The numbers of the rules that it checks.
        users: Whether users have to connect to the gateway.
        process: Whether the run has to start the gateway.
        link: Whether the gateway has to be linked at the beginning.
    """

    def add(play: Play) -> Play:
        name = getattr(play, "__name__", "").replace("_", " ")
        SITUATIONS.append(Situation(name, rules, play, users, process, link))
        return play

    return add
