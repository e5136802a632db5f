"""The promises as rules for all judges; their numbers are those of `docs/concepts.md`.

Pure, and independent of the product's code. Demo and bench apply them to records as they
arrive; the tests' checker applies them to whole runs. Only `SessionLog` has a state.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

# The number of a breach that belongs to no single promise.
NO_PROMISE: Final = 0


class Breach(NamedTuple):
    """The number of a promise, and what broke it."""

    promise: int
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.what}"


def is_early(waited_s: float, whole_s: float, slack_s: float = 0.0) -> bool:
    """1: whether less than the whole time has passed, by more than the clocks' error."""
    return waited_s < whole_s - slack_s


def is_late(late_s: float, most_s: float) -> bool:
    """2: whether a report came later than allowed."""
    return late_s > most_s


def is_next_attempt(
    attempt: int, before: int, *, is_anew: bool = False, is_again: bool = False
) -> bool:
    """7: whether an attempt of a timer may follow another.

    Args:
        attempt: Its number.
        before: The number of the one before; 0 if there was none.
        is_anew: Whether the timer may have been created again.
        is_again: Whether the attempt before may have been lost with its gateway.
    """
    return attempt == before + 1 or (is_anew and attempt == 1) or is_again


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

    def unended(
        self, may_go_on: Callable[[Record], bool] = lambda _: False
    ) -> list[Breach]:
        """At the end of a run: sessions that never ended, but should have."""
        return [
            Breach(3, f"session {began['seq']} of {user} never ended")
            for user, began in self.open.items()
            if not may_go_on(began)
        ]
