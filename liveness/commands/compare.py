"""`liveness compare`: what a present detector calls offline, beside what is decided here.

    compare -     its lines as it writes them, beside the records as they are written
    compare FILE  lines that it wrote, beside the log in the state directory

The lines of both are compared in the same way (`liveness.compare`). Where only the other
detector called somebody offline it is looked up what is known here of that user.
"""

import json
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from sys import intern
from time import perf_counter
from typing import Any, Final, NamedTuple, TextIO
from urllib.parse import quote

import trio

from liveness.commands import CommandError
from liveness.commands.admin import asked, no_sidecar
from liveness.commands.explain import TIMEOUT_S
from liveness.commands.watch import Feed, RecordMap, text_line
from liveness.compare import (
    BOTH,
    HERE,
    LOGGED_OUT,
    MOST_PENDING,
    NOT_JUDGED,
    THERE,
    UNLOOKED,
    WHYS,
    Account,
    Comparison,
    Evidence,
    Line,
    Settled,
    Span,
    Why,
    why_only_there,
)
from liveness.core.records import GAP, OFFLINE, OFFLINE_REASONS, Logged, Record, Uid
from liveness.errors import LivenessError
from liveness.offlines import Lines, offline_in
from liveness.service.logbook import Logbook, Sought, log_in
from liveness.text import escaped, json_ready, local_time, uid_text

AGREE: Final = 0
DIFFER: Final = 3  # 1 and 2 are failures of the command itself
STDIN: Final = 0
PIECE_BYTES: Final = 65_536
SETTLE_EVERY_S: Final = 1.0
# Of a file, which is sorted in memory: some 250 bytes a line.
MOST_LINES: Final = 5_000_000
# How many bad lines are told one by one; all are counted.
MOST_TOLD: Final = 10
# How many users are looked up, which may take seconds each in a large log, and how many
# may wait meanwhile to be settled.
MOST_LOOKS: Final = 1_000
MOST_WHILE_LOOKING: Final = MOST_PENDING // 2
# Of a log on disk: how long a look takes about, and of how many records.
LOOK_S: Final = 0.2
LOOK_RECORDS: Final = 1_000
# For how long users are looked up at the end, when somebody waits for the account.
LAST_LOOKS_S: Final = 5.0
# When a detector was there that told nothing.
NOBODY: Final = Span(0, 0)

Look = Callable[[Uid], Evidence]
Tell = Callable[[str], None]


class Options(NamedTuple):
    """How it is compared, and told.

    `within_s` is the tolerance; `is_all`: those that both called offline have a line, too;
    `as_json`: a line is an object, and not for a person; `out` is where lines and account
    go; `tell` is told of the rest.
    """

    within_s: float
    is_all: bool
    as_json: bool
    out: TextIO
    tell: Tell

    @property
    def within_ms(self) -> int:
        """The tolerance in milliseconds."""
        return round(self.within_s * 1000)


def wall_ms() -> int:
    """This moment, in Unix milliseconds."""
    return round(datetime.now(UTC).timestamp() * 1000)


class Reader:
    """Understands lines; what is wrong with one is told and counted.

    Args:
        tell: Is told of the first bad ones.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.lines = 0
        self.bad = 0

    def read(self, lines: Iterable[bytes | None]) -> Iterator[tuple[Uid, Line]]:
        """Who went offline by each line, and when; None is a line that was too long."""
        for line in lines:
            self.lines += 1
            if line is not None and not line.strip():
                continue
            try:
                uid, at = offline_in(line)
            except ValueError as error:
                self._leave_out(error)
            else:
                yield uid, Line(at, self.lines)

    def _leave_out(self, error: ValueError) -> None:
        self.bad += 1
        if self.bad <= MOST_TOLD:
            self._tell(f"line {self.lines} is left out: {error}")
        if self.bad == MOST_TOLD:
            self._tell("further lines that are left out are only counted")


class Report:
    """Writes what is settled, and at the end the account.

    Args:
        comparison: What settles it.
        reader: What it was read by.
        options: How.
    """

    def __init__(
        self,
        comparison: Comparison,
        reader: Reader,
        options: Options,
    ) -> None:
        self._comparison = comparison
        self._reader = reader
        self._options = options
        self._account = Account()
        self._looks = 0
        self._look_until = inf

    def wants_look(self, settled: Settled) -> bool:
        """Whether it is to be looked up what is known here of this user."""
        return (
            settled.verdict == THERE
            and self._looks < MOST_LOOKS
            and perf_counter() < self._look_until
            and self._comparison.pending <= MOST_WHILE_LOOKING
        )

    def look_for(self, seconds: float) -> None:
        """Has users looked up for so long yet, and then no more."""
        self._look_until = perf_counter() + seconds

    def why(self, settled: Settled, look: Look) -> Why | None:
        """What is known here of a user whom only they called offline."""
        assert settled.there is not None
        self._looks += 1
        try:
            return why_only_there(settled.there.at, look(settled.uid))
        except LivenessError as error:
            self._looks = MOST_LOOKS
            self._options.tell(f"no more users are looked up: {error}")
            return None

    def write(self, settled: Settled, why: Why | None = None) -> None:
        """Counts what is settled, and writes a line of it if it is to have one."""
        self._account.add(settled, why and why.kind)
        if settled.verdict in (HERE, THERE) or self._options.is_all:
            form = _as_json if self._options.as_json else _as_text
            self._options.out.write(f"{form(settled, why)}\n")

    def flush(self) -> None:
        """Has what was written seen."""
        self._options.out.flush()

    def end(self) -> int:
        """Writes the account; the exit code."""
        if self._options.as_json:
            self._options.out.write(f"{json.dumps({'account': self._as_map()})}\n")
        else:
            self._options.out.writelines(f"{line}\n" for line in self._as_rows())
        self._options.out.flush()
        return AGREE if self._account.agrees and not self._reader.bad else DIFFER

    def _as_map(self) -> dict[str, Any]:
        of = self._comparison
        return {
            "within_s": self._options.within_s,
            **self._account.as_map(),
            "lines": self._reader.lines,
            "bad_lines": self._reader.bad,
            "lines_before": of.before,
            "late": of.late,
            "hurried": of.hurried,
        }

    def _as_rows(self) -> Iterator[str]:
        account, of = self._account, self._comparison
        reasons, counts = account.reasons, account.verdicts
        yield _row("both", counts[BOTH], _parts(OFFLINE_REASONS, reasons[BOTH]))
        later = account.later_s()
        if later is not None:
            shown = ", ".join(f"{name} {value:+.3f} s" for name, value in later.items())
            yield f"{'later there':<14}{shown}"
            yield f"{'':<14}{_parts(('earlier', 'same', 'later'), account.later())}"
        yield _row("only here", counts[HERE], _parts(OFFLINE_REASONS, reasons[HERE]))
        yield _row("only there", counts[THERE], _parts(WHYS, account.whys))
        near = f"within {self._options.within_s:g} s of where one side begins or ends"
        yield _row("not judged", counts[NOT_JUDGED], near)
        yield _row("logouts here", counts[LOGGED_OUT], "not told there")
        told = {"bad": self._reader.bad, "before": of.before, "late": of.late}
        told["hurried"] = of.hurried
        yield _row("lines", self._reader.lines, _parts(tuple(told), told))


def _row(name: str, number: int, told: str) -> str:
    return f"{name:<14}{number:,}" + (f"  ({told})" if told and number else "")


def _parts(names: Iterable[str], counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {counts[name]:,}" for name in names if counts.get(name))


def _as_text(settled: Settled, why: Why | None) -> str:
    """One line for a person."""
    head, there = f"{settled.verdict:<10}", settled.there
    if settled.here is None:
        assert there is not None
        uid = escaped(uid_text(settled.uid))
        told = f"{head}  {local_time(there.at)}  {uid}  line {there.number}"
        return told if why is None else f"{told}  {why.told}"
    told = f"{head}  {text_line(settled.here.as_map())}"
    if there is None or settled.later_ms is None:
        return told
    return f"{told}  line {there.number}  {settled.later_ms / 1000:+.3f} s there"


def _as_json(settled: Settled, why: Why | None) -> str:
    """One line of JSON, all ASCII: nothing in it can steer a terminal."""
    here, there, later_ms = settled.here, settled.there, settled.later_ms
    shown: dict[str, Any] = {
        "verdict": settled.verdict,
        **json_ready({"uid": settled.uid}),
    }
    if here is not None:
        shown["here"] = json_ready(here.as_map())
    if there is not None:
        shown["there"] = {"at": there.at, "line": there.number}
    if later_ms is not None:
        shown["later_s"] = later_ms / 1000
    if settled.verdict == THERE:
        shown["why"] = why.kind if why else UNLOOKED
        shown["told"] = why.told if why else ""
    return json.dumps(shown, separators=(",", ":"))


# --- a file of the past ---------------------------------------------------------------


def compare_file(
    path: Path,
    folder: Path,
    options: Options,
) -> int:
    """Compares a file with the log; the exit code.

    Args:
        path: The file.
        folder: The state directory.
        options: How.
    Raises:
        CommandError: The file cannot be read.
        StateError: The log cannot be read.
    """
    reader, within_ms = Reader(options.tell), options.within_ms
    lines = _bounded(reader.read(_lines_of(path)), path)
    lines.sort(key=lambda told: told[1].at)
    there = Span(lines[0][1].at, lines[-1][1].at) if lines else NOBODY
    with log_in(folder, clock=perf_counter) as book:
        here = _span(book, folder, options.tell)
        if not lines:
            options.tell(f"{path} has no line to compare: is it theirs?")
        comparison = Comparison(within_ms, here=here, there=there)
        report = Report(
            comparison,
            reader,
            options,
        )
        sought = Sought(
            kinds=frozenset({OFFLINE}),
            since=round(there.begin) - within_ms,
            until=round(min(there.end, here.end)) + within_ms + 1,
        )
        for settled in _merged(comparison, lines, book.records(sought)):
            why = None
            if report.wants_look(settled):
                why = report.why(settled, partial(_in_log, book))
            report.write(settled, why)
    return report.end()


def _lines_of(path: Path) -> Iterator[bytes | None]:
    lines = Lines()
    try:
        with path.open("rb") as file:
            while data := file.read(PIECE_BYTES):
                yield from lines.feed(data)
    except OSError as error:
        raise CommandError(
            f"{path}: {error.strerror}; name a file of lines, or - for those on stdin"
        ) from None
    yield from lines.end()


def _bounded(found: Iterable[tuple[Uid, Line]], path: Path) -> list[tuple[Uid, Line]]:
    lines = list(islice(found, MOST_LINES + 1))
    if len(lines) > MOST_LINES:
        raise CommandError(f"{path} has more than {MOST_LINES:,} lines; split it")
    return lines


def _span(book: Logbook, folder: Path, tell: Tell) -> Span:
    """From when to when the log can tell; until now, if nobody has been offline since."""
    oldest, newest = book.oldest(), book.newest()
    if oldest is None or newest is None:
        raise CommandError(
            f"the log in {folder} is empty, and nothing can be compared with it: name "
            "the sidecar's state directory with --state"
        )
    span = f"from {local_time(oldest.at)} to {local_time(newest.at)}"
    tell(f"comparing with the log in {folder}, {span}")
    return Span(oldest.at, wall_ms())


def _merged(
    comparison: Comparison, lines: Iterable[tuple[Uid, Line]], records: Iterable[Logged]
) -> Iterator[Settled]:
    """What is settled as both are told in the order of time."""
    ahead = deque(lines)
    for record in records:
        assert isinstance(record, Record)
        while ahead and ahead[0][1].at <= record.at:
            comparison.there(*ahead.popleft())
        comparison.here(record)
        yield from comparison.settle(record.at)
    for uid, line in ahead:
        comparison.there(uid, line)
        yield from comparison.settle(line.at)
    yield from comparison.finish(inf)


def _in_log(book: Logbook, uid: Uid) -> Evidence:
    look = book.newest_of(uid, limit=LOOK_RECORDS, within_s=LOOK_S)
    return Evidence(
        is_online=book.online(uid) is not None,
        seen=None,
        records=look.records,
        is_all=look.back_to is None,
    )


# --- beside a detector that runs ------------------------------------------------------


async def compare_live(
    socket_path: Path,
    options: Options,
) -> int:
    """Compares lines on stdin with the records as they are written; the exit code.

    It ends with them, or when it is asked to (SIGINT, SIGTERM).

    Args:
        socket_path: The sidecar's socket.
        options: How.
    Raises:
        CommandError: There is no sidecar, or it will not have this watcher.
    """
    reader = Reader(options.tell)
    # The moment at which both are there is known only once the link is.
    comparison = Comparison(options.within_ms, here=Span(inf), there=Span(inf))
    report = Report(
        comparison,
        reader,
        options,
    )
    beside = _Beside(socket_path, comparison, reader, report, options.tell)
    failed: list[BaseExceptionGroup[CommandError]] = []
    try:
        await beside.run()
    except* CommandError as group:
        if not beside.has_begun:
            raise
        failed.append(group)
    code = report.end()
    if failed:  # what was compared until then is told first
        raise failed[0]
    return code


class _Beside:
    """A comparison with a detector that runs.

    Args:
        socket_path: The sidecar's socket.
        comparison: Is told of both.
        reader: Understands the lines.
        report: Is given what is settled.
        tell: Is told what happens to the link.
    """

    def __init__(
        self,
        socket_path: Path,
        comparison: Comparison,
        reader: Reader,
        report: Report,
        tell: Tell,
    ) -> None:
        self._socket_path = socket_path
        self._comparison = comparison
        self._reader = reader
        self._report = report
        self._tell = tell
        self.has_begun = False

    async def run(self) -> None:
        """Compares until the lines end, or a signal comes."""
        feed = Feed(self._socket_path, after=None, kinds=[OFFLINE], tell=self._tell)
        try:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async with trio.open_nursery() as nursery:
                    await nursery.start(feed.follow, self._take)
                    self._comparison.begin(wall_ms())
                    self.has_begun = True
                    nursery.start_soon(self._read, nursery.cancel_scope)
                    nursery.start_soon(self._settle)
                    await anext(signals)
                    nursery.cancel_scope.cancel()
        finally:
            if self.has_begun:
                self._report.look_for(LAST_LOOKS_S)
                with trio.CancelScope(shield=True):
                    await self._write(self._comparison.finish(wall_ms()))

    def _take(self, records: list[RecordMap]) -> bool:
        for record in records:
            if record["kind"] == OFFLINE:
                self._comparison.here(_record(record))
            else:
                assert record["kind"] == GAP
                self._tell("some offlines here are no longer kept, and are missing")
        return False

    async def _read(self, until: trio.CancelScope) -> None:
        lines, read = Lines(), partial(os.read, STDIN, PIECE_BYTES)
        # Not by a buffered stream: a thread that is left in it holds its lock for ever.
        try:
            while data := await trio.to_thread.run_sync(read, abandon_on_cancel=True):
                self._tell_there(lines.feed(data))
        except OSError as error:
            told = f"stdin cannot be read ({error.strerror}); give it lines"
            raise CommandError(told) from None
        self._tell_there(lines.end())
        until.cancel()

    def _tell_there(self, lines: Iterable[bytes | None]) -> None:
        for uid, line in self._reader.read(lines):
            self._comparison.there(uid, line)

    async def _settle(self) -> None:
        while True:
            await trio.sleep(SETTLE_EVERY_S)
            with trio.CancelScope(shield=True):  # or what is settled would be lost
                await self._write(self._comparison.settle(wall_ms()))

    async def _write(self, settled: Iterable[Settled]) -> None:
        look = partial(_in_sidecar, self._socket_path)
        for one in settled:
            why = None
            if self._report.wants_look(one):
                why = await trio.to_thread.run_sync(self._report.why, one, look)
            self._report.write(one, why)
        self._report.flush()


def _in_sidecar(socket_path: Path, uid: Uid) -> Evidence:
    page = f"/v1/users/{quote(uid_text(uid), safe='')}?limit=100"
    found = asked(socket_path, page, timeout_s=TIMEOUT_S)
    if not isinstance(found.get("told"), str):
        raise no_sidecar(socket_path)
    return Evidence(
        is_online=found["online"],
        seen=found["seen"],
        records=[_record(record | {"uid": uid}) for record in found["records"]],
        is_all=found["looked_back_to"] is None,
    )


def _record(shown: RecordMap) -> Record:
    """A record of a session, of what the sidecar shows of it."""
    return Record(
        seq=shown["seq"],
        kind=intern(shown["kind"]),
        uid=shown["uid"],
        gateway=intern(shown["gateway"]),
        session=shown["session"],
        conn=shown.get("conn"),
        reason=intern(shown["reason"]),
        at=shown["at"],
        seen=shown.get("seen"),
        last=shown.get("last"),
        silence=shown.get("silence"),
        restored=shown.get("restored", False),
        from_gateway=shown.get("from"),
        from_session=shown.get("from_session"),
        from_conn=shown.get("from_conn"),
    )
