"""Follows one partition of the cluster, without I/O.

Every version of a partition has a name, "version.token", and an entry of its stream names
the version before it. So the entries are a chain, and a reader that has a version knows
whether an entry is the next one. A failover may lose versions that readers have seen, and
the stream may be trimmed before a slow reader reads it. Then the reader goes back along the
chain from its newest version to the last version that both have, and reports which of its
delivered records are void, or which are missing (`Rollback`, `ClusterGap`).

A reader that keeps the set of online users then needs a list, as it cannot undo records. It
reads all users in steps, while they change, and applies the records after the version that
it had at the first step. The list is true once the reader reaches the version that was the
newest at the last step (`Listed`).

After Redis was emptied, its hosts have one lease to begin to list their sessions again, and
the time that this takes. Until then a missing user may be online: the list waits, but not
for ever.

A `Chain` has the next read (`request`) and takes the answer. Reads may be repeated.
"""

from collections import deque
from collections.abc import Container, Generator, Sequence
from math import inf
from typing import Any, Final, TypeAlias

from liveness.cluster.events import (
    ClusterEvent,
    ClusterGap,
    Delivery,
    Listed,
    Rollback,
)
from liveness.cluster.format import (
    ClusterRecord,
    Fields,
    HostState,
    Place,
    StoredSession,
    StreamEntry,
    entry_of,
    host_of,
    sessions_of,
    unmarked,
    version_name,
)
from liveness.core.records import OFFLINE, identity

# Entries in one read. Each has some 500 records at most, so a read is some 5 MB at most.
PAGE: Final = 50
# Users in one read of a list: some 1 ms of Redis' time.
SCAN_USERS: Final = 1_000
# Names kept to find the last common version after a failover: some 5 s of the busiest
# partition, while replicas are behind by much less.
MOST_NAMES: Final = 256
# The leases that a list waits for hosts. A host that cannot list its sessions, such as one
# for which Redis has no memory, must not keep all readers without a list.
MOST_WAIT: Final = 10
# At the end of a position: the list of online users is still to come.
UNLISTED: Final = "!"


# A read of `connection.Redis`: the name of its method, and its further arguments.
Request: TypeAlias = tuple[str, tuple[Any, ...]]
_Steps: TypeAlias = Generator[Request, Any, None]
_NEWEST: Final[Request] = ("meta", ("v", "t"))
_EVERYTHING: Final[Request] = ("everything", ())


def version_of(name: str) -> int:
    """The number of a version; 0 for a partition that no host has begun."""
    return int(name.partition(".")[0] or 0)


class _List:
    """A list under way. *meta* is from before the first user was read."""

    def __init__(self, meta: Fields) -> None:
        self.places: dict[str, Place] = {}  # by user, as text
        self.end: str | None = None  # the version at which it is true
        self.is_settled = False
        self.is_doubtful = False
        self.unproven: set[str] = set()  # names of versions at which users were read
        self._hosts = _hosts_of(meta)
        self._stored: dict[str, StoredSession] = {}

    def add(self, users: Fields, *, known: Container[str], name: str) -> None:
        """Add users as they are stored at the version of a name.

        If the reader never reaches that version, a failover has lost it, and these users
        may be wrong.
        """
        if name not in known:
            self.unproven.add(name)
        for field, value in users.items():
            user, session = field.decode(), next(sessions_of(value), None)
            if session is None:
                raise ValueError(f"user {user!r} is stored without a session")
            self._stored[user] = session

    def finish(self, meta: Fields, *, is_settled: bool) -> None:
        hosts = _hosts_of(meta) | self._hosts
        for user, session in self._stored.items():
            incarnation, number, since, gateway, device = session
            # A host in neither hash began and ended in between: its users have records.
            host = hosts.get(incarnation, "")
            place = Place(user, host, gateway, number, since, "", device)
            self.places[user] = unmarked(place)
        self._stored.clear()
        self.end, self.is_settled = (
            version_name(meta.get(b"v"), meta.get(b"t")),
            is_settled,
        )

    def apply(self, record: ClusterRecord) -> None:
        """Apply a record that came after the first user was read."""
        if record.kind == OFFLINE:
            self.places.pop(identity(record.user), None)
        else:
            self.places[identity(record.user)] = record.place


class Chain:
    """One reader of one partition.

    *position* is that of an earlier reader, to continue from; empty: from the oldest entry;
    None: after the newest one. With *lists*, the online users are listed at first, unless
    there is a position, and after each rollback and gap.
    """

    def __init__(
        self,
        partition: int,
        *,
        position: str | None = None,
        lists: bool = False,
        lease_s: float,
    ) -> None:
        self.partition = partition
        self.is_caught_up = False  # it has everything; pause before the next request
        self._names = deque[str](maxlen=MOST_NAMES)  # of versions it had, in order
        if position is not None:
            self._names.append(position.removesuffix(UNLISTED))
        is_unlisted = position is None or position.endswith(UNLISTED)
        self._lists = lists
        self._needs_list = lists and is_unlisted
        self._list: _List | None = None
        self._list_at = -inf
        self._lease_s = lease_s
        self._now = 0.0
        self._began_at: float | None = None  # when it joined this life of the partition
        self._wanted_at = 0.0  # when it began to need a list
        self._after = 0  # entries up to this one are known, or of another chain
        self._deliveries: list[Delivery] = []
        self._steps = self._run()
        self.request: Request = next(self._steps)

    @property
    def has_begun(self) -> bool:
        return bool(self._names)

    @property
    def name(self) -> str:
        """The version that it has; empty: none, or the partition has not begun."""
        return self._names[-1] if self._names else ""

    @property
    def version(self) -> int:
        return version_of(self.name)

    @property
    def position(self) -> str:
        return self.name + UNLISTED if self._needs_list else self.name

    def answer(self, answer: Any, now: float) -> list[Delivery]:
        """Take the answer to `request`; return the events in it.

        Raises:
            ValueError: The answer is not of this schema. The chain cannot be used again.
        """
        self._now = now
        if self._began_at is None:
            self._began_at = self._wanted_at = now
        self._deliveries = []
        self.request = self._steps.send(answer)
        return self._deliveries

    def failed(self) -> None:
        """Note that the request failed. It will be repeated, perhaps at another server."""
        if self._list is not None:
            self._list.is_doubtful = True  # it may have data that the other server lost

    # --- the steps ------------------------------------------------------------------

    def _run(self) -> _Steps:
        if not self._names:
            self._names.append(version_name(*(yield _NEWEST)))
            self.is_caught_up = not self.name
        while True:
            if self._needs_list and self._list is None and self._now >= self._list_at:
                yield from self._read_list()
            yield from self._follow()

    def _entries(
        self, method: str, version: int
    ) -> Generator[Request, Any, list[StreamEntry]]:
        found: Sequence[tuple[bytes, Fields]]
        found = yield method, (version, PAGE)
        return [entry_of(self.partition, *entry) for entry in found]

    def _follow(self) -> _Steps:
        newest = version_name(*(yield _NEWEST))
        # Nothing is there: Redis was emptied, and no host has come back yet.
        self.is_caught_up = newest in ("", self.name)
        if self.is_caught_up:
            return
        entries = yield from self._entries("entries", max(self.version, self._after))
        for entry in entries:
            if entry.before != self.name:
                break
            self._deliver(entry)
        else:
            if entries:
                return
        yield from self._rejoin()

    def _deliver(self, entry: StreamEntry) -> None:
        before = self.position
        self._names.append(entry.name)
        if self._list is not None:
            self._list.unproven.discard(entry.name)
            for record in entry.records:
                self._list.apply(record)
        # An entry is finished with its last record.
        positions = [before] * (len(entry.records) - 1) + [self.position]
        self._deliveries += zip(entry.records, positions, strict=False)
        self._end_list()

    def _emit(self, event: ClusterEvent) -> None:
        self._deliveries.append((event, self.position))

    # --- after a failover, or a trimmed stream ------------------------------------------

    def _rejoin(self) -> _Steps:
        """Continue from the last common version, or else from the oldest entry."""
        common, after = yield from self._last_common()
        if common == self.name:
            # This may be wrong, but makes a pause before the next request.
            self.is_caught_up = after == self._after
            self._after = after
            return
        self._after = after
        had, version, position = self.version, version_of(common), self.position
        # A reader that never had this version has read another life of the partition.
        is_strange = common not in self._names and (
            version_of(self._names[0]) < version < had
        )
        if version == had:  # another version of that number
            version = max(version - 1, 0)
        while self._names and version_of(self._names[-1]) > version:
            self._names.pop()
        if not self._names or self.name != common:
            self._names.clear()
            self._names.append(common)
        self._list = None
        self._wanted_at = self._now
        if version == 0 or is_strange:
            self._began_at = self._now
        if version == had:
            return
        self._needs_list = self._lists
        if is_strange:
            self._deliveries.append((Rollback(self.partition, 0), position))
            had = 0
        if version < had:
            self._emit(Rollback(self.partition, version))
        else:
            self._emit(ClusterGap(self.partition, had + 1, version + 1))

    def _last_common(self) -> Generator[Request, Any, tuple[str, int]]:
        """The newest version of the chain that this reader had, or else its oldest.

        With the id after which the chain continues. Entries that do not lead to the newest
        version are of another chain: for instance from before somebody deleted the hash of
        the partition, but not the stream.
        """
        known, name = set(self._names), version_name(*(yield _NEWEST))
        until = version_of(name)
        while name not in known:
            entries = yield from self._entries("earlier_entries", until)
            for entry in entries:
                if entry.name != name:
                    return name, until
                name, until = entry.before, version_of(name) - len(entry.records)
                if name in known:
                    break
            if not entries:
                break
        return name, until

    # --- the list of online users -----------------------------------------------------

    def _read_list(self) -> _Steps:
        self.is_caught_up = False
        meta = yield _EVERYTHING
        if self._must_wait(self._is_settled(meta)) or not meta:
            return
        listing = self._list = _List(meta)
        cursor = 0
        while True:
            cursor, users, newest = yield "scan", (cursor, SCAN_USERS)
            listing.add(users, known=self._names, name=version_name(*newest))
            if cursor == 0:
                break
        meta = yield _EVERYTHING
        listing.finish(meta, is_settled=self._is_settled(meta))
        self._end_list()

    def _end_list(self) -> None:
        listing = self._list
        if listing is None or listing.end is None:
            return
        if version_of(listing.end) > self.version:
            return
        self._list = None
        if self._must_wait(listing.is_settled):  # a host began to list since
            return
        # Otherwise that version is of another chain: list again.
        is_doubtful = listing.is_doubtful or listing.unproven
        if listing.end == self.name and not is_doubtful:
            self._needs_list = False
            places = list(listing.places.values())
            self._emit(Listed(self.partition, self.version, places, listing.is_settled))

    def _must_wait(self, is_settled: bool) -> bool:
        """Whether a list waits for hosts that are not ready."""
        waited_s = self._now - self._wanted_at
        if is_settled or waited_s >= MOST_WAIT * self._lease_s:
            return False
        self._list_at = self._now + self._lease_s / 10
        return True

    def _is_settled(self, meta: Fields) -> bool:
        """Whether the hosts have listed their sessions.

        They had a lease to begin, by our clock or by that of Redis, which advances with
        their beats. And none is listing now; one that ended is declared lost by others.
        """
        if not meta:
            return False
        born = int(meta[b"conf"].rpartition(b" ")[2])
        hosts = [host_of(value) for name, value in meta.items() if name[:1] == b"h"]
        if any(host.state is HostState.ASSERTING for host in hosts):
            return False
        assert self._began_at is not None
        known_us = max((host.beat for host in hosts), default=0) - born
        known_s = max(known_us / 1e6, self._now - self._began_at)
        return known_s >= self._lease_s


def _hosts_of(meta: Fields) -> dict[int, str]:
    return {
        int(name[1:]): value.partition(b"\n")[0].decode()
        for name, value in meta.items()
        if name[:1] == b"i"
    }
