"""Sessions that begin or end together: what a wheel is asked, answers, and records of it.

`Wheel.begin` takes `Logins`. `Wheel.end` takes `Endings`, and returns `Ended`. Each adds a
record a session to a `RecordBatch`.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from liveness.core.records import EVENTS, OFFLINE, Instant, Record, Uid
from liveness.core.wheel.table import Entry


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


class Ended(NamedTuple):
    """How many sessions `Wheel.end` has ended."""

    sessions: int
    early: int  # of them, before their timeout was over
    counted: int  # of them, with a deadline above `counted_above`


def offline_of(
    entry: Entry, seq: int, gateway: str, reason: str, at: Instant
) -> Record:
    """The record of the end of a session that is off the wheel."""
    user_size, devices = entry.user_devices
    event = EVENTS[entry.event] or None
    return Record(
        seq, OFFLINE, entry.uid, gateway, entry.session, entry.conn, reason, at.wall_ms,
        at.unix_ms(entry.seen) if event else None, event, at.silence(entry.seen),
        not event, None, None, None, user_size, devices,
    )  # fmt: skip
