"""A terminal with a picture on it, and keys; given back as it was, however this ends."""

import os
import termios
import threading
import tty
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from types import TracebackType
from typing import Any, Final, Self, TextIO

import trio
from rich.console import Console, RenderableType
from rich.live import Live

from liveness.console.terminal import OutputError, terminal_size

# A terminal that takes nothing any more, not even after Ctrl-Q, is left as it is then.
LAST_S: Final = 1.0
MOST_KEYS: Final = 64


def _is_ours(keys: TextIO) -> bool:
    """Whether what is typed there is for us: else reading would stop this process."""
    try:
        return os.tcgetpgrp(keys.fileno()) == os.getpgrp()
    except OSError:  # no terminal, or not that of this session
        return False


class Terminal:
    """Takes *out*, and *keys* if they are ours, while it is entered.

    What is drawn goes through memory to a thread that writes: a terminal that somebody
    has stopped by Ctrl-S holds up nobody.

    Args:
        out: Where the picture is.
        keys: Where keys are read, if that is a terminal and we are in its foreground.
    """

    def __init__(self, out: TextIO, keys: TextIO) -> None:
        self.has_keys = _is_ours(keys)
        self._out = out
        self._keys = keys.fileno() if self.has_keys else -1
        self._as_it_was: list[Any] | None = None
        self._drawn = StringIO()
        # Colours as the environment says, as that is a terminal in the end.
        console = Console(file=self._drawn, force_terminal=True)
        self._console = console
        self._live = Live(
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._writing = threading.Lock()

    def __enter__(self) -> Self:
        self._take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()

    @property
    def size(self) -> os.terminal_size:
        """Columns and lines, as they are now."""
        return terminal_size(self._out)

    async def paint(self, picture: RenderableType) -> None:
        """Draws, and returns when it is written.

        Raises:
            OutputError: It cannot be written.
        """
        self._console.size = self.size
        self._live.update(picture, refresh=True)
        try:
            await trio.to_thread.run_sync(
                self._write, self._taken(), abandon_on_cancel=True
            )
        except OSError as error:
            told = f"the terminal cannot be written ({error.strerror})"
            raise OutputError(told) from error

    async def read_keys(self, press: Callable[[str], None]) -> None:
        """Gives each key to *press*, until cancelled or the terminal is gone."""
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
        """Gives the terminal back while *stop* lasts: this process is to be stopped."""
        self._give_back()
        stop()
        self._take()

    def _take(self) -> None:
        if self.has_keys:
            self._as_it_was = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSANOW)
        self._live.start()

    def _give_back(self) -> None:
        self._live.stop()
        with suppress(termios.error):
            termios.tcflow(self._out.fileno(), termios.TCOON)  # as by Ctrl-Q
        last = threading.Thread(target=self._write_last, args=[self._taken()])
        last.daemon = True
        last.start()
        last.join(LAST_S)
        if self._as_it_was is not None:
            with suppress(termios.error):  # it is gone
                termios.tcsetattr(self._keys, termios.TCSANOW, self._as_it_was)

    def _write_last(self, data: bytes) -> None:
        with suppress(OSError):
            self._write(data)

    def _write(self, data: bytes) -> None:
        # Not through the stream: what was given up here would hold its lock for ever.
        with self._writing:
            while data:
                data = data[os.write(self._out.fileno(), data) :]

    def _taken(self) -> bytes:
        """What was drawn since the last call."""
        drawn = self._drawn.getvalue()
        self._drawn.seek(0)
        self._drawn.truncate()
        return drawn.encode(self._out.encoding or "utf-8", "replace")
