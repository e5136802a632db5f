"""What a host publishes: the changes of its sessions, and how a call names them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from liveness.cluster.format import Place, ending_bytes, place_bytes, session_bytes


class Change(NamedTuple):
    """A session that began or ended on this host, for its partition."""

    seq: int
    field: bytes  # of the user
    device: str  # what follows the user in the uid
    session: int
    gateway: str  # as it is stored: see `gateway_of`
    at: int  # milliseconds of this process' monotonic clock
    reason: str
    has_ended: bool = False


class Call(NamedTuple):
    """A call of a function of the library, for the keys of one partition."""

    function: str
    args: list[str | int | bytes]


@dataclass(slots=True)
class Tally:
    """How many sessions a host has in a partition, and the sum of their numbers.

    It is counted from the log, apart from what Redis was sent, so that the two can be
    compared.
    """

    reached: int  # every record up to this seq is counted
    sessions: int = 0
    total: int = 0

    def begin(self, session: int) -> None:
        self.sessions += 1
        self.total += session

    def end(self, session: int) -> None:
        self.sessions -= 1
        self.total -= session

    @property
    def answer(self) -> tuple[int, int]:
        return self.sessions, self.total % 2**32


class Piece(NamedTuple):
    """A piece of the list of all sessions, in a partition that asserts them."""

    changes: Sequence[Change]
    seq: int  # the list is true at this seq
    tally: Tally | None = None  # of the whole list, with the last piece


def packed_changes(
    changes: Sequence[Change],
    host: str,
    incarnation: int,
    *,
    clock_ms: int,
    now_ms: int,
) -> list[bytes]:
    """The arguments that name changes: all users, all values, all records.

    *clock_ms* is the partition's clock; *now_ms* is now, as `Change.at`.
    """
    values, bodies = list[bytes](), list[bytes]()
    for change in changes:
        _, field, device, session, gateway, at, reason, has_ended = change
        since = 0
        if has_ended:
            values.append(ending_bytes(session))
        else:
            # 0: the partition's clock had not begun.
            since = max(clock_ms - max(now_ms - at, 0), 0)
            value = session_bytes(
                incarnation, session, since, gateway.encode(), device.encode()
            )
            values.append(value)
        place = Place(field.decode(), host, gateway, session, since, reason, device)
        bodies.append(place_bytes(place))
    return [*(change.field for change in changes), *values, *bodies]
