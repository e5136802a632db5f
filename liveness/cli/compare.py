"""`liveness compare`: a file of offlines that another detector reports, beside the log.

For an offline that only the other detector reported, the command looks up what the log has
of the user.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from heapq import merge
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from liveness.cli.options import State, declared, file_at, number
from liveness.config.sources import state_folder
from liveness.console.admin_client import CommandError
from liveness.console.terminal import report_line
from liveness.core.records import OFFLINE, Record, Uid
from liveness.host_clock import wall_s
from liveness.lab.compare.causes import Evidence
from liveness.lab.compare.comparison import Comparison, Line, Offline, Outcome, Span
from liveness.lab.compare.comparison_report import ComparisonReport
from liveness.lab.compare.offline_lines import LineReader
from liveness.service.storage import clocks_file
from liveness.service.storage.log_reader import LogReader, RecordFilter, open_log
from liveness.text import local_time

# Lines that are sorted in memory, where each takes some 250 bytes.
MOST_LINES: Final = 5_000_000
# Roughly how long a lookup in the log may take, and how many records it may return.
LOOKUP_S: Final = 0.2
LOOKUP_RECORDS: Final = 1_000


def compare_file(path: Path, folder: Path, within_s: float, shows_all: bool) -> int:
    """Compares the lines in a file with the log in the state directory *folder*."""
    reader, within_ms = LineReader(report_line), round(within_s * 1000)
    lines = sorted(_lines_of(path, reader), key=lambda line: line.at)
    there = Span(lines[0].at, lines[-1].at) if lines else Span(0, 0)
    with open_log(folder) as log:
        here = _span(log, folder)
        if not lines:
            report_line(f"{path} has no line to compare: is it the right file?")
        comparison = Comparison(within_ms, here=here, there=there)
        lookup = partial(_evidence_in_log, log)
        report = ComparisonReport(
            comparison, reader, lookup, within_s=within_s, shows_all=shows_all
        )
        selection = RecordFilter(
            kinds=frozenset({OFFLINE}),
            since=round(there.begin) - within_ms,
            until=round(min(there.end, here.end)) + within_ms + 1,
        )
        report.write(_settled(comparison, lines, log, selection))
    return report.end()


def _lines_of(path: Path, reader: LineReader) -> Iterator[Line]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(reader.read(file)):
                if number == MOST_LINES:
                    raise CommandError(
                        f"{path} has more than {MOST_LINES:,} lines; split it"
                    )
                yield line
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}; name a file of lines") from None


def _span(log: LogReader, folder: Path) -> Span:
    """The period that the log covers: until now, or until its sidecar was stopped."""
    oldest, newest = log.oldest(), log.newest()
    if oldest is None or newest is None:
        raise CommandError(
            f"the log in {folder} is empty, so there is nothing to compare: name the "
            "sidecar's state directory with --state"
        )
    end, until = round(wall_s() * 1000), "now"
    stopped = clocks_file.stopped_at(folder, log=log.log(), seq=newest.seq)
    if stopped is not None:
        end = stopped + log.wall_ahead_ms()
        until = f"{local_time(end)}, the sidecar's stop"
    report_line(
        f"comparing with the log in {folder}, from {local_time(oldest.at)} to {until}"
    )
    return Span(oldest.at, end)


def _settled(
    comparison: Comparison, lines: Iterable[Line], log: LogReader, query: RecordFilter
) -> Iterator[Outcome]:
    """The outcomes as lines and records are added in order of time."""
    records = (each for each in log.records(query) if isinstance(each, Record))
    both: tuple[Iterable[Offline], ...] = (lines, records)
    for offline in merge(*both, key=lambda offline: offline.at):
        yield from comparison.add(offline)
    yield from comparison.finish()


def _evidence_in_log(log: LogReader, uid: Uid) -> Evidence:
    found = log.newest_of(uid, limit=LOOKUP_RECORDS, within_s=LOOKUP_S)
    is_online = log.online(uid) is not None
    return Evidence(is_online, found.records, is_complete=found.back_to is None)


# --- the command ----------------------------------------------------------------------


command: Final = declared("compare", "compare theirs.jsonl --within 30")
_WITHIN: Final = "how far apart two offlines of a user may be, as one (default 60)"


@command.default
def compare_offlines(
    file: Annotated[
        str,
        Parameter(
            help='lines of JSON, as {"uid": "ada", "at": 1789000030004}',
            metavar="FILE",
            converter=file_at,
        ),
    ],
    /,
    *,
    state: State = None,
    within: Annotated[float, number(float, "S", _WITHIN, 0.1, 3_600)] = 60.0,
    all: Annotated[
        bool, Parameter(help="also show the users that both reported")
    ] = False,
) -> int:
    """Compare the offlines that another detector reports with the sidecar's.

    A FILE is compared with the log in the state directory, whether a sidecar runs or not.
    The exit code is 0 if both reported offlines, and neither reported one alone; 3 if not,
    or if a line was left out.
    """
    return compare_file(Path(file), state_folder(state), within, all)
