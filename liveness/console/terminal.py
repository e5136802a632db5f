"""The three streams a command starts with, made safe to use; and what a terminal can."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TextIO

from liveness.errors import LivenessError
from liveness.text import printable

# Of a terminal that does not say how large it is.
NO_SIZE: Final = os.terminal_size((80, 24))
AUTO, ALWAYS, NEVER = COLORS = ("auto", "always", "never")


def is_for_pictures(out: TextIO) -> bool:
    """Whether *out* is a terminal that can move its cursor."""
    return out.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def is_for_colours(out: TextIO, when: str) -> bool:
    """Whether what is written to *out* is coloured.

    Args:
        out: Where it is written.
        when: Of `COLORS`. By itself on a terminal that can show them, unless its user
            asked for none, as no-color.org has it.
    """
    if when != AUTO:
        return when == ALWAYS
    return is_for_pictures(out) and not os.environ.get("NO_COLOR")


def terminal_size(out: TextIO) -> os.terminal_size:
    """Columns and lines of the terminal that *out* is, as they are now."""
    with suppress(OSError):
        if all(size := os.get_terminal_size(out.fileno())):
            return size
    return NO_SIZE


def tell(line: str) -> None:
    """Write one line for a person to stderr, in which nothing steers a terminal.

    Whatever is named in it, arguments and what others sent, is escaped here.
    """
    told = printable(" ".join(line.rstrip("\n").split("\n")))
    sys.stderr.write(f"liveness: {told}\n")
    sys.stderr.flush()


class OutputError(LivenessError):
    """Nothing can be written to stdout any more: its reader went, or a disk is full."""


class Output:
    """stdout, with failures that cannot be taken for those of a socket or a file.

    Raises:
        OutputError: On any write or flush that failed, with the cause attached.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As for any text stream."""
        with self._told():
            return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """As for any text stream, in one write."""
        self.write("".join(lines))

    def flush(self) -> None:
        """As for any text stream."""
        with self._told():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # The interpreter flushes once more at its end, and would say so at length.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            told = f"the output cannot be written ({error.strerror})"
            raise OutputError(f"{told}; give it another place") from error


def open_closed() -> None:
    """Points a stream that was closed beforehand to nowhere.

    Else its number would go to the next socket or file, and to that what is meant for a
    person. In this order each gets its own number, the lowest that is free.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - for good
