"""The demo in plain lines, few enough to follow, and the summary at its end."""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Final, Generic, TypeVar

import trio

from liveness.console.record_lines import text_line
from liveness.lab.common.promises import NO_PROMISE
from liveness.lab.demo.demo_run import DemoRun, Run
from liveness.lab.demo.plans import Behaviour
from liveness.lab.demo.referee import FAULTS, GUEST, Fault, Record, Referee
from liveness.text import escaped

TICK_S: Final = 2.0  # between two lines of status
# Records shown in a tick; the others are only counted.
MOST_RECORDS: Final = 4
MOST_LOGGED: Final = 100  # lines about actions in a tick; a script has no more steps
DATE: Final = len("2026-11-20 ")
ENDS: Final = ("silence", "logout", "moved", "gateway_lost")
COLUMNS: Final = ("users", "online", *ENDS)

R = TypeVar("R", bound=Run)

# A print that is abandoned goes on in its thread, and keeps the limiter until it is done.
# Otherwise the summary could begin in the middle of its line.
_PRINTING: Final = trio.CapacityLimiter(1)


async def say(*lines: str) -> None:
    """Prints lines in a thread, so that a slow terminal does not delay the users.

    A reader can stop the terminal with Ctrl-S; that must not make users fall silent.
    """
    text = "".join(f"{line}\n" for line in lines)  # one write, even if unbuffered
    show = partial(print, text, end="", flush=True)
    await trio.to_thread.run_sync(show, abandon_on_cancel=True, limiter=_PRINTING)


class Lines(ABC, Generic[R]):
    """Prints lines about actions at once, and all else every two seconds."""

    def __init__(self) -> None:
        self._logged: deque[str] = deque(maxlen=MOST_LOGGED)
        self._has_logged = trio.Event()
        self._records: list[str] = []
        self._others = 0
        self._has_silence = False

    def log(self, line: str) -> None:
        """Prints a line soon."""
        self._logged.append(line)
        self._has_logged.set()

    def add(self, record: Record) -> None:
        """Prints a record with the next status, or counts it if there are enough.

        The first silence is printed at once: it is what the demo is about.
        """
        if record.get("reason") == "silence" and not self._has_silence:
            self._has_silence = True
            self.log(self._line(record))
        elif len(self._records) < MOST_RECORDS:
            self._records.append(self._line(record))
        else:
            self._others += 1

    async def run(self, demo: R) -> None:
        """Prints, until cancelled."""
        await say(*(f"  {hint}" for hint in demo.hints()))
        tick = trio.current_time()
        while True:
            tick += TICK_S
            while trio.current_time() < tick:
                with trio.move_on_at(tick):
                    await self._has_logged.wait()
                self._has_logged = trio.Event()
                # Outside the timeout, which would lose the lines.
                if lines := self._taken():
                    await say(*lines)
            await say(*self._taken(), *self.records(), self._status(demo))

    def _taken(self) -> list[str]:
        lines = list(self._logged)
        self._logged.clear()
        return lines

    def records(self) -> list[str]:
        """The records since the last call."""
        lines, others = self._records, self._others
        self._records, self._others = [], 0
        return [*lines, f"{'':14}and {others} more"] if others else lines

    @abstractmethod
    def _line(self, record: Record) -> str:
        """A record as a line."""

    @abstractmethod
    def _status(self, demo: R) -> str:
        """The state of the run as a line."""


class PlainLines(Lines[DemoRun]):
    """Those of the demo with one host."""

    def _line(self, record: Record) -> str:
        return record_line(record)

    def _status(self, demo: DemoRun) -> str:
        return status(demo.elapsed_s, said=demo.lines_said, referee=demo.referee)


def record_line(record: Record) -> str:
    """A record in 80 columns: without the date, and without its seq."""
    return text_line(dict(record))[DATE:].rpartition("  seq ")[0]


def status(seconds: float, *, said: int, referee: Referee) -> str:
    """The state after *seconds*, on one line."""
    counts = [f"online {referee.online}", f"said {said}"]
    counts += [f"{how} {_ended(referee, how)}" for how in ("silence", "logout")]
    counts.append(f"reminders {referee.reminders.fired}")
    if lost := _ended(referee, "gateway_lost"):
        counts.append(f"lost {lost}")
    counts += [f"{kind} {count}" for kind, count in referee.faults_of.items()]
    return f"{seconds:5.0f} s   " + ", ".join(counts)


def table(referee: Referee) -> Iterator[tuple[str, list[int]]]:
    """For each behaviour, and for all users, a number for each of `COLUMNS`."""
    total = [0] * len(COLUMNS)
    users = Counter[str](user.behaviour for user in referee.users.values())
    online = {kind: referee.online_of(kind) for kind in Behaviour}
    guests = referee.guests
    users[GUEST] = guests + sum(referee.ends[GUEST, how] for how in ENDS)
    for kind, online_count in [*online.items(), (GUEST, guests)]:
        ends = [referee.ends[kind, how] for how in ENDS]
        row = [users[kind], online_count, *ends]
        total = [sum(pair) for pair in zip(total, row, strict=True)]
        yield kind, row
    yield "all", total


def summary(referee: Referee, done: Mapping[str, int]) -> Iterator[str]:
    """What happened to the users, how late it was reported, and the faults.

    *done* says how often each action was performed.
    """
    yield ""
    yield _row("", COLUMNS)
    for kind, numbers in table(referee):
        yield _row(kind, numbers)
    yield ""
    yield from what_was_done(done)
    yield lateness(referee)
    if referee.lateness_s:
        yield (f"    from a user's last line + {referee.timeout_s:g} s to the record;")
        yield (
            f"    up to {referee.flush_s:.3f} s are the gateway's, which collects activity"
        )
    if referee.not_measured:
        yield (
            f"    {referee.not_measured} more were not measured: meanwhile a process was "
            "killed, stopped"
        )
        yield "    or restarted, or this one stood still"
    yield reminders(referee)
    yield "faults: " + counted(referee.faults_of, FAULTS)
    yield from listed_faults(referee.faults, referee.faults_of.total())


def what_was_done(done: Mapping[str, int]) -> Iterator[str]:
    """How often each action was performed, on one line; none if there was no action."""
    if done:
        times = (f"{name} {count}" for name, count in done.items())
        yield "done: " + ", ".join(times)


def counted(faults_of: Counter[str], kinds: Sequence[str]) -> str:
    """The number of faults of each kind."""
    return ", ".join(f"{kind} {faults_of[kind]}" for kind in kinds)


def listed_faults(faults: Sequence[Fault], total: int) -> Iterator[str]:
    """The faults that are remembered, of *total* ones."""
    for fault in faults:
        line = f"    {fault.kind}: {escaped(fault.uid)} {fault.breach.what}"
        if fault.breach.promise != NO_PROMISE:
            line += f" (promise {fault.breach.promise})"
        yield line
    if unlisted := total - len(faults):
        yield f"    and {unlisted} more"


def lateness(referee: Referee) -> str:
    """How late silences were reported, on one line."""
    found = sorted(referee.lateness_s)
    if not found:
        return "lateness: none was measured"
    p50, p99, most = (found[ceil(q * len(found)) - 1] for q in (0.5, 0.99, 1))
    return f"lateness: p50 {p50:.3f} s, p99 {p99:.3f} s, max {most:.3f} s"


def reminders(referee: Referee) -> str:
    """How many reminders were asked for, fired and cancelled, and how late they were."""
    found = referee.reminders
    asked = len(found.by_key)
    line = f"reminders: {asked} asked, {found.fired} came, {found.cancelled} cancelled"
    line += f", {asked - found.fired - found.cancelled} open"
    if found.lateness_s:
        line += f"; at most {max(found.lateness_s):.3f} s late"
    return line


def _ended(referee: Referee, how: str) -> int:
    return sum(count for (_, end), count in referee.ends.items() if end == how)


def _row(head: str, cells: Sequence[object]) -> str:
    return f"{head:<11}" + "".join(
        f"{cell:>{len(column) + 2}}"
        for column, cell in zip(COLUMNS, cells, strict=True)
    )
