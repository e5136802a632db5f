"""Makes stdin, stdout and stderr safe to use, and finds out what their terminal can do."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, TextIO

from liveness.errors import LivenessError
from liveness.text import printable

# For a terminal that does not report its size.
NO_SIZE: Final = os.terminal_size((80, 24))


def can_move_cursor(out: TextIO) -> bool:
    return out.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def terminal_size(out: TextIO) -> os.terminal_size:
    with suppress(OSError):
        if all(size := os.get_terminal_size(out.fileno())):
            return size
    return NO_SIZE


def report_line(line: str) -> None:
    """Writes one line for a person to stderr.

    Arguments and names in it may hold control characters: they are escaped here, so that
    none steers the terminal.
    """
    message = printable(" ".join(line.rstrip("\n").split("\n")))
    try:
        sys.stderr.write(f"liveness: {message}\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Redirects a stream that cannot be written to /dev/null.

    The interpreter flushes it again as it exits: a failure there would be printed, and
    would change the exit code.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class OutputError(LivenessError):
    """stdout can no longer be written: its reader has gone, or a disk is full."""


class Output:
    """stdout whose writes raise `OutputError`, with the cause, in place of `OSError`.

    So a failed write to stdout is not mistaken for one to a socket or a file.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._as_output_error():
            return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        with self._as_output_error():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _as_output_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _discard(self._stream)
            raise OutputError(
                f"the output cannot be written ({error.strerror}); give it another place"
            ) from error


def prepare_streams() -> None:
    """Opens /dev/null for each standard stream that the process was started without.

    Otherwise the next socket or file would get the stream's descriptor, and messages for
    a person would be written into it. Opened in this order, each gets its own number: the
    lowest that is free.

    A character that the locale lacks is escaped on stdout, as on stderr: the names of
    users may contain any character.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - never closed
            setattr(sys, name, null)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
