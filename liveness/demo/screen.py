"""What the demo says in plain lines, and never more than somebody can follow."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Final

import trio

from liveness.console.record_lines import text_line
from liveness.demo.plans import Behaviour
from liveness.demo.referee import FAULTS, GUEST, Record, Referee
from liveness.demo.stage import Stage
from liveness.text import escaped

TICK_S: Final = 2.0  # between two lines of status
# Records shown each time; of the others only how many there were.
MOST_RECORDS: Final = 4
MOST_TOLD: Final = 100  # within a tick; a script has no more
ENDS: Final = ("silence", "logout", "moved", "gateway_lost")
COLUMNS: Final = ("users", "online", *ENDS)


# A print that was given up still goes on, and holds its place until it is done: else
# the account at the end could begin within the last line of status.
_ONE_AT_A_TIME: Final = trio.CapacityLimiter(1)


async def say(*lines: str) -> None:
    """Prints *lines* without holding up the users, however slow the terminal is.

    Somebody may stop it with Ctrl-S, and users must not fall silent by that.
    """
    text = "".join(f"{line}\n" for line in lines)  # whole, also where unbuffered
    show = partial(print, text, end="", flush=True)
    await trio.to_thread.run_sync(show, abandon_on_cancel=True, limiter=_ONE_AT_A_TIME)


class Plain:
    """Shows what happens as lines: things done at once, all else once in a while."""

    def __init__(self) -> None:
        self._told: deque[str] = deque(maxlen=MOST_TOLD)
        self._is_told = trio.Event()
        self._records: list[str] = []
        self._others = 0
        self._has_silence = False

    def tell(self, line: str) -> None:
        """Shows a line soon."""
        self._told.append(line)
        self._is_told.set()

    def add(self, record: Record) -> None:
        """Keeps *record* to be shown, or counts it if there are enough.

        The first silence is what everyone waits for: that is shown at once.
        """
        if record.get("reason") == "silence" and not self._has_silence:
            self._has_silence = True
            self.tell(text_line(dict(record)))
        elif len(self._records) < MOST_RECORDS:
            self._records.append(text_line(dict(record)))
        else:
            self._others += 1

    async def run(self, stage: Stage) -> None:
        """Prints, until cancelled."""
        await say(*(f"    {hint}" for hint in stage.hints()))
        tick = trio.current_time()
        while True:
            tick += TICK_S
            while trio.current_time() < tick:
                with trio.move_on_at(tick):
                    await self._is_told.wait()
                self._is_told = trio.Event()
                if lines := self._lines():  # no tick may end this, or they are lost
                    await say(*lines)
            said, referee = stage.lines_said, stage.referee
            line = status(stage.elapsed_s, said=said, referee=referee)
            await say(*self._lines(), *self.records(), line)

    def _lines(self) -> list[str]:
        lines = list(self._told)
        self._told.clear()
        return lines

    def records(self) -> list[str]:
        """What came since the last call."""
        lines, others = self._records, self._others
        self._records, self._others = [], 0
        return [*lines, f"{'':25}and {others} more"] if others else lines


def status(seconds: float, *, said: int, referee: Referee) -> str:
    """How things are after so many *seconds*, on one line."""
    counts = [f"online {referee.online}", f"said {said}"]
    counts += [f"{how} {_ended(referee, how)}" for how in ("silence", "logout")]
    counts.append(f"reminders {referee.reminders.came}")
    if lost := _ended(referee, "gateway_lost"):
        counts.append(f"gateway_lost {lost}")
    counts += [f"{kind} {count}" for kind, count in referee.faults_of.items()]
    return f"{seconds:5.0f} s   " + ", ".join(counts)


def table(referee: Referee) -> Iterator[tuple[str, list[int]]]:
    """What became of whom: for each behaviour, and all, a number for each of `COLUMNS`."""
    total = [0] * len(COLUMNS)
    users = Counter[str](seen.behaviour for seen in referee.users.values())
    guests = sum(referee.ends[GUEST, how] for how in ENDS)
    users[GUEST] = len(referee.guests) + guests
    for kind in (*Behaviour, GUEST):
        online = (
            referee.online_of(kind)
            if isinstance(kind, Behaviour)
            else len(referee.guests)
        )
        ends = [referee.ends[kind, how] for how in ENDS]
        row = [users[kind], online, *ends]
        total = [sum(pair) for pair in zip(total, row, strict=True)]
        yield kind, row
    yield "all", total


def summary(referee: Referee, done: Mapping[str, int]) -> Iterator[str]:
    """The account at the end: what became of whom, how late it was, what was wrong.

    Args:
        referee: Who kept it.
        done: What was made to happen, and how often.
    """
    yield ""
    yield _row("", COLUMNS)
    for kind, numbers in table(referee):
        yield _row(kind, numbers)
    yield ""
    if done:
        times = (f"{name} {count}" for name, count in done.items())
        yield "done: " + ", ".join(times)
    yield from lateness(referee)
    yield reminders(referee)
    yield faults(referee)
    for fault in referee.faults:
        yield f"    {fault.kind}: {escaped(fault.uid)} {fault.what}"
    if unlisted := referee.faults_of.total() - len(referee.faults):
        yield f"    and {unlisted} more"


def lateness(referee: Referee) -> Iterator[str]:
    """How late silences were reported, as their users see it."""
    yield quantiles(referee)
    if referee.lateness_s:
        yield (
            f"    from a user's last line + {referee.timeout_s:g} s to the record; up to "
            f"{referee.flush_s:.3f} s are the gateway's, which collects signs of life"
        )
    if referee.not_measured:
        yield (
            f"    {referee.not_measured} more were not measured: meanwhile something was "
            "cut, stopped or restarted, or this process stood still"
        )


def quantiles(referee: Referee) -> str:
    """The same on one line."""
    found = sorted(referee.lateness_s)
    if not found:
        return "lateness: none was measured"
    p50, p99, most = (_quantile(found, share) for share in (0.5, 0.99, 1))
    return f"lateness: p50 {p50:.3f} s, p99 {p99:.3f} s, max {most:.3f} s"


def reminders(referee: Referee) -> str:
    """What became of reminders, and how late they came."""
    seen = referee.reminders
    asked = len(seen.by_key)
    line = f"reminders: {asked} asked, {seen.came} came, {seen.cancelled} cancelled"
    line += f", {asked - seen.came - seen.cancelled} open"
    if seen.lateness_s:
        line += f"; at most {max(seen.lateness_s):.3f} s late"
    return line


def faults(referee: Referee) -> str:
    """How many there were of each kind."""
    counts = (f"{kind} {referee.faults_of[kind]}" for kind in FAULTS)
    return "faults: " + ", ".join(counts)


def _ended(referee: Referee, how: str) -> int:
    return sum(count for (_, end), count in referee.ends.items() if end == how)


def _row(what: str, cells: Sequence[object]) -> str:
    return f"{what:<11}" + "".join(
        f"{cell:>{len(column) + 2}}"
        for column, cell in zip(COLUMNS, cells, strict=True)
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[ceil(share * len(ordered)) - 1]
