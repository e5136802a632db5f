"""`liveness compare -`: compares lines on stdin with the records of a running sidecar."""

import os
import signal
from functools import partial
from pathlib import Path
from sys import intern
from typing import Any, Final

import trio

from liveness.client.reader_position import LOG
from liveness.client.watcher import Watch
from liveness.console.admin_client import CommandError
from liveness.console.record_lines import RecordMap
from liveness.console.terminal import report_line
from liveness.console.watching import command_errors
from liveness.core.records import GAP, OFFLINE, Record
from liveness.host_clock import wall_s
from liveness.lab.compare.comparison import Comparison, Span
from liveness.lab.compare.comparison_report import (
    ComparisonOptions,
    ComparisonReport,
    Lookup,
)
from liveness.lab.compare.offline_lines import LineReader

STDIN: Final = 0
PIECE_BYTES: Final = 65_536
SETTLE_EVERY_S: Final = 1.0
# The time for looking up users at the end, before the totals are printed.
FINAL_LOOKUPS_S: Final = 5.0


async def compare_live(path: Path, options: ComparisonOptions, lookup: Lookup) -> int:
    """Compares lines on stdin with the live records.

    Ends with the lines, or at SIGINT or SIGTERM.

    Args:
        path: The sidecar's socket.
        options: Those of the command.
        lookup: Returns what the sidecar knows about a user.
    Returns:
        The exit code.
    Raises:
        CommandError: There is no sidecar, or it refuses this watcher.
    """
    watching = Watch(path, kinds=[OFFLINE], strict=True, report_line=report_line)
    async with watching:
        with command_errors(path):
            await watching.connected()
        live = _LiveComparison(path, watching, options, lookup)
        try:
            await live.run()
        finally:
            code = live.report.end()  # an error is printed after the totals
    return code


class _LiveComparison:
    """Reads the lines and the records, and prints what is settled once a second."""

    def __init__(
        self, path: Path, watching: Watch, options: ComparisonOptions, lookup: Lookup
    ) -> None:
        self._path, self._watch = path, watching
        self._within_ms = options.within_ms
        self._complete_to = _now_ms()  # see `_records_complete_to`
        span = Span(self._complete_to)  # both sides watch from now on
        self._comparison = Comparison(self._within_ms, here=span, there=span)
        self._reader = LineReader(report_line)
        self.report = ComparisonReport(self._comparison, self._reader, options, lookup)

    async def run(self) -> None:
        """Compares until the lines end, or a signal comes."""
        try:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read_records)
                    nursery.start_soon(self._read_stdin, nursery.cancel_scope)
                    nursery.start_soon(self._settle)
                    await anext(signals)
                    nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                last = self._comparison.finish(self._records_complete_to())
                write = partial(self.report.write, last, FINAL_LOOKUPS_S)
                await trio.to_thread.run_sync(write)

    def _records_complete_to(self) -> int:
        """The time up to which all records have arrived: now, or when the link was lost.

        A new link counts only after the tolerance: it first delivers the records that were
        missed, and one of them may belong to a line that is waiting.
        """
        linked_ms = 1000 * (trio.current_time() - self._watch.linked_at)
        if linked_ms >= self._within_ms:
            self._complete_to = _now_ms()
        return self._complete_to

    async def _read_records(self) -> None:
        with command_errors(self._path):
            async for batch in self._watch.batches():
                for record in batch:
                    if record["kind"] == OFFLINE:
                        self._comparison.add(record_of(record))
                    elif record["kind"] == GAP:
                        report_line("some records are no longer kept, and are missing")
                    else:
                        assert record["kind"] == LOG  # the link's line reports it

    async def _read_stdin(self, until: trio.CancelScope) -> None:
        # Not `sys.stdin`: a thread abandoned in a buffered read holds its lock for ever.
        read = partial(os.read, STDIN, PIECE_BYTES)
        try:
            data = b"\n"
            while data:
                data = await trio.to_thread.run_sync(read, abandon_on_cancel=True)
                for line in self._reader.feed(data):
                    self._comparison.add(line)
        except OSError as error:
            raise CommandError(
                f"stdin cannot be read ({error.strerror}); give it lines"
            ) from None
        until.cancel()

    async def _settle(self) -> None:
        while True:
            await trio.sleep(SETTLE_EVERY_S)
            settled = [*self._comparison.settle(self._records_complete_to())]
            with trio.CancelScope(shield=True):  # an outcome is settled only once
                await trio.to_thread.run_sync(self.report.write, settled)


def _now_ms() -> int:
    return round(wall_s() * 1000)


def record_of(shown: RecordMap) -> Record:
    """A session's record from its JSON or frame. Repeated texts share one object."""
    values = {"conn": None, "from_gateway": shown.get("from"), **shown}
    known: dict[str, Any] = {
        name: intern(value) if type(value) is str else value
        for name, value in values.items()
        if name in Record._fields
    }
    return Record(**known)
