"""The interface of the systems that are compared: all can report silent users.

Each is a real process, driven with bytes that were encoded beforehand.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from liveness.lab.bench.program import Program
from liveness.lab.common.load import Notices

# Timeout of all users that do not fall silent: no run is so long, and a longer timeout
# costs no system less.
LONG_S: Final = 3_600
# Every system gets its streams in pieces of this size.
PIECE_BYTES: Final = 65_536
# Users that log in at a time.
LOGINS_AT_ONCE: Final = 100_000


class Stream(NamedTuple):
    """Encoded events, and the number of replies that they cause."""

    data: bytes
    replies: int

    def pieces(self) -> list[memoryview]:
        """The data as it is written."""
        whole = memoryview(self.data)
        starts = range(0, len(whole), PIECE_BYTES)
        return [whole[start : start + PIECE_BYTES] for start in starts]


@dataclass(eq=False)
class System(ABC):
    """A running system, and a link to it. Users are numbered from 0."""

    program: Program

    @abstractmethod
    def log_in(self, numbers: range) -> None:
        """Bring users online with a long timeout; return once they are."""

    @abstractmethod
    def singles(self, numbers: Sequence[int]) -> Stream:
        """One activity of each user, each in a request of its own."""

    def batches(self, _numbers: Sequence[int]) -> Stream | None:
        """The same in requests for 1,000 users; None if the system has none such."""
        return None

    @abstractmethod
    def write(self, stream: Stream) -> None:
        """Write a stream; return once all of it is applied."""

    @abstractmethod
    def fall_silent(self, number: int, timeout_s: int) -> None:
        """Send a user's last activity, with its own timeout; do not wait."""

    @abstractmethod
    def wait_for_offlines(self, count: int, *, until: float) -> Sequence[Notices]:
        """Wait for silent users, until a monotonic moment; return all that are reported."""
