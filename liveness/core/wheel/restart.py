"""Sessions over a restart: rows of the online set, and their clocks at a planned stop.

After a crash only the online set is known, and each user gets a fresh timeout. A planned
stop also leaves `Clocks`: how much of its timeout each user has left, how long it has been
silent, and its last event. Both are in the order of their sessions, so that one pass joins
them. The sidecar serves nothing before the last row of a million: `_restart.pyx` does the
same, compiled. A test compares the two.
"""

# array.array cannot be subscripted when it runs, before Python 3.12.
from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Final, NamedTuple

from liveness.core.records import EVENTS, Instant, OnlineFields
from liveness.core.wheel.table import OWN_TIMEOUT, EntryFields
from liveness.core.wire.uids import (
    MAX_NAME_BYTES,
    MAX_TIMEOUT_S,
    is_natural,
    is_text,
    is_uid,
)

_NUMBERS: Final = (int, float)
# More than any clock of a host ever shows, and few enough for 64 bits of milliseconds.
_MOST_SILENCE_S: Final = 1e12


class Clocks(NamedTuple):
    """Each user's clock at a planned stop, in columns, in the order of their sessions."""

    sessions: array[int]
    timeouts: array[float]  # in seconds: the timeout that the last event began
    remaining: array[float]  # seconds left of it
    silences: array[float]  # seconds since that event
    events: array[int]  # its index in `records.EVENTS`
    away: float = 0.0  # seconds since the stop, which count as silence

    @property
    def columns(self) -> tuple[array[Any], ...]:
        return self[:-1]

    def check(self) -> None:
        """Raise ValueError if a stop cannot have written this.

        The compiled restorer uses it without further checks. For a million users this
        takes 0.2 s.
        """
        if len({len(column) for column in self.columns}) > 1:
            raise ValueError("its columns are of different lengths")
        bounds: tuple[tuple[Sequence[float], float, float], ...] = (
            (self.timeouts, 0.0, MAX_TIMEOUT_S),
            (self.remaining, 0.0, 2 * MAX_TIMEOUT_S),  # it may be rounded up
            (self.silences, -_MOST_SILENCE_S, _MOST_SILENCE_S),
            (self.events, 0, len(EVENTS) - 1),
            ((self.away,), 0.0, _MOST_SILENCE_S),
        )
        for column, least, most in bounds:
            # The least and greatest value may hide a NaN; a sum does not.
            if column and (
                isnan(sum(column)) or min(column) < least or max(column) > most
            ):
                raise ValueError("its columns hold values that no stop writes")


def no_clocks() -> Clocks:
    """The clocks after a crash: none is known."""
    return Clocks(array("q"), array("d"), array("d"), array("d"), array("b"))


@dataclass(slots=True)
class RestoredGateway:
    """A gateway's restored sessions."""

    number: int
    in_force: float  # the timeout of a session that has no clock, and not its own
    until: float  # attended seconds: when the last session with this timeout is due
    users: int = 0


class SessionRestorer:
    """Makes the entries of sessions that were open before a restart.

    *clocks* are of the planned stop; after a crash, empty. Each session's number is below
    *next_seq*.
    """

    def __init__(self, clocks: Clocks, *, at: Instant, next_seq: int) -> None:
        self.gateways: dict[str, RestoredGateway] = {}
        self._clocks = clocks
        self._next_clock = 0
        self._at = at
        self._last = 0  # session of the latest row
        self._next_seq = next_seq

    def add_gateway(self, name: str, number: int, *, in_force: float) -> None:
        """Let rows have this gateway.

        Args:
            name: Its name.
            number: Its number on the wheel.
            in_force: The longest timeout that its sessions may have, in seconds, without
                the timeouts that came with a login.
        Raises:
            ValueError: No gateway may have the name.
        """
        if not is_text(name, MAX_NAME_BYTES):
            raise ValueError("the gateway of a session has no valid name")
        self.gateways[name] = RestoredGateway(number, in_force, self._at.now)

    def entry(self, row: OnlineFields) -> EntryFields | None:
        """Return the entry of a row, which comes after all earlier ones.

        None: its gateway has not been added yet; nothing has changed.

        Raises:
            ValueError: The row is damaged.
        """
        session, uid, start_ms, conn, name, own = row
        gateway = self.gateways.get(name)
        if gateway is None:
            return None
        is_sound = (
            type(session) is int
            and self._last < session < self._next_seq
            and is_uid(uid)
            and type(start_ms) is int
            and (conn is None or is_natural(conn))
            and (own is None or (type(own) in _NUMBERS and 0 < own <= MAX_TIMEOUT_S))
        )
        if not is_sound:
            raise ValueError(f"session {session} makes no sense")
        self._last = session
        gateway.users += 1
        at, clocks = self._at, self._clocks
        while (
            self._next_clock < len(clocks.sessions)
            and clocks.sessions[self._next_clock] < session
        ):
            self._next_clock += 1
        clock = self._next_clock
        if clock < len(clocks.sessions) and clocks.sessions[clock] == session:
            lasts = own or clocks.timeouts[clock]
            remaining, event = clocks.remaining[clock], clocks.events[clock]
            silence = clocks.silences[clock] + clocks.away
        else:
            # The timeout that its last event promised, not one set since.
            remaining = lasts = own or gateway.in_force
            silence, event = 0.0, 0
        deadline = at.now + remaining
        if not own and lasts == gateway.in_force:
            gateway.until = max(gateway.until, deadline)
        # A row of an older version has the wall clock of then, which may have been ahead.
        # Every new connection would count as the older one.
        age_ms = max(0.0, float(at.state_ms) - float(start_ms))
        return (
            uid, gateway.number, session, conn, at.mono - age_ms / 1000, lasts, deadline,
            at.mono - silence, event, OWN_TIMEOUT if own else 0,
        )  # fmt: skip
