"""What the demo prints: plain lines, and never more than somebody can follow."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil
from typing import Final

import trio

from liveness.commands.watch import text_line
from liveness.demo.referee import FAULTS, GUEST, Referee
from liveness.demo.sidecar import Record
from liveness.demo.users import Behaviour
from liveness.text import escaped

# Records shown each time; of the others only how many there were.
MOST_RECORDS: Final = 4
ENDS: Final = ("silence", "logout", "moved", "gateway_lost")
COLUMNS: Final = ("users", "online", *ENDS)


# A print that was given up still goes on, and holds its place until it is done: else
# the account at the end could begin within the last line of status.
_ONE_AT_A_TIME: Final = trio.CapacityLimiter(1)


async def say(*lines: str) -> None:
    """Prints *lines* without holding up the gateway, however slow the terminal is.

    Somebody may stop it with Ctrl-S, and users must not fall silent by that.
    """
    show = partial(print, "\n".join(lines), flush=True)
    await trio.to_thread.run_sync(show, abandon_on_cancel=True, limiter=_ONE_AT_A_TIME)


class Feed:
    """The records that were not shown yet."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._others = 0

    def add(self, record: Record) -> None:
        """Keeps *record* to be shown, or counts it if there are enough."""
        if len(self._lines) < MOST_RECORDS:
            self._lines.append(text_line(record))
        else:
            self._others += 1

    def lines(self) -> list[str]:
        """What came since the last call."""
        lines, others = self._lines, self._others
        self._lines, self._others = [], 0
        return [*lines, f"{'':25}and {others} more"] if others else lines


def status(seconds: float, *, online: int, said: int, referee: Referee) -> str:
    """How things are after so many *seconds*, on one line."""
    counts = [f"{how} {_ended(referee, how)}" for how in ("silence", "logout")]
    counts += [f"{kind} {count}" for kind, count in referee.faults_of.items()]
    return f"{seconds:5.0f} s   online {online}, said {said}, " + ", ".join(counts)


def summary(referee: Referee, *, guests: int) -> Iterator[str]:
    """The account at the end: what became of whom, how late it was, what was wrong.

    Args:
        referee: Who kept it.
        guests: How many of those who joined from outside are in the room now.
    """
    online = Counter[str](referee.online.values())
    online[GUEST] = guests
    users = Counter[str](referee.planned)
    users[GUEST] = guests + sum(referee.ends[GUEST, how] for how in ENDS)
    yield ""
    yield _row("", *COLUMNS)
    for kind in (*Behaviour, GUEST):
        ends = [referee.ends[kind, how] for how in ENDS]
        yield _row(kind, users[kind], online[kind], *ends)
    ends = [_ended(referee, how) for how in ENDS]
    yield _row("all", users.total(), online.total(), *ends)
    yield ""
    yield from _lateness(referee)
    yield "faults: " + ", ".join(f"{kind} {referee.faults_of[kind]}" for kind in FAULTS)
    for fault in referee.faults:
        yield f"    {fault.kind}: {escaped(fault.uid)} {fault.what}"
    if unlisted := referee.faults_of.total() - len(referee.faults):
        yield f"    and {unlisted} more"


def _lateness(referee: Referee) -> Iterator[str]:
    found = sorted(referee.lateness_s)
    if found:
        p50, p99, most = (_quantile(found, share) for share in (0.5, 0.99, 1))
        yield (
            f"lateness: p50 {p50:.3f} s, p99 {p99:.3f} s, max {most:.3f} s "
            f"(a user's last line + {referee.timeout_s:g} s, to the record)"
        )
        yield (
            f"    up to {referee.flush_s:.3f} s of it are the gateway's, which collects "
            "signs of life"
        )
    else:
        yield "lateness: none was measured"
    if referee.not_measured:
        yield (
            f"    {referee.not_measured} were not measured, as this process stood still"
        )


def _ended(referee: Referee, how: str) -> int:
    return sum(count for (_, end), count in referee.ends.items() if end == how)


def _row(what: str, *cells: object) -> str:
    return f"{what:<11}" + "".join(
        f"{cell:>{len(column) + 2}}"
        for column, cell in zip(COLUMNS, cells, strict=True)
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[ceil(share * len(ordered)) - 1]
