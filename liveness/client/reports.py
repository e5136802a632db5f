"""What a gateway reports, kept so that each connection is told of once.

A connection is *open* from its login until its logout or the record that ends it. What
the sidecar must still be told lies in sets by connection, not in a queue: however long
the sidecar is away, there is at most one change (login or logout) and one sign of life
of each. What was written and is not covered by a pong yet is kept in the same way, to be
told again on the next link. What is said of timers lies in `timer_requests`, and goes the
same way.

On the wire every connection has a conn. One that is reported without gets a conn here,
by its uid: so a late notice about an earlier login cannot end a later one.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from liveness.client.timer_requests import TimerRequests
from liveness.core.frames import (
    MAX_TIMEOUT_S,
    MIN_TIMEOUT_S,
    bad_uid_text,
    is_within,
)
from liveness.core.framing import encode
from liveness.core.records import KEEPALIVE, LOGIN, LOGOUT, MESSAGE, Uid
from liveness.core.uids import is_natural, is_uid
from liveness.errors import ReportError

Users: TypeAlias = dict[int, Uid]  # by conn
T = TypeVar("T")

Changes: TypeAlias = dict[int, tuple[str, Uid]]  # by conn: login or logout, and of whom

# One frame of logins has one age, which is therefore told in steps: of a tenth of a
# second, and from a quarter of an hour on of a 8,192nd to a 16,384th of itself, so that
# a million connections of one day are some ten thousand frames.
AGE_STEP_S: Final = 0.1
AGE_STEPS: Final = 8_192

# So many changes are told at once: a million of them would hold up the gateway's loop
# for seconds, and the ages in the last frame be as old as the first one.
CHANGES_AT_ONCE: Final = 4_096


@dataclass(slots=True)
class SentReports:
    """What was written, by conn."""

    changes: Changes = field(default_factory=dict)
    signs: Users = field(default_factory=dict)

    def __len__(self) -> int:
        """How much that is."""
        return len(self.changes) + len(self.signs)


class Reports:
    """The open connections, and what the sidecar has still to be told of them.

    Args:
        first_conn: The first conn to give out. Nobody of this gateway's name may ever
            have used it, nor one above it.
    """

    def __init__(self, first_conn: int) -> None:
        self.uids: Users = {}  # of the open connections
        self.messages: Users = {}  # signs of life, not told yet
        self.keepalives: Users = {}
        self.schedule = TimerRequests()  # what is said of timers
        self.is_behind = False  # more waited than was told at once
        self.ignored = 0  # reports about connections that are not open
        # Connections that a record has ended and a reader has still to be handed.
        self.ended: Container[tuple[Uid, int | None]] = ()
        self._next_conn = first_conn
        self._conns: dict[Uid, int] = {}  # given here to those reported without
        self._is_nameless = False  # whether there ever was one
        self._opened: dict[int, float] = {}
        self._timeouts: dict[int, float] = {}  # where the login named one
        self._changes: Changes = {}  # not told yet, in order
        self._untold: set[int] = set()  # logins among them that no link has carried
        self._undeclared: list[
            int
        ] = []  # to be told by their logins again, newest first
        self._told = SentReports()  # since the last ping
        self._pinged = SentReports()  # before it, and not covered by a pong yet

    def new_conn(self) -> int:
        """Give a conn that was never given before."""
        conn = self._next_conn
        self._next_conn += 1
        return conn

    # --- what the gateway reports -----------------------------------------------

    def login(
        self, uid: Uid, conn: int | None, *, at: float, timeout: float | None
    ) -> None:
        """Open a connection; of one that is open already, a sign of life.

        Args:
            uid: Whose it is.
            conn: Its id; None if the gateway has none.
            at: When it was authenticated, in seconds of the clock that `frames` has.
            timeout: The silence timeout of this user until the next login, in seconds.
        Raises:
            ReportError: Something of it cannot be. Nothing was taken.
        """
        _check_uid(uid)
        if timeout is not None and not is_within(timeout, MIN_TIMEOUT_S, MAX_TIMEOUT_S):
            raise ReportError(
                f"timeout is {timeout!r:.40}; it must be {MIN_TIMEOUT_S} to "
                f"{MAX_TIMEOUT_S} seconds"
            )
        if conn is None:
            self._is_nameless = True
            if uid in self._conns:
                self._forget(self._conns[uid])  # the user is back; this displaces it
            conn = self._conns[uid] = self.new_conn()
        elif not self._may_log_in(uid, conn):
            self.ignored += 1
            return
        if conn not in self.uids:
            self.uids[conn] = uid
            self._opened[conn] = at
            self._untold.add(conn)
        self._timeouts.pop(conn, None)
        if timeout is not None:
            self._timeouts[conn] = timeout
        self._changes.setdefault(conn, (LOGIN, uid))

    def sign(self, signs: Users, uid: Uid, conn: int | None) -> None:
        """Take a sign of life; one of a connection that is not open is ignored.

        A user may speak while the record that ends its connection is under way: that
        is nobody's mistake.

        Raises:
            ReportError: This is no uid, or not the one whose connection it is.
        """
        _check_uid(uid)
        conn = self._open_conn(uid, conn)
        if conn is None:
            self.ignored += 1
        else:
            signs[conn] = uid

    def logout(self, uid: Uid, conn: int | None) -> bool:
        """Close a connection; return whether it was open, else it is ignored.

        Raises:
            ReportError: This is no uid, or not the one whose connection it is.
        """
        _check_uid(uid)
        conn = self._open_conn(uid, conn)
        if conn is None:
            self.ignored += 1
            return False
        self.close(conn)
        return True

    def close(self, conn: int) -> int | None:
        """Close the open connection *conn*; return it, or None if it was given here.

        Its signs of life are forgotten: behind its logout, one would open a session
        again. A login that was never told is withdrawn.
        """
        uid, was_told = self.uids[conn], conn not in self._untold
        self._forget(conn)
        if was_told:
            self._changes[conn] = (LOGOUT, uid)
        if self._conns.get(uid) != conn:
            return conn
        del self._conns[uid]
        return None

    def _forget(self, conn: int) -> None:
        del self.uids[conn]
        del self._opened[conn]
        self._timeouts.pop(conn, None)
        self.messages.pop(conn, None)
        self.keepalives.pop(conn, None)
        self._changes.pop(conn, None)
        self._untold.discard(conn)

    # --- what is told -------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Whether more than signs of life waits to be told."""
        return self._has_logins or self.schedule.has_words

    @property
    def _has_logins(self) -> bool:
        return bool(self._changes or self._undeclared)

    @property
    def pending(self) -> int:
        """How many changes, signs of life and words about timers wait to be told."""
        changes = len(self._changes) + len(self._undeclared)
        signs = len(self.messages) + len(self.keepalives)
        return changes + signs + self.schedule.pending

    @property
    def unconfirmed(self) -> int:
        """How many were told, and no pong has covered them."""
        of_users = len(self._told) + len(self._pinged)
        return of_users + self.schedule.unconfirmed

    def frames(
        self,
        now: float,
        *,
        since: float = float("inf"),
        began: float | None = None,
        signs: bool,
        max_batch: int,
        max_frame_bytes: int,
    ) -> Iterator[bytes]:
        """Give what waits to be told, encoded, in the order in which it holds.

        What is given counts as told. What is reported meanwhile comes with the next, and
        signs of life of a connection that is closed meanwhile stay away.

        Args:
            now: The clock of `login`.
            since: When this link began. The first login of a connection that opened
                after that has no age: they come in their order, however late they are
                read, and the later one is the newer.
            began: What turns that clock into the host's CLOCK_MONOTONIC, on which logins
                then tell when their connections began; None: they do not.
            signs: Whether signs of life are due too.
            max_batch: Most uids in a frame.
            max_frame_bytes: Most bytes in a frame.
        """
        words = self.schedule.frames(now)
        for event, batch, options in self._batches(now, since, signs, max_batch):
            if event == LOGIN and began is not None:
                opened = self._opened
                # That clock began with the host, and a connection cannot have before.
                moments = {
                    conn: moment
                    for conn in batch
                    if conn in opened and (moment := opened[conn] + began) >= 0
                }
            else:
                moments = None
            yield from _encoded(event, batch, options, max_frame_bytes, moments)
        yield from words

    def _batches(
        self, now: float, since: float, signs: bool, most: int
    ) -> Iterator[tuple[str, Users, dict[str, object]]]:
        changes, untold = self._next_changes()
        has_more, self.is_behind = self._has_logins, self.has_changes
        for event, users in _phases(changes):
            if event == LOGOUT:
                for batch in _split(users, most):
                    yield LOGOUT, batch, {}
                continue
            for options, same in self._alike(users, untold, now, since):
                for batch in _split(same, most):
                    yield LOGIN, batch, options
        if signs and not has_more:  # behind their logins
            for conn in self.messages.keys() & self.keepalives.keys():
                del self.keepalives[conn]  # one sign of life is enough
            for event, heard in (
                (MESSAGE, self.messages),
                (KEEPALIVE, self.keepalives),
            ):
                left = len(heard)
                while left > 0:
                    left -= most
                    batch = _taken(heard, most)
                    # A login that was reported meanwhile is not told yet, and will be a
                    # sign of life itself.
                    for conn in batch.keys() & self._changes.keys():
                        del batch[conn]
                    self._told.signs.update(batch)
                    if batch:
                        yield event, batch, {}

    def _next_changes(self) -> tuple[Changes, set[int]]:
        """Take the first of the changes, which count as told now, and who is new."""
        declared = self._undeclared[-CHANGES_AT_ONCE:]
        del self._undeclared[-CHANGES_AT_ONCE:]
        for conn in reversed(declared):
            if conn in self.uids:
                self._changes.setdefault(conn, (LOGIN, self.uids[conn]))
        changes = _taken(self._changes, CHANGES_AT_ONCE)
        untold = self._untold & changes.keys()
        self._untold -= untold
        self._told.changes |= changes
        for conn, (event, _) in changes.items():
            if event == LOGIN:  # a sign of life itself
                self.messages.pop(conn, None)
                self.keepalives.pop(conn, None)
        return changes, untold

    def _alike(
        self, users: Users, untold: set[int], now: float, since: float
    ) -> Iterator[tuple[dict[str, object], Users]]:
        """Those to log in, by their timeout and age."""
        groups: dict[tuple[float | None, float], Users] = {}
        for conn, uid in users.items():
            if conn not in self._opened:
                continue  # closed meanwhile, and its logout is behind us
            opened = self._opened[conn]
            is_new = conn in untold and opened >= since
            key = self._timeouts.get(conn), 0.0 if is_new else _told_age(now - opened)
            groups.setdefault(key, {})[conn] = uid
        for (timeout, age), same in groups.items():
            options: dict[str, object] = {"age": age} if age else {}
            if timeout is not None:
                options["timeout"] = timeout
            yield options, same

    # --- what is known to have arrived ----------------------------------------------

    def pinged(self) -> None:
        """Note that a ping was written behind all that was told; one at a time."""
        self._pinged, self._told = self._told, SentReports()
        self.schedule.pinged()

    def confirmed(self) -> None:
        """Note that the pong to that ping has come."""
        self._pinged = SentReports()
        self.schedule.confirmed()

    def lost(self) -> None:
        """Note that the link has ended: what no pong covered is to be told again.

        Of a connection that is closed only its logout, of an open one its login, else
        a sign of life.
        """
        self.schedule.lost()
        told, self._told = self._told, SentReports()
        before, self._pinged = self._pinged, SentReports()
        self._changes = before.changes | told.changes | self._changes
        for conn, uid in (before.signs | told.signs).items():
            if conn in self.uids and conn not in self._changes:
                self.keepalives[conn] = uid

    def declare(self) -> None:
        """Have all open connections told by their logins again."""
        self._undeclared = list(reversed(self.uids))

    # --- checks ---------------------------------------------------------------------

    def _may_log_in(self, uid: Uid, conn: int) -> bool:
        """Whether *conn* is open or new; a record may just have ended it."""
        _check_conn(conn)
        if conn in self.uids:
            _check_owner(self.uids[conn], uid, conn)
            return True
        if (uid, conn) in self.ended:
            return False
        for changes in (self._changes, self._told.changes, self._pinged.changes):
            if conn in changes:
                _check_owner(changes[conn][1], uid, conn)
                return False
        return True

    def _open_conn(self, uid: Uid, conn: int | None) -> int | None:
        """The conn of an open connection; None if it is not open."""
        if conn is None:
            if self.uids and not self._is_nameless:
                raise ReportError(
                    f"no conn for {uid!r:.80}, and this gateway's logins have one; name "
                    "the connection in every report"
                )
            return self._conns.get(uid)
        _check_conn(conn)
        if conn not in self.uids:
            return None
        _check_owner(self.uids[conn], uid, conn)
        return conn


def _check_owner(known: Uid, uid: Uid, conn: int) -> None:
    if known != uid:
        raise ReportError(
            f"connection {conn} is {known!r:.80}'s, not {uid!r:.80}'s; each connection has "
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


def _phases(changes: Changes) -> list[tuple[str, Users]]:
    """Put changes into runs of one event each, in turns.

    A uid is in each run once at most, in the order of its changes: so their order is
    kept within each uid, which is where it matters, in few frames.
    """
    phases: list[tuple[str, Users]] = []
    behind: dict[Uid, int] = {}  # the first phase that a uid's next change may be in
    for conn, (event, uid) in changes.items():
        place = behind.get(uid, 0)
        place += place % 2 != (event == LOGIN)  # logouts are in the even ones
        behind[uid] = place + 1
        while place >= len(phases):
            phases.append(((LOGOUT, LOGIN)[len(phases) % 2], {}))
        phases[place][1][conn] = uid
    return phases


def _told_age(age: float) -> float:
    """Round an age down to a step, in proportion to it; 0 for one of this moment."""
    octave = 1 << max(int(age).bit_length() - 1, 0)
    step = max(octave / AGE_STEPS, AGE_STEP_S)
    return max(round(age // step * step, 3), 0.0)


def _split(users: Users, most: int) -> Iterable[Users]:
    """Parts of *users* of at most that many."""
    if len(users) <= most:
        return (users,) if users else ()
    items = iter(users.items())
    return iter(lambda: dict(islice(items, most)), {})


def _taken(users: dict[int, T], most: int) -> dict[int, T]:
    """Take at most that many out of *users*, the first ones."""
    if len(users) <= most:
        taken = users.copy()
        users.clear()
        return taken
    taken = dict(islice(users.items(), most))
    for conn in taken:
        del users[conn]
    return taken


def _encoded(
    event: str,
    batch: Users,
    options: dict[str, object],
    max_frame_bytes: int,
    moments: dict[int, float] | None,
) -> Iterator[bytes]:
    """One frame, or as many as it takes to stay below the limit."""
    told: dict[str, object] = {**options, "conn": list(batch)}
    if moments is not None:
        told["began"] = [moments.get(conn) for conn in batch]
    frame = encode([event, list(batch.values()), told])
    if len(frame) <= max_frame_bytes or len(batch) == 1:
        yield frame
        return
    for half in _split(batch, len(batch) // 2 or 1):
        yield from _encoded(event, half, options, max_frame_bytes, moments)
