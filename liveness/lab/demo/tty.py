"""A terminal with a picture and keys; its settings are restored however this ends."""

import os
import termios
import threading
import tty
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from typing import Any, Final, Self, TextIO

import trio
from rich.console import Console, RenderableType

from liveness.console.terminal import OutputError, terminal_size

# How long to wait at the end for a terminal that accepts no output, not even after Ctrl-Q.
LAST_S: Final = 1.0
MOST_KEYS: Final = 64
# The other screen, without a cursor; and the first one again.
TAKEN: Final = "\x1b[?1049h\x1b[?25l"
GIVEN_BACK: Final = "\x1b[?25h\x1b[?1049l"
REDRAWN: Final = "\x1b[H\x1b[J"


class Terminal:
    """Takes over a terminal while it is entered.

    Pictures are drawn into memory, and a thread writes them: a terminal stopped by Ctrl-S
    delays nothing else. Keys are read if we are in the foreground of their terminal.
    """

    def __init__(self, out: TextIO, keys: TextIO) -> None:
        self.has_keys = _is_foreground(keys)
        self._out = out
        self._keys = keys.fileno() if self.has_keys else -1
        self._original: list[Any] | None = None
        self._writing = threading.Lock()

    def __enter__(self) -> Self:
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()

    @property
    def size(self) -> os.terminal_size:
        """Columns and lines, as they are now."""
        return terminal_size(self._out)

    async def paint(self, picture: RenderableType) -> None:
        """Draws a picture; returns when it is written.

        Raises:
            OutputError: It cannot be written.
        """
        drawn = StringIO()
        # As for a terminal; colours depend on the environment.
        width = self.size.columns
        console = Console(file=drawn, force_terminal=True, width=width)
        console.print(picture, end="", soft_wrap=True)
        text = REDRAWN + drawn.getvalue()
        try:
            await trio.to_thread.run_sync(self._write, text, abandon_on_cancel=True)
        except OSError as error:
            message = f"the terminal cannot be written ({error.strerror})"
            raise OutputError(message) from error

    async def read_keys(self, press: Callable[[str], None]) -> None:
        """Passes each key to *press*, until cancelled or the terminal is gone."""
        while self.has_keys:
            await trio.lowlevel.wait_readable(self._keys)
            try:
                keys = os.read(self._keys, MOST_KEYS)
            except OSError:
                keys = b""
            if not keys:
                return
            for key in keys.decode("ascii", "ignore"):
                press(key)

    def pause(self, stop: Callable[[], None]) -> None:
        """Gives the terminal back while *stop* has stopped this process."""
        self._give_back()
        stop()
        self._take()

    def _take(self) -> None:
        if self.has_keys:
            self._original = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSANOW)
        self._write_soon(TAKEN)

    def _give_back(self) -> None:
        with suppress(termios.error):
            termios.tcflow(self._out.fileno(), termios.TCOON)  # as Ctrl-Q does
        self._write_soon(GIVEN_BACK)
        if self._original is not None:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._keys, termios.TCSANOW, self._original)

    def _write_soon(self, text: str) -> None:
        """Writes this, unless the terminal accepts nothing for too long."""

        def write() -> None:
            with suppress(OSError):
                self._write(text)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        thread.join(LAST_S)

    def _write(self, text: str) -> None:
        # Not through the stream: an abandoned write would never release its lock.
        data = text.encode(self._out.encoding or "utf-8", "replace")
        with self._writing:
            while data:
                data = data[os.write(self._out.fileno(), data) :]


def _is_foreground(keys: TextIO) -> bool:
    """Whether we may read *keys*; a process in the background would be stopped."""
    try:
        return os.tcgetpgrp(keys.fileno()) == os.getpgrp()
    except OSError:  # no terminal, or not that of this session
        return False
