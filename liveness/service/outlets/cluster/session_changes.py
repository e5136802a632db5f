"""What a host publishes: the changes of its sessions, and how a call names them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from liveness.cluster.format import Place, ending_bytes, place_bytes, session_bytes

# Changes in one call: 1.5 ms of Redis' time. A list of all sessions comes in such pieces.
CALL_CHANGES: Final = 500
# Changes that a partition keeps in memory; what is behind is read from the log again.
MOST_QUEUED: Final = 2_000
# Users searched in one step of a reap: others wait 2 ms.
REAP_USERS: Final = 500


class Limits(NamedTuple):
    """How much a partition does at a time; a simulation has smaller ones."""

    call_changes: int = CALL_CHANGES
    most_queued: int = MOST_QUEUED
    reap_users: int = REAP_USERS


LIMITS: Final = Limits()


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
        """Count a session that began."""
        self.sessions += 1
        self.total += session

    def end(self, session: int) -> None:
        """Count a session that ended."""
        self.sessions -= 1
        self.total -= session

    @property
    def answer(self) -> tuple[int, int]:
        """What Redis should answer."""
        return self.sessions, self.total % 2**32


@dataclass(slots=True)
class Piece:
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
    values = list[bytes]()
    bodies = list[bytes]()
    for change in changes:
        since = 0
        if change.has_ended:
            values.append(ending_bytes(change.session))
        else:
            # 0: the partition's clock had not begun.
            since = max(clock_ms - max(now_ms - change.at, 0), 0)
            gateway, device = change.gateway.encode(), change.device.encode()
            values.append(
                session_bytes(incarnation, change.session, since, gateway, device)
            )
        place = Place(
            change.field.decode(),
            host,
            change.gateway,
            change.session,
            since,
            change.reason,
            change.device,
        )
        bodies.append(place_bytes(place))
    return [*(change.field for change in changes), *values, *bodies]
