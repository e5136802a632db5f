"""The three streams a command starts with, made safe to use."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from liveness.errors import LivenessError


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
