"""A reader's position in all partitions, as one text that a program can keep.

It has a version for each partition: "0:VERSION.TOKEN,1:VERSION.TOKEN". An exclamation mark
after one means that its list is still to come; an empty one, that there was no host yet.
"""

import re
from typing import Final, TypeAlias

from liveness.errors import ReportError

# The position of the oldest kept entries.
OLDEST: Final = "oldest"

_PART: Final = re.compile(r"([0-9]{1,4}):((?:[0-9]{1,20}\.[0-9-]{1,60})?!?)")

Positions: TypeAlias = dict[int, str]


def text_of(positions: Positions) -> str:
    """The text of positions."""
    return ",".join(f"{number}:{name}" for number, name in sorted(positions.items()))


def parsed(position: str) -> Positions:
    """The positions of partitions in one text.

    Raises:
        ReportError: The text is not valid.
    """
    positions = Positions()
    for part in position.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ReportError(
                f"position {position!r:.80} is none: it has to be as `position` had it"
            )
        positions[int(match[1])] = match[2]
    return positions
