"""Names that were refused, or replaced by a newer link, within the last hour.

They show an operator that a gateway is not watched: a log line of half an hour ago is
easily missed, and the gateway itself keeps serving.
"""

from typing import Final, NamedTuple

from liveness.core.access import Peer
from liveness.errors import Code

KEPT_MS: Final = 3_600_000
# A process may say hello with any number of names. A hundred rows are more than a person
# reads, and take some 30 kB.
MOST_ROWS: Final = 100

REFUSED: Final = "refused"
REPLACED: Final = "replaced"


class LinkTrouble(NamedTuple):
    """How often a name was refused or replaced, and when and by which process last."""

    role: str | None  # as `name`: of its hello; None if it was refused before that
    name: str | None
    what: str
    code: str
    since: int  # this and `at` in milliseconds of the state's clock
    at: int
    times: int
    pid: int  # 0 if unknown
    unix_user: int

    def as_map(self, ahead_ms: int) -> dict[str, object]:
        """The row for JSON, with wall times: that clock is *ahead_ms* ahead."""
        times = {"since": self.since + ahead_ms, "at": self.at + ahead_ms}
        return self._asdict() | times


class LinkTroubles:
    """A bounded table of `LinkTrouble`, one for each role, name and code."""

    def __init__(self) -> None:
        self._rows: dict[tuple[object, ...], LinkTrouble] = {}  # the latest last

    def note(
        self, role: str | None, name: str | None, code: Code, peer: Peer, at_ms: int
    ) -> None:
        self._drop_old(at_ms)
        # Links without a hello are distinguished by their user: nothing else is known.
        key = (role, name, code, peer.unix_user if name is None else None)
        before = self._rows.pop(key, None)
        self._rows[key] = LinkTrouble(
            role,
            name,
            REPLACED if code is Code.REPLACED else REFUSED,
            code.value,
            since=at_ms if before is None else before.since,
            at=at_ms,
            times=1 if before is None else before.times + 1,
            pid=peer.pid,
            unix_user=peer.unix_user,
        )
        if len(self._rows) > MOST_ROWS:
            del self._rows[next(iter(self._rows))]

    def recent(self, at_ms: int) -> list[LinkTrouble]:
        self._drop_old(at_ms)
        return [*reversed(self._rows.values())]

    def _drop_old(self, at_ms: int) -> None:
        until = at_ms - KEPT_MS
        for key in [key for key, row in self._rows.items() if row.at <= until]:
            del self._rows[key]
