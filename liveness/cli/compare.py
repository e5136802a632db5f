"""`liveness compare`: what a present detector calls offline, beside what is decided here.

    compare -     its lines as it writes them, beside the records as they are written
    compare FILE  lines that it wrote, beside the log in the state directory

The lines of both are compared in the same way (`liveness.compare.comparison`). Where only the other
detector called somebody offline it is looked up what is known here of that user.
"""

import os
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from sys import intern
from time import perf_counter
from typing import Annotated, Final
from urllib.parse import quote

import trio
from cyclopts import App, Parameter

from liveness.cli.explain import TIMEOUT_S
from liveness.cli.options import Json, Socket, State, lines_at, number
from liveness.compare.comparison import Comparison, Evidence, Line, Settled, Span
from liveness.compare.comparison_report import (
    ComparisonOptions,
    ComparisonReport,
    LineReader,
    Tell,
)
from liveness.compare.offline_lines import Lines
from liveness.config.sources import socket_path, state_folder
from liveness.console.admin_client import CommandError, asked, no_sidecar
from liveness.console.record_feed import WatchedFeed
from liveness.console.record_lines import RecordMap
from liveness.console.terminal import tell
from liveness.core.records import GAP, OFFLINE, Logged, Record, Uid
from liveness.service.storage import clocks_file
from liveness.service.storage.log_reader import LogReader, RecordFilter, log_in
from liveness.text import local_time, uid_text

STDIN: Final = 0
PIECE_BYTES: Final = 65_536
SETTLE_EVERY_S: Final = 1.0
# Of a file, which is sorted in memory: some 250 bytes a line that was understood. The
# others, and lines without end, are bounded with them.
MOST_LINES: Final = 5_000_000
MOST_BYTES: Final = 4 * 2**30
# Of a log on disk: how long a look takes about, and of how many records.
LOOK_S: Final = 0.2
LOOK_RECORDS: Final = 1_000
# For how long users are looked up at the end, when somebody waits for the account.
LAST_LOOKS_S: Final = 5.0
# When a detector was there that told nothing.
NOBODY: Final = Span(0, 0)


def wall_ms() -> int:
    """This moment, in Unix milliseconds."""
    return round(datetime.now(UTC).timestamp() * 1000)


# --- a file of the past ---------------------------------------------------------------


def compare_file(path: Path, folder: Path, options: ComparisonOptions) -> int:
    """Compares a file with the log; the exit code.

    Args:
        path: The file.
        folder: The state directory.
        options: How.
    Raises:
        CommandError: The file cannot be read.
        StateError: The log cannot be read.
    """
    reader, within_ms = LineReader(options.tell), options.within_ms
    lines = [*reader.read(_lines_of(path))]
    lines.sort(key=lambda told: told[1].at)
    there = Span(lines[0][1].at, lines[-1][1].at) if lines else NOBODY
    with log_in(folder, clock=perf_counter) as book:
        here = _span(book, folder, options.tell)
        if not lines:
            options.tell(f"{path} has no line to compare: is it theirs?")
        comparison = Comparison(within_ms, here=here, there=there)
        report = ComparisonReport(comparison, reader, options)
        sought = RecordFilter(
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
    lines, count, size = Lines(), 0, 0
    try:
        with path.open("rb") as file:
            while data := file.read(PIECE_BYTES):
                found = lines.feed(data)
                count, size = count + len(found), size + len(data)
                _check_size(path, count, size)
                yield from found
    except OSError as error:
        raise CommandError(
            f"{path}: {error.strerror}; name a file of lines, or - for those on stdin"
        ) from None
    yield from lines.end()


def _check_size(path: Path, lines: int, size: int) -> None:
    if lines > MOST_LINES or size > MOST_BYTES:
        raise CommandError(
            f"{path} has more than {MOST_LINES:,} lines, or {MOST_BYTES:,} bytes; split it"
        )


def _span(book: LogReader, folder: Path, tell: Tell) -> Span:
    """From when to when the log can tell; until now, unless its sidecar was stopped."""
    oldest, newest = book.oldest(), book.newest()
    if oldest is None or newest is None:
        raise CommandError(
            f"the log in {folder} is empty, and nothing can be compared with it: name "
            "the sidecar's state directory with --state"
        )
    stopped = clocks_file.stopped_at(folder, log=book.log(), seq=newest.seq)
    until = "now" if stopped is None else f"{local_time(stopped)}, the sidecar's stop"
    tell(f"comparing with the log in {folder}, from {local_time(oldest.at)} to {until}")
    return Span(oldest.at, wall_ms() if stopped is None else stopped)


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


def _in_log(book: LogReader, uid: Uid) -> Evidence:
    look = book.newest_of(uid, limit=LOOK_RECORDS, within_s=LOOK_S)
    return Evidence(
        is_online=book.online(uid) is not None,
        seen=None,
        records=look.records,
        is_all=look.back_to is None,
    )


# --- beside a detector that runs ------------------------------------------------------


async def compare_live(socket_path: Path, options: ComparisonOptions) -> int:
    """Compares lines on stdin with the records as they are written; the exit code.

    It ends with them, or when it is asked to (SIGINT, SIGTERM).

    Args:
        socket_path: The sidecar's socket.
        options: How.
    Raises:
        CommandError: There is no sidecar, or it will not have this watcher.
    """
    reader = LineReader(options.tell)
    # The moment at which both are there is known only once the link is.
    comparison = Comparison(options.within_ms, here=Span(inf), there=Span(inf))
    report = ComparisonReport(comparison, reader, options)
    beside = _Beside(socket_path, comparison, reader, report, options)
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
        options: How, and who is told what happens to the link.
    """

    def __init__(
        self,
        socket_path: Path,
        comparison: Comparison,
        reader: LineReader,
        report: ComparisonReport,
        options: ComparisonOptions,
    ) -> None:
        self._socket_path = socket_path
        self._comparison = comparison
        self._reader = reader
        self._report = report
        self._options = options
        self._feed = WatchedFeed(
            socket_path, after=None, kinds=[OFFLINE], tell=options.tell
        )
        self._told_to = 0  # until when this side has told all, Unix milliseconds
        self.has_begun = False

    async def run(self) -> None:
        """Compares until the lines end, or a signal comes."""
        try:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._feed.follow, self._take)
                    self._told_to = wall_ms()
                    self._comparison.begin(self._told_to)
                    self.has_begun = True
                    nursery.start_soon(self._read, nursery.cancel_scope)
                    nursery.start_soon(self._settle)
                    await anext(signals)
                    nursery.cancel_scope.cancel()
        finally:
            if self.has_begun:
                self._report.look_for(LAST_LOOKS_S)
                with trio.CancelScope(shield=True):
                    await self._write(self._comparison.finish(self._now()))

    def _now(self) -> int:
        """Up to when this side has told all: now, or when the link was lost.

        That holds until what was missed has come over the next one. What was told there
        in between may be told here as well: it is not to be judged before that.
        """
        linked_ms = 1000 * (trio.current_time() - self._feed.linked_at)
        if linked_ms >= self._options.within_ms:
            self._told_to = wall_ms()
        return self._told_to

    def _take(self, records: list[RecordMap]) -> bool:
        for record in records:
            if record["kind"] == OFFLINE:
                self._comparison.here(_record(record))
            else:
                assert record["kind"] == GAP
                self._options.tell(
                    "some offlines here are no longer kept, and are missing"
                )
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
                await self._write(self._comparison.settle(self._now()))

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


command: Final = App(
    name="compare",
    help_epilogue="Example: liveness compare theirs.jsonl --within 30",
    version_flags=[],
)


@command.default
def compare_offlines(
    file: Annotated[
        str,
        Parameter(
            help='lines of JSON, as {"uid": "ada", "at": 1789000030004}; - is stdin, beside '
            "a sidecar that runs",
            metavar="FILE",
            converter=lines_at,
            allow_leading_hyphen=True,  # of "-"
        ),
    ],
    /,
    *,
    socket: Socket = None,
    state: State = None,
    within: Annotated[
        float,
        number(
            float,
            "S",
            "how far apart in time the two may call the same user offline (default 60)",
            0.1,
            3_600,
        ),
    ] = 60.0,
    all: Annotated[
        bool, Parameter(help="show those whom both called offline, too")
    ] = False,
    json: Json = False,
) -> int:
    """Compare whom another detector calls offline, and when, with what is decided here.

    A FILE is compared with the log in the state directory, lines on stdin with the records
    as they are written, until the lines end or Ctrl-C. The exit code is 0 if both called
    somebody offline, and neither anybody alone; 3 if not, or if a line was left out.
    """
    options = ComparisonOptions(within, all, json, sys.stdout, tell)
    if file != "-":
        return compare_file(Path(file), state_folder(state), options)
    code: int = trio.run(compare_live, socket_path(socket), options)
    return code
