"""`liveness compare`: the offlines of another detector beside those of the sidecar.

    compare -     its lines as it writes them, beside the records as they are written
    compare FILE  a file of its lines, beside the log in the state directory

Both match offlines in the same way (`liveness.lab.compare.comparison`). For an offline that
only the other detector reported, the command looks up what the sidecar knows of the user.
"""

import os
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from sys import intern
from time import perf_counter
from typing import Annotated, Any, Final

import trio
from cyclopts import Parameter, Token

from liveness.cli.explain import user_in_sidecar
from liveness.cli.options import Json, Socket, State, declared, file_at, number
from liveness.client.watcher import LOG, watch
from liveness.config.sources import socket_path, state_folder
from liveness.console.admin_client import CommandError
from liveness.console.record_lines import RecordMap
from liveness.console.terminal import report_line
from liveness.console.watching import command_errors
from liveness.core.records import GAP, OFFLINE, Logged, Record, Uid
from liveness.lab.compare.comparison import Comparison, Evidence, Line, Outcome, Span
from liveness.lab.compare.comparison_report import (
    ComparisonOptions,
    ComparisonReport,
    LineReader,
)
from liveness.service.storage import clocks_file
from liveness.service.storage.log_reader import LogReader, RecordFilter, open_log
from liveness.text import from_json, local_time

STDIN: Final = 0
PIECE_BYTES: Final = 65_536
SETTLE_EVERY_S: Final = 1.0
# Bounds of a file, which is sorted in memory: a good line takes some 250 bytes there. Bad
# and endless lines count as well.
MOST_LINES: Final = 5_000_000
MOST_BYTES: Final = 4 * 2**30
# How long a lookup in the log may take, roughly, and of how many records.
LOOKUP_S: Final = 0.2
LOOKUP_RECORDS: Final = 1_000
# How long users are looked up at the end, before the totals are printed.
FINAL_LOOKUPS_S: Final = 5.0
# The span of a detector that has written nothing.
EMPTY_SPAN: Final = Span(0, 0)


def wall_ms() -> int:
    """The current time in Unix milliseconds."""
    return round(datetime.now(UTC).timestamp() * 1000)


# --- a file beside the log ------------------------------------------------------------


def compare_file(path: Path, folder: Path, options: ComparisonOptions) -> int:
    """Compares the lines in a file with the log in the state directory *folder*.

    Returns:
        The exit code.
    Raises:
        CommandError: The file cannot be read.
        StateError: The log cannot be read.
    """
    reader, within_ms = LineReader(), options.within_ms
    lines = sorted(_lines_of(path, reader), key=lambda uid_and_line: uid_and_line[1].at)
    there = Span(lines[0][1].at, lines[-1][1].at) if lines else EMPTY_SPAN
    with open_log(folder, clock=perf_counter) as log:
        here = _span(log, folder)
        if not lines:
            report_line(f"{path} has no line to compare: is it the right file?")
        comparison = Comparison(within_ms, here=here, there=there)
        report = ComparisonReport(comparison, reader, options)
        selection = RecordFilter(
            kinds=frozenset({OFFLINE}),
            since=round(there.begin) - within_ms,
            until=round(min(there.end, here.end)) + within_ms + 1,
        )
        for outcome in _merged(comparison, lines, log.records(selection)):
            cause = None
            if report.wants_lookup(outcome):
                cause = report.cause(outcome, partial(_evidence_in_log, log))
            report.write(outcome, cause)
    return report.end()


def _lines_of(path: Path, reader: LineReader) -> Iterator[tuple[Uid, Line]]:
    size = 0
    try:
        with path.open("rb") as file:
            while data := file.read(PIECE_BYTES):
                yield from reader.feed(data)
                size += len(data)
                if reader.lines > MOST_LINES or size > MOST_BYTES:
                    raise CommandError(
                        f"{path} has more than {MOST_LINES:,} lines, or {MOST_BYTES:,} "
                        "bytes; split it"
                    )
    except OSError as error:
        raise CommandError(
            f"{path}: {error.strerror}; name a file of lines, or - for those on stdin"
        ) from None
    yield from reader.end()


def _span(log: LogReader, folder: Path) -> Span:
    """The period that the log covers: until now, or until its sidecar was stopped."""
    oldest, newest = log.oldest(), log.newest()
    if oldest is None or newest is None:
        raise CommandError(
            f"the log in {folder} is empty, so there is nothing to compare: name the "
            "sidecar's state directory with --state"
        )
    stopped = clocks_file.stopped_at(folder, log=log.log(), seq=newest.seq)
    stopped = None if stopped is None else stopped + log.wall_ahead_ms()
    until = "now" if stopped is None else f"{local_time(stopped)}, the sidecar's stop"
    report_line(
        f"comparing with the log in {folder}, from {local_time(oldest.at)} to {until}"
    )
    return Span(oldest.at, wall_ms() if stopped is None else stopped)


def _merged(
    comparison: Comparison, lines: Iterable[tuple[Uid, Line]], records: Iterable[Logged]
) -> Iterator[Outcome]:
    """The outcomes as lines and records are added in order of time."""
    ahead = deque(lines)
    for record in records:
        assert isinstance(record, Record)
        while ahead and ahead[0][1].at <= record.at:
            comparison.add_line(*ahead.popleft())
        comparison.add_record(record)
        yield from comparison.settle(record.at)
    for uid, line in ahead:
        comparison.add_line(uid, line)
        yield from comparison.settle(line.at)
    yield from comparison.finish(inf)


def _evidence_in_log(log: LogReader, uid: Uid) -> Evidence:
    found = log.newest_of(uid, limit=LOOKUP_RECORDS, within_s=LOOKUP_S)
    return Evidence(
        is_online=log.online(uid) is not None,
        seen=None,
        records=found.records,
        is_complete=found.back_to is None,
    )


# --- beside a running detector --------------------------------------------------------


async def compare_live(socket_path: Path, options: ComparisonOptions) -> int:
    """Compares lines on stdin with the records as they are written.

    Ends with the lines, or at SIGINT or SIGTERM.

    Returns:
        The exit code.
    Raises:
        CommandError: There is no sidecar, or it refuses this watcher.
    """
    live = _LiveComparison(socket_path, options)
    errors: list[BaseExceptionGroup[CommandError]] = []
    try:
        await live.run()
    except* CommandError as group:
        if not live.has_begun:
            raise
        errors.append(group)
    code = live.report.end()
    if errors:  # reported after the totals
        raise errors[0]
    return code


class _LiveComparison:
    """Reads the lines and the records, and prints what is settled once a second."""

    def __init__(self, socket_path: Path, options: ComparisonOptions) -> None:
        self._socket_path = socket_path
        self._within_ms = options.within_ms
        self._reader = LineReader()
        # Both sides begin once the link is up: see `run`.
        self._comparison = Comparison(self._within_ms, here=Span(inf), there=Span(inf))
        self.report = ComparisonReport(self._comparison, self._reader, options)
        self._watch = watch(
            socket_path, kinds=[OFFLINE], strict=True, report_line=report_line
        )
        self._complete_to = 0  # see `_records_complete_to`; Unix milliseconds
        self.has_begun = False

    async def run(self) -> None:
        """Compares until the lines end, or a signal comes."""
        async with self._watch:  # its link is asked about until the end
            await self._compare()

    async def _compare(self) -> None:
        try:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._read_records)
                    self._complete_to = wall_ms()
                    self._comparison.begin(self._complete_to)
                    self.has_begun = True
                    nursery.start_soon(self._read_stdin, nursery.cancel_scope)
                    nursery.start_soon(self._settle)
                    await anext(signals)
                    nursery.cancel_scope.cancel()
        finally:
            if self.has_begun:
                self.report.limit_lookups(FINAL_LOOKUPS_S)
                with trio.CancelScope(shield=True):
                    outcomes = self._comparison.finish(self._records_complete_to())
                    await self._write(outcomes)

    def _records_complete_to(self) -> int:
        """The time up to which all records have arrived: now, or when the link was lost.

        A new link counts only once it has lasted for the tolerance: it first brings the
        records that were missed, and one of these may belong to a line that is waiting.
        """
        linked_ms = 1000 * (trio.current_time() - self._watch.linked_at)
        if linked_ms >= self._within_ms:
            self._complete_to = wall_ms()
        return self._complete_to

    async def _read_records(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with command_errors(self._socket_path):
            await self._watch.connected()
            task_status.started()
            async for batch in self._watch.batches():
                self._add_records(batch)

    def _add_records(self, records: Iterable[RecordMap]) -> None:
        for record in records:
            if record["kind"] == OFFLINE:
                self._comparison.add_record(_record(record))
            elif record["kind"] == GAP:
                report_line("some records are no longer kept, and are missing")
            else:
                assert record["kind"] == LOG  # the line about the link says it

    async def _read_stdin(self, until: trio.CancelScope) -> None:
        # Not `sys.stdin`: a thread abandoned in a buffered read holds its lock for ever.
        read = partial(os.read, STDIN, PIECE_BYTES)
        try:
            while data := await trio.to_thread.run_sync(read, abandon_on_cancel=True):
                self._add_lines(self._reader.feed(data))
        except OSError as error:
            raise CommandError(
                f"stdin cannot be read ({error.strerror}); give it lines"
            ) from None
        self._add_lines(self._reader.end())
        until.cancel()

    def _add_lines(self, lines: Iterable[tuple[Uid, Line]]) -> None:
        for uid, line in lines:
            self._comparison.add_line(uid, line)

    async def _settle(self) -> None:
        while True:
            await trio.sleep(SETTLE_EVERY_S)
            with trio.CancelScope(shield=True):  # an outcome is yielded only once
                await self._write(self._comparison.settle(self._records_complete_to()))

    async def _write(self, outcomes: Iterable[Outcome]) -> None:
        lookup = partial(_evidence_in_sidecar, self._socket_path)
        for outcome in outcomes:
            cause = None
            if self.report.wants_lookup(outcome):
                cause = await trio.to_thread.run_sync(
                    self.report.cause, outcome, lookup
                )
            self.report.write(outcome, cause)
        sys.stdout.flush()


def _evidence_in_sidecar(socket_path: Path, uid: Uid) -> Evidence:
    found = user_in_sidecar(socket_path, uid, "?limit=100")
    return Evidence(
        is_online=found["online"],
        seen=found["seen"],
        records=[_record(from_json(record)) for record in found["records"]],
        is_complete=found["looked_back_to"] is None,
    )


def _record(shown: RecordMap) -> Record:
    """A record of a session, from its JSON or frame."""
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


# --- the command ----------------------------------------------------------------------


def _lines_at(_kind: Any, tokens: Sequence[Token]) -> str:
    """A file to be read; or `-`."""
    return tokens[0].value if tokens[0].value == "-" else file_at(_kind, tokens)


command: Final = declared("compare", "compare theirs.jsonl --within 30")


@command.default
def compare_offlines(
    file: Annotated[
        str,
        Parameter(
            help='lines of JSON, as {"uid": "ada", "at": 1789000030004}; - is stdin, beside '
            "a running sidecar",
            metavar="FILE",
            converter=_lines_at,
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
            "how far apart two offlines of a user may be to count as one (default 60)",
            0.1,
            3_600,
        ),
    ] = 60.0,
    all: Annotated[
        bool, Parameter(help="also show the users that both reported")
    ] = False,
    json: Json = False,
) -> int:
    """Compare the offlines that another detector reports with the sidecar's.

    A FILE is compared with the log in the state directory; lines on stdin with the records
    as they are written, until the lines end or Ctrl-C. The exit code is 0 if both reported
    offlines, and neither reported one alone; 3 if not, or if a line was left out.
    """
    options = ComparisonOptions(within, all, json)
    if file != "-":
        return compare_file(Path(file), state_folder(state), options)
    code: int = trio.run(compare_live, socket_path(socket), options)
    return code
