"""Log lines of the sidecar, on stderr: text on a terminal, JSON otherwise.

Libraries that use the standard `logging` are logged in the same form, from level warning
up, and so are exceptions that nothing catches. Nothing is set up at import: `liveness
serve` calls `configure` and `log_uncaught`.
"""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from math import inf
from types import TracebackType
from typing import Any, Final, NoReturn, TextIO

import structlog
from structlog.typing import EventDict, Processor

from liveness.text import escaped

# Characters in a line for a text of another program.
MAX_VALUE_CHARS: Final = 240
# Characters for any text in a line of JSON. Tracebacks and lists of faults can be longer,
# and the journal splits a line of more than 48 KB (LineMax= in journald.conf(5)).
MAX_JSON_CHARS: Final = 20_000
# A lasting condition is logged again this often.
REPEAT_LOG_S: Final = 60.0
# Far more keys than a sidecar uses in normal operation: it bounds the memory that links
# can use by inventing names.
MAX_KEYS: Final = 1_000
# Most lines that wait to be written to stderr. The burst after a restart, when all links
# reconnect, fits in; at some hundred bytes a line that is well below a megabyte.
MAX_LINES: Final = 1_000
# Enough time to write MAX_LINES. A stop of the sidecar waits no longer for a stuck reader,
# such as a terminal stopped by Ctrl-S.
DRAIN_S: Final = 1.0
# What a line of each level begins with (sd-daemon(3)). journald removes it and keeps it as
# the priority of the entry, which is 6 for a line without a prefix.
PREFIXES: Final = {
    "debug": "<7>",
    "info": "<6>",
    "warning": "<4>",
    "error": "<3>",
    "critical": "<2>",
}

_log = structlog.get_logger("sidecar")


def configure(format: str, level: str, *, stream: TextIO | None = None) -> None:
    """Send every log line of this process to *stream*, by default stderr.

    If the stream leads to systemd's journal, each line begins with its priority.

    Args:
        format: `text`, `json`, or `auto`: text if the stream is a terminal.
        level: The least urgent level that is logged: `debug`, `info`, `warning` or
            `error`.
        stream: A file with a descriptor, which stays open until exit or the next call.
            If a write fails, or nobody reads the stream, lines are lost and the sidecar
            goes on.
    """
    stream = stream or sys.stderr
    if format == "text" or (format == "auto" and stream.isatty()):
        rendering: list[Processor] = [
            _each_text(escaped),  # a gateway's name must not control the terminal
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(),
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    else:
        rendering = [
            structlog.processors.format_exc_info,
            _each_text(partial(shortened, most=MAX_JSON_CHARS)),
            structlog.processors.JSONRenderer(),
        ]
    writer = _LineWriter(stream, rendering)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            writer.log,
        ],
        cache_logger_on_first_use=False,  # tests call `configure` again
    )
    logging.root.handlers = [_ToStructlog(writer)]
    set_level(level)


def is_json() -> bool:
    """Whether `configure` was called, and made each line a JSON object."""
    handlers = logging.root.handlers
    return any(isinstance(it, _ToStructlog) and it.writer.is_json for it in handlers)


def log_uncaught() -> None:
    """Log warnings, and the exception that ends the process, where Python would print them."""
    sys.excepthook = _log_end
    logging.captureWarnings(True)


def log_failure(error: str, exit_code: int) -> None:
    """Log the error that ends the process, and wait until it is written."""
    _log.error("failed", error=error, exit_code=exit_code)
    drain()


def shortened(text: str, most: int = MAX_VALUE_CHARS) -> str:
    """A text for a log line, without its middle if it has over *most* characters."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


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
    for handler in logging.root.handlers:
        handler.flush()


class LogThrottle:
    """Logs a repeated message once per interval and key, and counts the others.

    The next message of a key that is logged has the number of those left out, as
    `suppressed`. Beyond `MAX_KEYS` the key logged longest ago is forgotten, and its next
    message is logged too early.
    """

    def __init__(self, seconds: float, *, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._logged: dict[Hashable, tuple[float, int]] = {}  # when; suppressed since

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
        if len(self._logged) >= MAX_KEYS:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = (now, 0)
        if suppressed:
            fields["suppressed"] = suppressed
        log(message, **fields)


def _each_text(change: Callable[[str], str]) -> Processor:
    return lambda _logger, _method, event: {
        key: change(value) if isinstance(value, str) else value
        for key, value in event.items()
    }


def _log_end(
    _: type[BaseException], error: BaseException, __: TracebackType | None
) -> None:
    _log.critical("failed", error=repr(error), exit_code=1, exc_info=error)


class _LineWriter:
    """Writes lines to a stream from a thread, so that a stuck reader blocks no one else.

    Lines that cannot be written are counted. The next line that is written has the
    number, as `lines_lost`.

    The thread writes to the descriptor: a file object keeps data that it failed to
    write, and would still send lines that were counted as lost.
    """

    def __init__(self, stream: TextIO, rendering: list[Processor]) -> None:
        self.is_json = isinstance(rendering[-1], structlog.processors.JSONRenderer)
        self._descriptor = stream.fileno()
        self._rendering = rendering
        # A program started by systemd may have given this one another stderr, so the
        # variable alone is no proof (systemd.exec(5)).
        file = os.fstat(self._descriptor)
        stream_id = f"{file.st_dev}:{file.st_ino}"
        self._is_journal = os.environ.get("JOURNAL_STREAM") == stream_id
        self._changed = threading.Condition()  # guards the attributes below
        self._lines: deque[tuple[str, int]] = deque()  # a line; its `lines_lost`
        self._lost = 0  # lost lines that no `lines_lost` has counted yet
        threading.Thread(target=self._run, name="log lines", daemon=True).start()

    def log(self, logger: object, method: str, event: EventDict) -> NoReturn:
        """Queue a line, as the last of structlog's processors."""
        prefix = PREFIXES[event["level"]] if self._is_journal else ""
        with self._changed:
            lost, self._lost = self._lost, 0
        if lost:
            event["lines_lost"] = lost
        line: Any = event
        for render in self._rendering:
            line = render(logger, method, line)
        # A traceback in text has many lines: each is an entry of the journal.
        line = prefix + line.replace("\n", "\n" + prefix) + "\n"
        with self._changed:
            if len(self._lines) >= MAX_LINES:
                self._lost += 1 + lost
            else:
                self._lines.append((line, lost))
                self._changed.notify_all()
        raise structlog.DropEvent

    def drain(self) -> None:
        """Wait until all lines are written, for `DRAIN_S` at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, DRAIN_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line, lost = self._lines[0]
            is_written = self._try_to_write(line.encode(errors="backslashreplace"))
            with self._changed:
                del self._lines[0]
                if not is_written:
                    self._lost += 1 + lost
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

    `logging` flushes its handlers at exit, and this one the writer.
    """

    def __init__(self, writer: _LineWriter) -> None:
        super().__init__()
        self.writer = writer

    def flush(self) -> None:
        self.writer.drain()

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            record.getMessage(),
            library=record.name,
            exc_info=record.exc_info,
        )
