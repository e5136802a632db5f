"""A gateway's reports about connections, kept until they are on the sidecar's disk.

A connection is *open* from its login until its logout, or until a record that ends it.
Reports are kept in dicts by connection, not in a queue: however long the sidecar is away,
there is at most one change (login or logout) and one activity for each connection. What
was sent but not yet confirmed by a pong is kept in the same way, and sent again on the
next link. `timer_requests` does the same for timers.

All logins are sent before any logout. So the user of a connection that has ended is not
offline for a moment if it has a newer one: the session has moved there, and the logout
changes nothing.

On the wire every connection has a conn. A connection that the gateway reports without one
gets a conn here, by its uid: so a late record about an earlier login cannot end a later
one.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Final, TypeAlias, TypeVar

from liveness.client.timer_requests import TimerRequests
from liveness.core.records import KEEPALIVE, LOGIN, LOGOUT, MESSAGE, Uid, identity
from liveness.core.wire.framing import encode
from liveness.core.wire.uids import (
    MAX_TIMEOUT_S,
    MIN_TIMEOUT_S,
    bad_uid_text,
    is_natural,
    is_uid,
    is_within,
)
from liveness.errors import ReportError

T = TypeVar("T")
UidByConn: TypeAlias = dict[int, Uid]

# One frame of logins has one age, so ages are rounded: to a tenth of a second, and from a
# quarter of an hour on to between an 8,192nd and a 16,384th of the age. With that, a
# million connections that opened over one day take about ten thousand frames.
AGE_STEP_S: Final = 0.1
AGE_STEPS: Final = 8_192
# More changes than this are sent in several writes. Encoding a million at once would
# block the gateway's loop for seconds, and the ages in the last frame would be that old.
MAX_CHANGES_PER_WRITE: Final = 4_096


class Reports:
    """The open connections, and what the sidecar does not know of them yet.

    Args:
        first_conn: The first conn to assign; the next ones follow it. No process of this
            gateway's name may have used one of them before.
    """

    def __init__(self, first_conn: int) -> None:
        self.uids: UidByConn = {}  # of the open connections
        self.messages: UidByConn = {}  # unsent activity, as `keepalives`
        self.keepalives: UidByConn = {}
        self.timer_requests = TimerRequests()
        self.has_backlog = False  # the last write left changes for the next
        self.ignored = 0  # reports about connections that are not open
        # Connections that a record has ended, and whose end the gateway has not handled.
        self.unfinished_ends: Container[tuple[str, int | None]] = ()
        self._next_conn = first_conn
        # Assigned here, as the gateway gave none; by the identity of the uid.
        self._conns: dict[str, int] = {}
        self._assigns_conns = False  # whether a login ever came without a conn
        self._opened: dict[int, float] = {}
        self._timeouts: dict[int, float] = {}  # of logins that named one
        self._logins: UidByConn = {}  # not sent yet, in order
        self._logouts: UidByConn = {}  # not sent yet
        self._unsent_logins: set[int] = set()  # opened, and not sent on any link
        # Sent since the last ping, and before it: logins and logouts, and activity.
        self._sent: tuple[UidByConn, UidByConn] = {}, {}
        self._awaiting_pong: tuple[UidByConn, UidByConn] = {}, {}

    def new_conn(self) -> int:
        conn = self._next_conn
        self._next_conn += 1
        return conn

    # --- what the gateway reports -----------------------------------------------

    def login(
        self, uid: Uid, conn: int | None, *, at: float, timeout: float | None
    ) -> None:
        """Open a connection; for one that is open already, report activity.

        *conn* is None if the gateway has no ids. *at* is when it was authenticated, by the
        clock that `frames` gets.
        """
        _check_uid(uid)
        if timeout is not None and not is_within(timeout, MIN_TIMEOUT_S, MAX_TIMEOUT_S):
            raise ReportError(
                f"timeout is {timeout!r:.40}; it must be {MIN_TIMEOUT_S} to "
                f"{MAX_TIMEOUT_S} seconds"
            )
        if conn is None:
            self._assigns_conns = True
            user = identity(uid)
            if user in self._conns:
                self.close(self._conns[user])  # the new connection replaces it
            conn = self._conns[user] = self.new_conn()
        elif not self._may_log_in(uid, conn):
            self.ignored += 1
            return
        if conn not in self.uids:
            self.uids[conn] = uid
            self._opened[conn] = at
            self._unsent_logins.add(conn)
        self._timeouts.pop(conn, None)
        if timeout is not None:
            self._timeouts[conn] = timeout
        self._logins.setdefault(conn, uid)

    def activity(self, unsent: UidByConn, uid: Uid, conn: int | None) -> None:
        """Add an activity to *unsent*: `messages` or `keepalives`.

        It is ignored if the connection is not open. The gateway has made no mistake: its
        user may send while the record that ends the connection is under way.
        """
        conn = self._open_conn(uid, conn)
        if conn is not None:
            unsent[conn] = uid

    def logout(self, uid: Uid, conn: int | None) -> bool:
        """Close a connection; return whether it was open, else the call is ignored."""
        conn = self._open_conn(uid, conn)
        if conn is not None:
            self.close(conn)
        return conn is not None

    def close(self, conn: int) -> int | None:
        """Close an open connection; return its conn, or None if it was assigned here.

        Its unsent activity is dropped: sent after the logout, it would open a session
        again. A login that was never sent is dropped too, and needs no logout.
        """
        uid, was_sent = self.uids[conn], conn not in self._unsent_logins
        self._forget(conn)
        if was_sent:
            self._logouts[conn] = uid
        if self._conns.get(identity(uid)) != conn:
            return conn
        del self._conns[identity(uid)]
        return None

    def _forget(self, conn: int) -> None:
        del self.uids[conn]
        del self._opened[conn]
        self._timeouts.pop(conn, None)
        self.messages.pop(conn, None)
        self.keepalives.pop(conn, None)
        self._logins.pop(conn, None)
        self._unsent_logins.discard(conn)

    # --- what is sent -------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Whether anything other than activity waits to be sent."""
        return self._has_conn_changes or self.timer_requests.has_unsent

    @property
    def _has_conn_changes(self) -> bool:
        return bool(self._logins or self._logouts)

    @property
    def pending(self) -> int:
        changes = len(self._logins) + len(self._logouts)
        activity = len(self.messages) + len(self.keepalives)
        return changes + activity + self.timer_requests.pending

    @property
    def unconfirmed(self) -> int:
        of_conns = sum(map(len, self._sent + self._awaiting_pong))
        return of_conns + self.timer_requests.unconfirmed

    def frames(
        self,
        now: float,
        *,
        since: float = float("inf"),
        began: float | None = None,
        with_activity: bool,
        max_batch: int,
        max_frame_bytes: int,
    ) -> Iterator[bytes]:
        """Yield what waits to be sent, encoded, in the order that the sidecar needs.

        A yielded frame counts as sent. Reports made while this generator is in use go
        into the next one; activity of a connection that closes meanwhile is left out. Its
        login is not: a logout may follow that must not end the presence of its user.

        *now* is by the clock of `login`, and *began* the offset from it to the host's
        CLOCK_MONOTONIC, for logins to carry when their connections began. The first login
        of a connection that opened after *since*, when this link began, has no age: such
        logins arrive in order, so whenever the sidecar reads them, the later one is the
        newer connection.
        """
        timer_frames = self.timer_requests.frames(now)
        logins, first_logins, logouts = self._next_changes()
        has_more, self.has_backlog = self._has_conn_changes, self.has_changes
        moments = None
        if began is not None:
            # CLOCK_MONOTONIC began with the host, so no moment is below 0.
            moments = {
                conn: moment
                for conn in logins
                if (moment := self._opened[conn] + began) >= 0
            }
        groups = [*self._grouped(logins, first_logins, now, since)]
        for options, same in groups:
            for batch in _split(same, max_batch):
                yield from _encode_frames(
                    LOGIN, batch, options, max_frame_bytes, moments
                )
        for batch in _split(logouts, max_batch):
            yield from _encode_frames(LOGOUT, batch, {}, max_frame_bytes)
        if with_activity and not has_more:  # only after the logins of all connections
            for event, batch in self._activity_batches(max_batch):
                yield from _encode_frames(event, batch, {}, max_frame_bytes)
        yield from timer_frames

    def _activity_batches(self, most: int) -> Iterator[tuple[str, UidByConn]]:
        for conn in self.messages.keys() & self.keepalives.keys():
            del self.keepalives[conn]  # one activity is enough
        for event, unsent in ((MESSAGE, self.messages), (KEEPALIVE, self.keepalives)):
            left = len(unsent)
            while left > 0:
                left -= most
                batch = _pop_first(unsent, most)
                # A login that was reported meanwhile is not sent yet. It counts as
                # activity itself, so this one can be left out.
                for conn in batch.keys() & self._logins.keys():
                    del batch[conn]
                self._sent[1].update(batch)
                if batch:
                    yield event, batch

    def _next_changes(self) -> tuple[UidByConn, set[int], UidByConn]:
        """Take the first changes, which count as sent from now on.

        Returns:
            Logins; those of them that are sent for the first time; and if these are the
            last logins that wait, logouts.
        """
        logins = _pop_first(self._logins, MAX_CHANGES_PER_WRITE)
        for conn in logins:  # each counts as activity itself
            self.messages.pop(conn, None)
            self.keepalives.pop(conn, None)
        first_logins = self._unsent_logins & logins.keys()
        self._unsent_logins -= first_logins
        logouts: UidByConn = {}
        if not self._logins:
            logouts = _pop_first(self._logouts, MAX_CHANGES_PER_WRITE - len(logins))
        self._sent[0].update(logins | logouts)
        return logins, first_logins, logouts

    def _grouped(
        self, logins: UidByConn, first_logins: set[int], now: float, since: float
    ) -> Iterator[tuple[dict[str, object], UidByConn]]:
        """Group logins that can share a frame: of the same timeout and age.

        A uid is in a group at most once, and its logins keep their order.
        """
        groups: dict[tuple[int, float | None, float], UidByConn] = {}
        earlier: Counter[str] = Counter()
        for conn, uid in logins.items():
            opened = self._opened[conn]
            is_new = conn in first_logins and opened >= since
            age = 0.0 if is_new else _rounded_age(now - opened)
            key = (earlier[identity(uid)], self._timeouts.get(conn), age)
            groups.setdefault(key, {})[conn] = uid
            earlier[identity(uid)] += 1
        for key in sorted(groups, key=itemgetter(0)):
            _, timeout, age = key
            options: dict[str, object] = {"age": age} if age else {}
            if timeout is not None:
                options["timeout"] = timeout
            yield options, groups[key]

    # --- what has arrived ------------------------------------------------------------

    def ping_sent(self) -> None:
        self._awaiting_pong, self._sent = self._sent, ({}, {})
        self.timer_requests.ping_sent()

    def pong_received(self) -> None:
        self._awaiting_pong = {}, {}
        self.timer_requests.pong_received()

    def link_lost(self) -> None:
        """Note that the link has ended: what no pong confirmed is sent again.

        For a closed connection that is its logout; for an open one its login, or else
        activity.
        """
        self.timer_requests.link_lost()
        changes, activity = (
            before | sent
            for before, sent in zip(self._awaiting_pong, self._sent, strict=True)
        )
        self._sent, self._awaiting_pong = ({}, {}), ({}, {})
        logins: UidByConn = {}
        for conn, uid in changes.items():
            (logins if conn in self.uids else self._logouts)[conn] = uid
        self._logins = logins | self._logins
        for conn, uid in activity.items():
            if conn in self.uids and conn not in self._logins:
                self.keepalives[conn] = uid

    def declare(self) -> None:
        """Send the logins of all open connections again."""
        self._logins = dict(self.uids)

    # --- checks ---------------------------------------------------------------------

    def _may_log_in(self, uid: Uid, conn: int) -> bool:
        """Whether *conn* is open or new, rather than closed by a logout or a record."""
        _check_conn(conn)
        if conn in self.uids:
            _check_owner(self.uids[conn], uid, conn)
            return True
        if (identity(uid), conn) in self.unfinished_ends:
            return False
        for changes in (
            self._logouts,
            self._sent[0],
            self._awaiting_pong[0],
        ):
            if conn in changes:
                _check_owner(changes[conn], uid, conn)
                return False
        return True

    def _open_conn(self, uid: Uid, conn: int | None) -> int | None:
        """The conn of a report; None, and counted as ignored, if it is not open."""
        _check_uid(uid)
        if conn is not None:
            _check_conn(conn)
            if conn in self.uids:
                _check_owner(self.uids[conn], uid, conn)
                return conn
        elif self.uids and not self._assigns_conns:
            raise ReportError(
                f"no conn for {uid!r:.80}, and this gateway's logins have one; name the "
                "connection in every report"
            )
        elif identity(uid) in self._conns:
            return self._conns[identity(uid)]
        self.ignored += 1
        return None


def _check_owner(owner: Uid, uid: Uid, conn: int) -> None:
    if identity(owner) != identity(uid):
        raise ReportError(
            f"connection {conn} is {owner!r:.80}'s, not {uid!r:.80}'s; each connection has "
            "a conn of its own, see new_conn()"
        )


def _check_uid(uid: object) -> None:
    if not is_uid(uid):
        raise ReportError(bad_uid_text(uid))


def _check_conn(conn: object) -> None:
    if not is_natural(conn):
        raise ReportError(
            f"conn is {conn!r:.40}; it must be an integer from 0 to 2^63-1"
        )


def _pop_first(users: dict[int, T], most: int) -> dict[int, T]:
    if len(users) <= most:
        first = users.copy()
        users.clear()
        return first
    first = dict(islice(users.items(), most))
    for conn in first:
        del users[conn]
    return first


def _rounded_age(age: float) -> float:
    """Round an age down to a step that grows with it; see `AGE_STEPS`."""
    octave = 1 << max(int(age).bit_length() - 1, 0)
    step = max(octave / AGE_STEPS, AGE_STEP_S)
    return max(round(age // step * step, 3), 0.0)


def _split(users: UidByConn, most: int) -> Iterable[UidByConn]:
    if len(users) <= most:
        return (users,) if users else ()
    items = iter(users.items())
    return iter(lambda: dict(islice(items, most)), {})


def _encode_frames(
    event: str,
    batch: UidByConn,
    options: dict[str, object],
    max_frame_bytes: int,
    moments: dict[int, float] | None = None,
) -> Iterator[bytes]:
    """Encode one frame, or several if it would be too long."""
    all_options: dict[str, object] = {**options, "conn": list(batch)}
    if moments is not None:
        all_options["began"] = [moments.get(conn) for conn in batch]
    frame = encode([event, list(batch.values()), all_options])
    if len(frame) <= max_frame_bytes or len(batch) == 1:
        yield frame
        return
    for half in _split(batch, len(batch) // 2 or 1):
        yield from _encode_frames(event, half, options, max_frame_bytes, moments)
