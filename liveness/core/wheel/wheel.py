"""The sessions of users on the timing wheel: what moves them, and the records of them.

`timing_wheel` has the algorithm. `_wheel.pyx` does the same as this module, compiled.
"""

from collections.abc import Sequence
from typing import Final

from liveness.core.records import (
    EVENTS,
    ONLINE,
    SILENCE,
    Instant,
    OnlineFields,
    Record,
    Uid,
    identity,
)
from liveness.core.wheel.record_batch import (
    Endings,
    Logins,
    Opening,
    RecordBatch,
    offline_of,
)
from liveness.core.wheel.restart import SessionRestorer
from liveness.core.wheel.table import (
    EXACT_START,
    NO_CONN,
    NO_SILENCES,
    OWN_TIMEOUT,
    RENEWED,
    Silences,
    UserDevices,
)
from liveness.core.wheel.timing_wheel import TimingWheel
from liveness.core.wire.link_requests import ActivityBatch
from liveness.core.wire.uids import is_natural, is_uid

# `Wheel.end` compares sums of readings of one clock; a smaller difference is rounding.
EARLY_S: Final = 1e-6

# Every eighth event of a batch is counted for `Silences`, from the first on. Counting all of
# them makes a touch up to 6 % slower, and the result no better.
SAMPLED: Final = 8

# Why `touch` did not apply an event.
UNKNOWN: Final = 1
BAD_UID: Final = 2
OTHER_GATEWAY: Final = 3
OTHER_CONN: Final = 4


class Wheel(TimingWheel):
    """The timing wheel with the sessions of all users.

    Args as for `TimingWheel`; *timeout* is also the default for gateways.
    """

    # A sensible `steps` for `advance`: some milliseconds of work.
    steps: Final = 4_000

    def __init__(
        self, *, timeout: float, slots: int, now: float = 0.0, separator: str = ""
    ) -> None:
        super().__init__(timeout=timeout, slots=slots, now=now, separator=separator)
        self._gateway_timeout: list[float] = []
        self._silences: list[Silences] = []
        self._default_timeout = timeout

    # --- sessions -------------------------------------------------------------

    def add_gateway(self) -> int:
        self._gateway_timeout.append(self._default_timeout)
        self._silences.append(NO_SILENCES)
        return super().add_gateway()

    def set_timeout(self, gateway: int, timeout: float) -> None:
        self._gateway_timeout[gateway] = timeout

    def touch(
        self, gateway: int, activity: ActivityBatch, *, now: float, mono: float
    ) -> list[tuple[int, int]]:
        """Give users of *gateway* that sent an event a whole timeout from *now* on.

        Args:
            gateway: Number of the gateway that reports the events.
            activity: The events.
            now: Attended seconds, at or after all of them were received.
            mono: Monotonic seconds of the same moment.
        Returns:
            The positions that were not applied, each with why, in order. Usually empty.
        """
        table, list_for = self._table, self._layers.list_for
        index, owner, conn_of = table.index, table.gateway, table.conn
        timeout = self._gateway_timeout[gateway]
        default = now + timeout
        default_list = list_for(default)
        seconds, squares = self._silences[gateway]
        conns, events = activity.conns, activity.events
        left: list[tuple[int, int]] = []
        for position, uid in enumerate(activity.uids):
            if type(uid) is not str and not is_natural(uid):
                # Before the look-up, which would find -7 as the user "-7".
                left.append((position, BAD_UID))
                continue
            place = index.get(identity(uid))
            if place is None:
                left.append((position, UNKNOWN if is_uid(uid) else BAD_UID))
                continue
            if owner[place] != gateway:
                left.append((position, OTHER_GATEWAY))
                continue
            conn = conns[position]
            if conn is not None and conn_of[place] not in (conn, NO_CONN):
                left.append((position, OTHER_CONN))
                continue
            is_sampled = position % SAMPLED == 0
            flags = table.flags[place] & ~EXACT_START
            if is_sampled and table.event[place] and not flags:
                silence = now - table.deadline[place] + table.timeout[place]
                seconds += silence
                squares += silence * silence
            table.flags[place] &= ~RENEWED
            if flags & OWN_TIMEOUT:
                deadline = now + table.timeout[place]
                target = list_for(deadline)
                table.deadline[place] = deadline
            else:
                table.timeout[place] = timeout
                table.deadline[place] = default
                target = default_list
            table.seen[place] = mono
            table.event[place] = events[position]
            if table.list[place] != target:
                table.move(place, target)
        self._silences[gateway] = Silences(seconds, squares)
        return left

    def open(
        self,
        uid: Uid,
        *,
        gateway: int,
        session: int,
        conn: int | None,
        start: float,
        timeout: float | None,
        event: int,
        now: float,
        mono: float,
        exact: bool = False,
    ) -> UserDevices:
        """Begin a session of *uid*, which has none.

        Args:
            uid: A valid uid.
            gateway: Number of its gateway.
            session: The seq of the record that began it.
            conn: Its connection, if known.
            start: Monotonic seconds at which that connection began.
            timeout: Its own timeout in seconds, or None for its gateway's.
            event: Index into `records.EVENTS`; 0 when restored unheard.
            now: Attended seconds.
            mono: Monotonic seconds of its last event.
            exact: Whether *start* is independent of when the login was read.
        Returns:
            The size of its user, and how many devices of that are online now.
        """
        whole = self._gateway_timeout[gateway] if timeout is None else timeout
        flags = EXACT_START * exact | OWN_TIMEOUT * (timeout is not None)
        deadline = now + whole
        return self.put(
            (uid, gateway, session, conn, start, whole, deadline, mono, event, flags)
        )

    def begin(
        self,
        batch: RecordBatch,
        logins: Logins,
        first: int,
        *,
        limit: int,
        seq: int,
        at: Instant,
    ) -> int:
        """Begin the sessions of users that have none, and record their onlines in *batch*.

        It looks at the logins from index *first* on, and begins at most *limit*. The
        first record has this *seq*.

        Returns:
            How many: up to the limit, the end, or a user that has a session.
        """
        stop = min(limit, len(logins.uids) - first)
        for number in range(stop):
            index = first + number
            uid, conn, began = (
                logins.uids[index],
                logins.conns[index],
                logins.begun[index],
            )
            if self.find(uid) is not None:
                return number
            start = logins.start if began is None else began
            user_size, devices = self.open(
                uid,
                gateway=logins.gateway,
                session=seq + number,
                conn=conn,
                start=start,
                timeout=logins.timeout,
                event=logins.event,
                now=at.now,
                mono=at.mono,
                exact=began is not None,
            )
            record = Record(
                seq + number, ONLINE, uid, logins.name, seq + number, conn,
                EVENTS[logins.event], at.wall_ms, user_size=user_size, devices=devices,
            )  # fmt: skip
            batch.append(record, opening=Opening(at.state_ms_of(start), logins.timeout))
        return stop

    def restore(
        self, restorer: SessionRestorer, rows: Sequence[OnlineFields], first: int
    ) -> int:
        """Add the entries of rows of the online set.

        Args:
            restorer: Makes the entries.
            rows: A list of rows, in the order of their sessions.
            first: Index of the first of them to look at.
        Returns:
            The index of a row whose gateway *restorer* does not know, or whose user has an
            entry; without such a row, their number.
        Raises:
            ValueError: A row is damaged.
        """
        for index in range(first, len(rows)):
            uid = rows[index][1]
            if is_uid(uid) and identity(uid) in self._table.index:
                return index
            entry = restorer.entry(rows[index])
            if entry is None:
                return index
            self.put(entry)
        return len(rows)

    def timeout_of(self, gateway: int) -> float:
        return self._gateway_timeout[gateway]

    def amend(
        self,
        uid: Uid,
        *,
        conn: int | None,
        timeout: float | None,
        start: float | None = None,
    ) -> None:
        """Set the connection and own timeout of *uid*, from its next event on.

        If *start* is given, it is the exact monotonic second at which the connection
        began.
        """
        table = self._table
        place = table.index[identity(uid)]
        table.conn[place] = NO_CONN if conn is None else conn
        if timeout is None:
            table.flags[place] &= ~OWN_TIMEOUT
        else:
            table.flags[place] |= OWN_TIMEOUT
            table.timeout[place] = timeout
        if start is not None:
            table.flags[place] |= EXACT_START
            table.start[place] = start

    def silences(self, gateway: int) -> Silences:
        return self._silences[gateway]

    def end(
        self, batch: RecordBatch, endings: Endings, *, seq: int, at: Instant
    ) -> tuple[int, int, int]:
        """End sessions of due users, longest due first, and record their offlines.

        A record of an ordinary silence has a deadline, by which lateness is measured. One
        of a user that was held has none, nor one of a lost gateway. The first record has
        this *seq*.

        Returns:
            How many sessions; how many of them before their timeout was over; and how
            many with a deadline above `counted_above`.
        """
        early = counted = 0
        entries = self.fire(
            endings.gateway,
            until=endings.until,
            limit=endings.limit,
            renewed=endings.renewed,
        )
        for number, entry in enumerate(entries):
            was_held = (
                entry.flags & RENEWED
                or endings.held_above < entry.deadline <= endings.held_until
            )
            is_measured = endings.reason == SILENCE and not was_held
            early += at.mono - entry.seen < entry.timeout - EARLY_S
            counted += entry.deadline > endings.counted_above
            record = offline_of(entry, seq + number, endings.name, endings.reason, at)
            due = entry.seen + entry.timeout if is_measured else 0.0
            batch.append(record, due=due)
        return len(entries), early, counted
