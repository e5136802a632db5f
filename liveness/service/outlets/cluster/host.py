"""A host in the cluster, without I/O: its partitions, and the log spread over them.

One reader of the log serves all partitions. Of those that have room, it reads by turns for
the furthest behind and the furthest ahead: so a partition that waits for its part of Redis
holds none of the others up, neither then nor while it catches up.
"""

from collections.abc import Callable, Iterable

from liveness.cluster.format import field_of, gateway_of, partition_of
from liveness.core.records import OFFLINE, Logged, OnlineRow, Record, Uid
from liveness.core.wheel.devices import user_of
from liveness.service.outlets.cluster.host_state import HostIdentity
from liveness.service.outlets.cluster.partition import Mode, Partition
from liveness.service.outlets.cluster.session_changes import Change


class ClusterHost:
    """All partitions of one host."""

    def __init__(
        self,
        identity: HostIdentity,
        *,
        partitions: int,
        separator: str,
    ) -> None:
        self.identity = identity
        self.partitions = [Partition(n, identity) for n in range(partitions)]
        self._separator = separator
        self._is_turn_of_first = False

    # --- the log --------------------------------------------------------------

    def read_from(self) -> int | None:
        """The seq behind which to read the log next; None: no partition has room."""
        behind = [part.read_to for part in self.partitions if part.has_room]
        behind = [seq for seq in behind if seq < self.identity.newest]
        self._is_turn_of_first = not self._is_turn_of_first
        choose = max if self._is_turn_of_first else min
        return choose(behind, default=None)

    def distribute(
        self,
        start: int,
        records: Iterable[Logged],
        reached: int,
        now: float,
        *,
        decided_ms: Callable[[Record], int],
    ) -> None:
        """Give each partition its records of the log.

        These are all records of sessions behind *start*, from `read_from`, up to
        *reached*. *decided_ms* returns `Change.at` of a record.
        """
        reading = [part.read_to >= start for part in self.partitions]
        for record in records:
            if not isinstance(record, Record):
                continue
            change = self.change_of(record, decided_ms(record))
            number = partition_of(change.field, len(self.partitions))
            part = self.partitions[number]
            if reading[number] and change.seq > part.read_to:
                reading[number] = part.add(change, now)
        for part, has_all in zip(self.partitions, reading, strict=True):
            if has_all:
                part.read_to = max(part.read_to, reached)

    def lose_records(self, start: int, until: int) -> None:
        """Records behind *start* up to *until* are gone from the log, or damaged."""
        for part in self.partitions:
            if part.mode is Mode.FOLLOWING and start <= part.read_to < until:
                part.lose_records()

    def change_of(self, record: Record, at: int) -> Change:
        """What a record of the log means for the cluster; *at* as `Change.at`."""
        place = record.uid, record.user, record.gateway, record.session
        is_end = record.kind == OFFLINE
        return _change(record.seq, *place, at, record.reason, has_ended=is_end)

    # --- a list of all sessions ------------------------------------------------

    def session_of(self, row: OnlineRow, offset_ms: int) -> tuple[int, Change]:
        """The partition of a row of the online set, and what it means for it.

        *offset_ms* makes `Change.at` of Unix milliseconds.
        """
        user = user_of(row.uid, self._separator) if self._separator else row.uid
        at = row.start_ms + offset_ms
        change = _change(0, row.uid, user, row.gateway, row.session, at, "resync")
        return partition_of(change.field, len(self.partitions)), change

    # --- how it is ------------------------------------------------------------

    @property
    def is_following(self) -> bool:
        return all(part.mode is Mode.FOLLOWING for part in self.partitions)

    @property
    def users(self) -> int:
        return sum(part.users for part in self.partitions)


def _change(
    seq: int,
    uid: Uid,
    user: Uid,
    gateway: str,
    session: int,
    at: int,
    reason: str,
    *,
    has_ended: bool = False,
) -> Change:
    # What follows the user in a uid: the separator and the device, or nothing.
    device = str(uid)[len(str(user)) :]
    stored = gateway_of(gateway, uid)
    return Change(seq, field_of(user), device, session, stored, at, reason, has_ended)
