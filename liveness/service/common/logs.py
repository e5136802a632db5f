"""What the sidecar says about itself, on stderr.

Lines for a person on a terminal, JSON otherwise; libraries that use the standard
`logging` come out in the same form, from warning upwards. Nothing is set up at import:
`configure` is called once, by the command that serves.
"""

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

# How often something that lasts is said again.
SAY_AGAIN_S: Final = 60.0
# Far more than one sidecar's links have ways of being refused; it bounds what a
# link that invents names can make us remember.
MAX_KEYS: Final = 1_000
# Lines that wait for a reader of stderr. A burst fits, as of all links coming back; at
# some hundred bytes a line it is well below a megabyte.
MAX_LINES: Final = 1_000
# A reader that is there takes that many lines at once; for one that is not, as a terminal
# stopped by Ctrl-S, a stop of the sidecar must not wait.
DRAIN_S: Final = 1.0


def configure(format: str, level: str, *, stream: TextIO | None = None) -> None:
    """Sends every log line of this process to *stream*, stderr if None.

    Args:
        format: `text`, `json`, or `auto`: text if the stream is a terminal.
        level: The least urgent that is said: `debug`, `info`, `warning`, `error`.
        stream: Should it fail, or nobody read it, lines are lost, and the sidecar goes
            on. It has a descriptor, which stays open until exit or the next call.
    """
    stream = stream or sys.stderr
    outlet = _Outlet(stream)
    is_text = format == "text" or (format == "auto" and stream.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            outlet.mention,
            *(_for_a_person(stream) if is_text else _for_a_machine()),
        ],
        logger_factory=structlog.WriteLoggerFactory(outlet),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,  # a test may configure anew
    )
    for handler in logging.root.handlers:
        if isinstance(handler, _ToStructlog):  # configured before: its thread ends
            handler.close()
    logging.root.handlers = [_ToStructlog(outlet)]
    set_level(level)


def set_level(level: str) -> None:
    """From now on nothing less urgent than *level* is said, one of those of `configure`."""
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
    """Waits until all lines so far are out, but not for long if nobody reads them."""
    for handler in logging.root.handlers:
        handler.flush()


class Every:
    """Lets a noisy message through once per interval and key, and counts the others.

    The first is said at once; the next one that is said tells how many were not.

    Args:
        seconds: The interval.
        clock: Any clock in seconds that does not go back.
        max_keys: Keys remembered at a time. Beyond that the one said longest ago is
            forgotten, so that its next message is said too early rather than never.
    """

    def __init__(
        self, seconds: float, *, clock: Callable[[], float], max_keys: int = MAX_KEYS
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._max_keys = max_keys
        self._said: dict[Hashable, tuple[float, int]] = {}  # when; not said since
        self.forgotten = 0  # how often max_keys was hit

    def __call__(
        self,
        say: Callable[..., object],
        message: str,
        *,
        key: Hashable,
        **fields: object,
    ) -> None:
        """Calls `say(message, **fields)`, unless *key* had its turn just now."""
        now = self._clock()
        at, suppressed = self._said.get(key, (-inf, 0))
        if now - at < self._seconds:
            self._said[key] = (at, suppressed + 1)
            return
        self._said.pop(key, None)  # to the end: the first is always the oldest
        if len(self._said) >= self._max_keys:
            del self._said[next(iter(self._said))]
            self.forgotten += 1
        self._said[key] = (now, 0)
        if suppressed:
            fields["suppressed"] = suppressed
        say(message, **fields)


def _for_a_person(stream: TextIO) -> list[Processor]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    return [_escape_values, renderer]


def _for_a_machine() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _escape_values(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """A gateway chooses its name; it must not steer the terminal of who reads this."""
    return {
        key: escaped(value) if isinstance(value, str) else value
        for key, value in event.items()
    }


class _Outlet:
    """A stream that may break or stand still, as when its reader does, without us.

    A thread of its own writes, since only it may wait. While nothing gets out there is
    nobody to tell; the first line that was said after says what is lost.

    The thread writes to the descriptor, since a file object keeps what it failed to
    write, and would still send the lines that were counted as lost.
    """

    def __init__(self, stream: TextIO) -> None:
        self._descriptor = stream.fileno()
        self._changed = threading.Condition()  # guards all that follows
        self._lines: deque[tuple[str, int]] = deque()  # a line; the losses it tells of
        self._lost = 0  # and not told of by any line
        self._is_closed = False
        self._telling = threading.local()  # from `mention` to `write` of the same line
        threading.Thread(target=self._run, name="log lines", daemon=True).start()

    def mention(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        """Adds to a line how many before it were lost."""
        with self._changed:
            self._telling.lost, self._lost = self._lost, 0
        if self._telling.lost:
            event["lines_lost"] = self._telling.lost
        return event

    def write(self, line: str) -> None:
        with self._changed:
            if self._is_closed or len(self._lines) >= MAX_LINES:
                self._lost += 1 + self._telling.lost
            else:
                self._lines.append((line, self._telling.lost))
                self._changed.notify_all()

    def flush(self) -> None:
        """Called for each line, by the loop: it must not wait, see `drain`."""

    def drain(self) -> None:
        """Waits until all lines are out, but not for long if nobody reads them."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, DRAIN_S)

    def close(self) -> None:
        """Takes no more lines; the thread ends behind those it has."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_closed)
                if not self._lines:
                    return
                line, told = self._lines[0]
            is_out = self._is_written(line.encode(errors="backslashreplace"))
            with self._changed:
                del self._lines[0]
                if not is_out:
                    self._lost += 1 + told
                self._changed.notify_all()

    def _is_written(self, data: bytes) -> bool:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            return False
        return True


class _ToStructlog(logging.Handler):
    """Hands a record of the standard library's logging on, its traceback included.

    `logging` flushes and closes its handlers at exit, and so the outlet with this one.
    """

    def __init__(self, outlet: _Outlet) -> None:
        super().__init__()
        self._outlet = outlet

    def flush(self) -> None:
        self._outlet.drain()

    def close(self) -> None:
        self._outlet.close()
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            record.getMessage(),
            library=record.name,
            exc_info=record.exc_info,
        )
