"""Sessions as the log has them, record by record; for 3, once, and 6, the newer wins.

Used where the whole log is there, and where records are judged as they come: it holds the
open sessions alone.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from liveness.promises.breach import Breach

Record: TypeAlias = Mapping[str, Any]

# The field that names the session that a record ends, by its kind.
_ENDS: Final = {"moved": "from_session", "offline": "session"}


def was_read_last(record: Record) -> bool:
    """Whether it says that an older connection's login came after the newer one's."""
    return record["kind"] == "moved" and "from_session" not in record


class SessionLog:
    """The users online by the records so far; every session ends once."""

    def __init__(self) -> None:
        self.open: dict[str, Record] = {}  # by the text of the uid: what began it

    def take(self, record: Record) -> list[Breach]:
        """The next record about a user; what it breaks."""
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

    def unended(
        self, may_go_on: Callable[[Record], bool] = lambda _: False
    ) -> list[Breach]:
        """Once all is over: the sessions that never ended, but for those that may go on."""
        return [
            Breach(3, f"session {began['seq']} of {user} never ended")
            for user, began in self.open.items()
            if not may_go_on(began)
        ]
