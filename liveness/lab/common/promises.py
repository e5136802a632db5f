"""What breaks a promise; the numbers of promises are those of `docs/concepts.md`.

Independent of the product's code. The demo applies it to records as they arrive; the tests'
checker applies it to whole runs.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

# The number of a breach that belongs to no single promise.
NO_PROMISE: Final = 0


class Breach(NamedTuple):
    """The number of a promise, and what broke it."""

    promise: int
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.what}"


# --- sessions by the log: 3, once, and 6, the newer wins --------------------------------

Record: TypeAlias = Mapping[str, Any]

# The field that names the session that a record ends, by its kind.
_ENDS: Final = {"moved": "from_session", "offline": "session"}


def was_read_last(record: Record) -> bool:
    """Whether a record says that an older connection's login came after the newer one's."""
    return record["kind"] == "moved" and "from_session" not in record


class SessionLog:
    def __init__(self) -> None:
        self.open: dict[str, Record] = {}  # by uid, as text: the record that began it

    def take(self, record: Record) -> list[Breach]:
        """Take the next record about a user; yield the promises that it breaks."""
        kind, user = record["kind"], str(record["uid"])
        began = self.open.get(user)
        session = None if began is None else began["seq"]
        breaches = []
        keeps_name = kind == "offline" or was_read_last(record)
        if began and keeps_name and repr(record["uid"]) != repr(began["uid"]):
            breaches.append(Breach(3, f"{record} of a session of {began['uid']!r}"))
        if was_read_last(record):
            if record["session"] != session:
                breaches.append(Breach(6, f"{record} while session {session} is open"))
            return breaches
        if (record[_ENDS[kind]] if kind in _ENDS else None) != session:
            breaches.append(Breach(3, f"{record} while session {session} is open"))
        if kind == "offline":
            self.open.pop(user, None)
        else:
            self.open[user] = record
        return breaches
