"""Records that were decided together, in columns.

A storm decides a hundred thousand records in a second. Each goes to the log, to the online
set and to the links that read it. An object for each of them, at each of these places,
costs several times as much as the rest. So a commit has one `RecordBatch`, which writes
what each place needs. It makes a record as an object only when it is asked for one.
The wheel adds the records of sessions that begin or end together: `Wheel.begin` takes
`Logins`; `Wheel.end` takes `Endings`.

A record of a session also says how the online set changes: it opens the session `session`,
or closes one, or both if the user has moved.

This is the version in pure Python, which keeps objects. `_records.pyx` does the same in
columns of C. A test compares the two.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from math import inf
from typing import Any, NamedTuple, overload

from liveness.core.records import (
    EVENTS,
    MOVED,
    OFFLINE,
    Instant,
    Logged,
    Record,
    Subscription,
    TimerRecord,
    Uid,
)
from liveness.core.wheel.table import Entry
from liveness.core.wire.framing import encode


class Opening(NamedTuple):
    """What a row of the online set has beside the record that opens the session."""

    start_ms: int  # of the state's clock
    timeout: float | None  # its own; None: the gateway's


class Encoded(NamedTuple):
    """Some records of a batch as msgpack maps, one after the other."""

    seqs: list[int]
    maps: bytes
    # For each record of the reader's own gateway that has a deadline: its monotonic seconds.
    deadlines: list[float]


class Logins(NamedTuple):
    """Users that log in through one gateway, in order; see `Wheel.begin`."""

    gateway: int
    name: str  # of that gateway
    uids: Sequence[Uid]
    conns: Sequence[int | None]
    # When each connection began, in monotonic seconds; None: `start`, which is not exact.
    begun: Sequence[float | None]
    start: float
    timeout: float | None  # their own; None: the gateway's
    event: int  # index into `records.EVENTS`


class Endings(NamedTuple):
    """Which sessions of a gateway `Wheel.end` ends, and what their records say.

    `held_above` and `held_until` bound the deadlines of users that the storm guard held.
    """

    gateway: int
    name: str  # of that gateway
    reason: str
    until: float  # the latest deadline, in attended seconds
    limit: int
    renewed: bool  # those of the second due list
    held_above: float = inf
    held_until: float = -inf
    counted_above: float = inf


class RecordBatch(Sequence[Logged]):
    """Records of a log, in order of their seqs, which have no gaps."""

    def __init__(self) -> None:
        self._records: list[Logged] = []
        self._due: list[float] = []
        self._openings: dict[int, Opening] = {}  # by seq

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Logged]:
        return iter(self._records)

    @overload
    def __getitem__(self, at: int) -> Logged: ...
    @overload
    def __getitem__(self, at: slice) -> list[Logged]: ...
    def __getitem__(self, at: int | slice) -> Logged | list[Logged]:
        return self._records[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]  # it grows

    def append(
        self, record: Logged, *, due: float = 0.0, opening: Opening | None = None
    ) -> None:
        """Add the next record.

        Args:
            record: The record.
            due: Monotonic seconds of the deadline that led to it; 0.0 without one.
            opening: It opens the session `record.session`.
        """
        assert not self._records or record.seq == self.last + 1
        self._records.append(record)
        self._due.append(due)
        if opening is not None:
            self._openings[record.seq] = opening

    def extend(self, batch: "RecordBatch") -> None:
        """Add the records of another batch, which follow those of this one."""
        self._records += batch._records
        self._due += batch._due
        self._openings |= batch._openings

    @property
    def first(self) -> int:
        return self._records[0].seq

    @property
    def last(self) -> int:
        return self._records[-1].seq

    @property
    def gateways(self) -> set[str]:
        names = {record.gateway for record in self._records}
        names.update(
            record.from_gateway
            for record in self._records
            if record.from_gateway is not None
        )
        return names

    @property
    def due(self) -> list[float]:
        """The monotonic seconds of the deadline that led to each; 0.0 without one."""
        return [*self._due]

    # --- the log --------------------------------------------------------------

    def packed(self, start: int, stop: int) -> tuple[int, bytes]:
        """Encode the fields of some records, as a page of the log has them.

        Returns:
            Their latest stamp, and the msgpack of an array of their fields.
        """
        records = self._records[start:stop]
        return max(record.at for record in records), encode(records)

    # --- the online set -------------------------------------------------------

    @property
    def closed(self) -> list[int]:
        """The sessions that these records close, also those that they open."""
        closed = list[int]()
        for record in self._records:
            if isinstance(record, Record):
                if record.kind == OFFLINE:
                    closed.append(record.session)
                elif record.kind == MOVED and record.from_session is not None:
                    closed.append(record.from_session)
        return closed

    def opened(self) -> list[Any]:
        """The rows of the sessions that these records open, and do not close.

        One after the other: session, uid, start, conn, gateway, own timeout.
        """
        closed = {*self.closed}
        values: list[Any] = []
        for record in self._records:
            opening = self._openings.get(record.seq)
            if opening is not None and record.seq not in closed:
                assert isinstance(record, Record)
                values += (
                    record.seq, record.uid, opening.start_ms, record.conn,
                    record.gateway, opening.timeout,
                )  # fmt: skip
        return values

    # --- readers --------------------------------------------------------------

    @property
    def timers(self) -> list[TimerRecord]:
        return [record for record in self._records if isinstance(record, TimerRecord)]

    def places(self, after: int, wanted: Subscription, *, limit: int) -> list[int]:
        """Where the records above *after* are that concern a reader: at most *limit*."""
        found = (
            place
            for place, record in enumerate(self._records)
            if record.seq > after and wanted.wants(record)
        )
        return [*islice(found, limit)]

    def encoded(
        self,
        after: int,
        wanted: Subscription,
        *,
        limit: int,
        most_bytes: float = inf,
        own: str | None = None,
    ) -> Encoded:
        """Encode the records above *after* that concern a reader, as it gets them.

        Args:
            after: A seq.
            wanted: Which records concern the reader.
            limit: At most this many.
            most_bytes: Stop with the record that makes them at least this long.
            own: The reader's own gateway, whose deadlines are wanted.
        """
        seqs: list[int] = []
        maps: list[bytes] = []
        deadlines: list[float] = []
        size = 0
        for place in self.places(after, wanted, limit=limit):
            record, due = self._records[place], self._due[place]
            seqs.append(record.seq)
            maps.append(encode(record.as_map()))
            if due and record.gateway == own and isinstance(record, Record):
                deadlines.append(due)
            size += len(maps[-1])
            if size >= most_bytes:
                break
        return Encoded(seqs, b"".join(maps), deadlines)


def offline_of(
    entry: Entry, seq: int, gateway: str, reason: str, at: Instant
) -> Record:
    user_size, devices = entry.user_devices
    event = EVENTS[entry.event] or None
    return Record(
        seq, OFFLINE, entry.uid, gateway, entry.session, entry.conn, reason, at.wall_ms,
        at.unix_ms(entry.seen) if event else None, event, at.silence(entry.seen),
        not event, None, None, None, user_size, devices,
    )  # fmt: skip
