"""Stored cursors of names, and read positions of open links, in the log.

A gateway, and a watcher that acknowledges, has a stored *cursor*, from which its next link
continues. A cursor never moves back. While a link is open, its `ReadPosition` is where the
next records are read.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import Final, NamedTuple

from liveness.core.records import GATEWAY, Subscription

# The reasons why a reader gets no more records.
UNACKNOWLEDGED: Final = "unacknowledged"  # it has as many as the window allows
NOT_READING: Final = "not-reading"  # the socket's buffer is full


class CursorRow(NamedTuple):
    """A name's row in `cursors`."""

    seq: int
    used_ms: int  # of the state's clock
    timeout: float | None  # a gateway's, from its last hello
    # The longest timeout, in seconds, that a session of this gateway may still have.
    in_force: float | None = None


@dataclass(slots=True, eq=False)
class ReadPosition:
    """A reader's position: all records up to `seq` were taken, or do not concern it."""

    wanted: Subscription
    seq: int


class Cursors(dict[tuple[str, str], CursorRow]):
    """All cursors, by role and name, with changes that are not durable yet."""

    def __init__(self, stored: dict[tuple[str, str], CursorRow] | None = None) -> None:
        super().__init__(stored or {})
        # By gateway: the newest seq sent on its closed links, acknowledged or not.
        self.sent: dict[str, int] = {}
        self._moved: set[tuple[str, str]] = set()

    @property
    def has_moved(self) -> bool:
        return bool(self._moved)

    def take_moved(self) -> dict[tuple[str, str], CursorRow | None]:
        """The cursors to write; None: it was forgotten."""
        moved = {key: self.get(key) for key in self._moved}
        self._moved.clear()
        return moved

    def put(self, key: tuple[str, str], row: CursorRow) -> None:
        self[key] = row
        self._moved.add(key)

    def introduce(
        self,
        key: tuple[str, str],
        *,
        seq: int,
        timeout: float | None,
        in_force: float | None,
        at_ms: int,
    ) -> None:
        known = self.get(key)
        if known is not None:
            seq = max(seq, known.seq)
        self.put(key, CursorRow(seq, at_ms, timeout, in_force))

    def move(self, key: tuple[str, str], seq: int, at_ms: int) -> None:
        known = self.get(key)
        if known is not None and known.seq < seq:  # None: the name was forgotten
            self.put(key, known._replace(seq=seq, used_ms=at_ms))

    def store_longest_timeout(self, gateway: str, timeout: float) -> None:
        """Store the longest timeout that a session of a gateway may still have."""
        known = self.get((GATEWAY, gateway))
        if known is not None and known.in_force != timeout:
            self.put((GATEWAY, gateway), known._replace(in_force=timeout))

    def note_sent(self, gateway: str, seq: int | None) -> None:
        """Note the last seq sent on a link that closed; None: it had no welcome."""
        if seq is not None and (GATEWAY, gateway) in self:
            self.sent[gateway] = max(seq, self.sent.get(gateway, 0))

    def note_use(self, key: tuple[str, str], now_ms: int, *, every_ms: float) -> None:
        """Note that a name has a link, users, or a new record to read.

        *now_ms* is of the state's clock. The last use is stored at most once in
        *every_ms*.
        """
        known = self.get(key)
        if known is not None and now_ms - known.used_ms > every_ms:
            self.put(key, known._replace(used_ms=now_ms))

    def forget(self, key: tuple[str, str]) -> None:
        if key in self:
            self._drop(key)
            self._moved.add(key)

    def forget_idle(self, stored: Container[tuple[str, str]], idle_ms: int) -> None:
        """Forget the cursors that are not *stored* any more, unless used since."""
        for key in [*self]:
            if key not in stored and self[key].used_ms < idle_ms:
                self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        del self[key]
        role, name = key
        if role == GATEWAY:
            self.sent.pop(name, None)
