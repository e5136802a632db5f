"""Names that were refused, or replaced by a newer link, within the last hour.

They show an operator that a gateway is not watched: a log line of half an hour ago is
easily missed, and the gateway itself keeps serving.
"""

from dataclasses import asdict, dataclass
from typing import Final

from liveness.core.access import Peer
from liveness.errors import Code

KEPT_MS: Final = 3_600_000
# A process may say hello with any number of names. A hundred rows are more than a person
# reads, and take some 30 kB.
MOST_ROWS: Final = 100

REFUSED: Final = "refused"
REPLACED: Final = "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTrouble:
    """How often a name was refused or replaced, and when and by which process last.

    Attributes:
        role: "gateway" or "watcher"; None if the link was refused before its hello.
        name: The name in its hello; None as `role`.
        code: The reason; "replaced" if a newer link has taken the name.
        since: The first time, in milliseconds of the state's clock.
        at: The latest time, by the same clock.
        times: How often, from `since` to `at`.
        pid: The process that was refused, or that has lost the name; 0 if unknown.
        unix_user: The number of its Unix user.
    """

    role: str | None
    name: str | None
    code: str
    since: int
    at: int
    times: int
    pid: int
    unix_user: int

    @property
    def what(self) -> str:
        return REPLACED if self.code == Code.REPLACED else REFUSED

    def as_map(self, ahead_ms: int) -> dict[str, object]:
        """The row for JSON, with wall times: that clock is *ahead_ms* ahead."""
        times = {"since": self.since + ahead_ms, "at": self.at + ahead_ms}
        return {**asdict(self), "what": self.what, **times}


class LinkTroubles:
    """A bounded table of `LinkTrouble`, one for each role, name and code.

    Attributes:
        forgotten: How many rows younger than an hour were dropped for newer ones.
    """

    def __init__(self) -> None:
        self.forgotten = 0
        self._rows: dict[tuple[object, ...], LinkTrouble] = {}  # the latest last

    def note(
        self,
        role: str | None,
        name: str | None,
        code: Code,
        peer: Peer,
        at_ms: int,
    ) -> None:
        """Note that a link was refused or replaced; its role is None before its hello."""
        self._drop_old(at_ms)
        # Links without a hello are distinguished by their user: nothing else is known.
        key = (role, name, code, peer.unix_user if name is None else None)
        before = self._rows.pop(key, None)
        self._rows[key] = LinkTrouble(
            role=role,
            name=name,
            code=code.value,
            since=at_ms if before is None else before.since,
            at=at_ms,
            times=1 if before is None else before.times + 1,
            pid=peer.pid,
            unix_user=peer.unix_user,
        )
        if len(self._rows) > MOST_ROWS:
            del self._rows[next(iter(self._rows))]
            self.forgotten += 1

    def recent(self, at_ms: int) -> list[LinkTrouble]:
        self._drop_old(at_ms)
        return [*reversed(self._rows.values())]

    def _drop_old(self, at_ms: int) -> None:
        until = at_ms - KEPT_MS
        for key in [key for key, row in self._rows.items() if row.at <= until]:
            del self._rows[key]
