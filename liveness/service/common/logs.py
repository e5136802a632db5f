"""Log lines of the sidecar, on stderr: text on a terminal, JSON otherwise.

Libraries that use the standard `logging` are logged in the same form, from level warning
up. Nothing is set up at import: `liveness serve` calls `configure` once.
"""

import json
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable
from math import inf
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from liveness.text import escaped

# Of a text that a user of this host chose, such as a path, in a line. Three of them and
# the rest of the line "starting" take less than a kilobyte.
MAX_VALUE_BYTES: Final = 240
# A lasting condition is logged again this often.
REPEAT_LOG_S: Final = 60.0
# Far more keys than a sidecar uses in normal operation. It bounds the memory that a link
# can take up by inventing names.
MAX_KEYS: Final = 1_000
# Lines that wait to be written to stderr. The burst after a restart, when all links
# reconnect, fits in; at some hundred bytes a line it is well below a megabyte.
MAX_LINES: Final = 1_000
# Time enough to write MAX_LINES. A stop of the sidecar waits no longer for a reader that
# does not read, such as a terminal stopped by Ctrl-S.
DRAIN_S: Final = 1.0


def configure(format: str, level: str, *, stream: TextIO | None = None) -> None:
    """Send every log line of this process to *stream*, by default stderr.

    Args:
        format: `text`, `json`, or `auto`: text if the stream is a terminal.
        level: The least urgent level that is logged: `debug`, `info`, `warning` or
            `error`.
        stream: A file with a descriptor, which stays open until exit or the next call.
            If a write fails, or nobody reads the stream, lines are lost and the sidecar
            goes on.
    """
    stream = stream or sys.stderr
    writer = _LineWriter(stream)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            writer.add_lost_count,
            *(
                _text_processors(stream)
                if is_text(format, stream)
                else _json_processors()
            ),
        ],
        logger_factory=structlog.WriteLoggerFactory(writer),  # type: ignore[arg-type]  # it only writes and flushes
        cache_logger_on_first_use=False,  # tests call `configure` again
    )
    for handler in logging.root.handlers:
        if isinstance(handler, _ToStructlog):  # of an earlier call: ends its thread
            handler.close()
    logging.root.handlers = [_ToStructlog(writer)]
    set_level(level)


def is_text(format: str, stream: TextIO) -> bool:
    """Whether lines of this format are text on *stream*, and not JSON."""
    return format == "text" or (format == "auto" and stream.isatty())


def shortened(text: str, most: int = MAX_VALUE_BYTES) -> str:
    """A text for a log line; without its middle if it takes more than *most* bytes of JSON."""
    if len(json.dumps(text)) <= most:
        return text
    half = most // 2
    begins, ends = text[:half], text[-half:]
    while len(json.dumps(f"{begins}…{ends}")) > most:
        begins, ends = begins[:-1], ends[1:]
    return f"{begins}…{ends}"


def set_level(level: str) -> None:
    """Log nothing below *level* from now on; the levels are those of `configure`."""
    least = urgency(level)
    structlog.configure(
        **{
            **structlog.get_config(),
            "wrapper_class": structlog.make_filtering_bound_logger(least),
        }
    )
    logging.root.setLevel(max(least, logging.WARNING))


def urgency(level: str) -> int:
    """A number that is higher for a more urgent level."""
    return logging.getLevelNamesMapping()[level.upper()]


def drain() -> None:
    """Wait until all lines are written, for `DRAIN_S` at most."""
    for handler in logging.root.handlers:
        handler.flush()


class LogThrottle:
    """Logs a repeated message once per interval and key, and counts the others.

    The first message of a key is logged at once. The next one that is logged has the
    number of those left out, as `suppressed`.

    Args:
        seconds: The interval.
        clock: Any clock in seconds that does not go back.
        max_keys: Keys remembered at a time. Beyond that the key logged longest ago is
            forgotten, and its next message is logged too early.
    """

    def __init__(
        self, seconds: float, *, clock: Callable[[], float], max_keys: int = MAX_KEYS
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._max_keys = max_keys
        self._logged: dict[Hashable, tuple[float, int]] = {}  # when; suppressed since
        self.forgotten = 0  # how often max_keys was hit

    def __call__(
        self,
        log: Callable[..., object],
        message: str,
        *,
        key: Hashable,
        **fields: object,
    ) -> None:
        """Call `log(message, **fields)`, unless *key* was logged within the interval."""
        now = self._clock()
        at, suppressed = self._logged.get(key, (-inf, 0))
        if now - at < self._seconds:
            self._logged[key] = (at, suppressed + 1)
            return
        self._logged.pop(key, None)  # moves it to the end: the first key is the oldest
        if len(self._logged) >= self._max_keys:
            del self._logged[next(iter(self._logged))]
            self.forgotten += 1
        self._logged[key] = (now, 0)
        if suppressed:
            fields["suppressed"] = suppressed
        log(message, **fields)


def _text_processors(stream: TextIO) -> list[Processor]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    return [_escape_values, renderer]


def _json_processors() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _escape_values(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Escape control characters: a gateway's name must not control the terminal."""
    return {
        key: escaped(value) if isinstance(value, str) else value
        for key, value in event.items()
    }


class _LineWriter:
    """Writes lines to a stream from a thread, so that a stuck reader blocks no one else.

    Lines that cannot be written are counted. The next line that is written has the
    number, as `lines_lost`.

    The thread writes to the descriptor: a file object keeps data that it failed to
    write, and would still send lines that were counted as lost.
    """

    def __init__(self, stream: TextIO) -> None:
        self._descriptor = stream.fileno()
        self._changed = threading.Condition()  # guards the attributes below
        self._lines: deque[tuple[str, int]] = deque()  # a line; its `lines_lost`
        self._lost = 0  # and not yet in the `lines_lost` of any line
        self._is_closed = False
        self._reported = threading.local()  # from `add_lost_count` to `write` of a line
        threading.Thread(target=self._run, name="log lines", daemon=True).start()

    def add_lost_count(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        """Add `lines_lost` to a line if lines before it were lost."""
        with self._changed:
            self._reported.lost, self._lost = self._lost, 0
        if self._reported.lost:
            event["lines_lost"] = self._reported.lost
        return event

    def write(self, line: str) -> None:
        with self._changed:
            if self._is_closed or len(self._lines) >= MAX_LINES:
                self._lost += 1 + self._reported.lost
            else:
                self._lines.append((line, self._reported.lost))
                self._changed.notify_all()

    def flush(self) -> None:
        """Do nothing: the event loop calls this for each line and must not wait."""

    def drain(self) -> None:
        """Wait until all lines are written, for `DRAIN_S` at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, DRAIN_S)

    def close(self) -> None:
        """Accept no more lines; the thread ends once it has written the rest."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_closed)
                if not self._lines:
                    return
                line, reported = self._lines[0]
            is_written = self._try_to_write(line.encode(errors="backslashreplace"))
            with self._changed:
                del self._lines[0]
                if not is_written:
                    self._lost += 1 + reported
                self._changed.notify_all()

    def _try_to_write(self, data: bytes) -> bool:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            return False
        return True


class _ToStructlog(logging.Handler):
    """Passes records of the standard library's `logging` to structlog.

    `logging` flushes and closes its handlers at exit, and this one the writer.
    """

    def __init__(self, writer: _LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def flush(self) -> None:
        self._writer.drain()

    def close(self) -> None:
        self._writer.close()
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            record.getMessage(),
            library=record.name,
            exc_info=record.exc_info,
        )
