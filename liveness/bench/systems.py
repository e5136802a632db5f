"""What the sidecar is measured beside: others that can tell who fell silent.

Each is a real process of its own, driven with bytes that were encoded before. What
they have in common is a `System`: users can be made known to it, and touched in streams
of events.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

from liveness.bench.load import Notices
from liveness.bench.program import Program

# Of everyone who is not to fall silent. A minute of a run is no danger to them, and a
# user whose timeout is longer costs no system less.
LONG_S: Final = 3_600
# A stream is written in pieces of this size, to every system alike.
PIECE_BYTES: Final = 65_536
# So many users are made known at a time.
KNOWN_AT_ONCE: Final = 100_000


class Stream(NamedTuple):
    """Encoded events, and how many replies they bring."""

    data: bytes
    replies: int

    def pieces(self) -> list[memoryview]:
        """The data as it is written."""
        whole = memoryview(self.data)
        starts = range(0, len(whole), PIECE_BYTES)
        return [whole[start : start + PIECE_BYTES] for start in starts]


class System(ABC):
    """One system, started, with a link to it.

    Args:
        program: Its process.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    @abstractmethod
    def make_known(self, numbers: range) -> None:
        """Let users be online, with a long timeout; return once that is so."""

    @abstractmethod
    def singles(self, numbers: Sequence[int]) -> Stream:
        """A sign of life of each of *numbers*, each for itself."""

    @abstractmethod
    def batches(self, numbers: Sequence[int]) -> Stream | None:
        """The same by the thousand; None if the system knows no such thing."""

    @abstractmethod
    def write(self, stream: Stream) -> None:
        """Write a stream; return once all of it is applied."""

    @abstractmethod
    def silence(self, number: int, timeout_s: int) -> None:
        """Give a user's last sign of life, with a timeout of its own; do not wait."""

    @abstractmethod
    def told(self, count: int, *, until: float) -> Sequence[Notices]:
        """Wait until a monotonic moment for so many to be told silent; return them."""
