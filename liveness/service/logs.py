"""What the sidecar says about itself, on stderr.

Lines for a person on a terminal, JSON otherwise; libraries that use the standard
`logging` come out in the same form, from warning upwards. Nothing is set up at import:
`configure` is called once, by the command that serves.
"""

import logging
import sys
from collections.abc import Callable, Hashable
from math import inf
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from liveness.text import escaped

# Far more than one sidecar's links have ways of being refused; it bounds what a peer
# that invents names can make us remember.
MAX_KEYS: Final = 1_000


def configure(format: str, level: str, *, stream: TextIO | None = None) -> None:
    """Sends every log line of this process to *stream*, stderr if None.

    Args:
        format: `text`, `json`, or `auto`: text if the stream is a terminal.
        level: The least urgent that is said: `debug`, `info`, `warning`, `error`.
        stream: Should it fail, lines are lost, and the sidecar goes on.
    """
    stream = stream or sys.stderr
    outlet = _Outlet(stream)
    is_text = format == "text" or (format == "auto" and stream.isatty())
    least = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            outlet.mention,
            *(_for_a_person(stream) if is_text else _for_a_machine()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(outlet),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,  # a test may configure anew
    )
    logging.root.handlers = [_ToStructlog()]
    logging.root.setLevel(max(least, logging.WARNING))


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
    """A stream that may break, as when its reader restarts, without our stopping.

    While it is broken there is nobody to tell; the first line after says what is lost.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0

    def mention(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        """Adds to a line how many before it were lost."""
        if self._lost:
            event["lines_lost"] = self._lost
        return event

    def write(self, line: str) -> None:
        try:
            self._stream.write(line)
            self._stream.flush()
        except OSError:
            self._lost += 1
        else:
            self._lost = 0

    def flush(self) -> None:
        """`write` has done it: only there is it known which line failed."""


class _ToStructlog(logging.Handler):
    """Hands a record of the standard library's logging on, its traceback included."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            record.getMessage(),
            library=record.name,
            exc_info=record.exc_info,
        )
