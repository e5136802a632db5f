"""The live picture: programs, keys, users, faults and records.

Pictures are drawn into memory, and a thread writes them: a terminal stopped by Ctrl-S
delays nothing else. The settings of the terminal are restored however this ends.
"""

import os
import termios
import threading
import tty
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from io import StringIO
from typing import Final, Self, TextIO

import trio
from rich.console import Console
from rich.text import Text

from liveness.console.terminal import OutputError, can_move_cursor, terminal_size
from liveness.lab.demo.demo_run import ACTION, DemoRun
from liveness.lab.demo.plain_lines import fault_lines, measures, table

FRAME_S: Final = 0.3
MOST_LOGGED: Final = 4
MOST_RECORDS: Final = 50  # more than most terminals have room for
MOST_KEYS: Final = 64
# Switch to the alternate screen and hide the cursor; and back.
TAKEN: Final = "\x1b[?1049h\x1b[?25l"
GIVEN_BACK: Final = "\x1b[?25h\x1b[?1049l"
REDRAWN: Final = "\x1b[H\x1b[J"


class Terminal:
    """Takes over a terminal while it is entered, and reads its keys."""

    def __init__(self, out: TextIO, keys: TextIO) -> None:
        self._out = out
        self._keys = keys.fileno()
        self._writing = threading.Lock()

    def __enter__(self) -> Self:
        self._original = termios.tcgetattr(self._keys)
        tty.setcbreak(self._keys, termios.TCSANOW)
        mode = termios.tcgetattr(self._keys)
        mode[6][termios.VSUSP] = b"\0"  # no Ctrl-Z: a shell would get this screen
        termios.tcsetattr(self._keys, termios.TCSANOW, mode)
        self._write(TAKEN)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(termios.error, OSError):  # the terminal is gone
            termios.tcsetattr(self._keys, termios.TCSANOW, self._original)
            self._write(GIVEN_BACK)

    @property
    def size(self) -> os.terminal_size:
        return terminal_size(self._out)

    async def paint(self, picture: Text) -> None:
        """Draws a picture; returns when it is written."""
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
        while True:
            await trio.lowlevel.wait_readable(self._keys)
            try:
                keys = os.read(self._keys, MOST_KEYS)
            except OSError:
                keys = b""
            if not keys:
                return
            for key in keys.decode("ascii", "ignore"):
                press(key)

    def _write(self, text: str) -> None:
        # Not through the stream: an abandoned write would never release its lock.
        data = text.encode(self._out.encoding or "utf-8", "replace")
        with self._writing:
            while data:
                data = data[os.write(self._out.fileno(), data) :]


def can_take(out: TextIO, keys: TextIO) -> bool:
    """Whether to take a terminal: reading it would stop a process in the background."""
    try:
        return can_move_cursor(out) and os.tcgetpgrp(keys.fileno()) == os.getpgrp()
    except OSError:  # no terminal, or another session's
        return False


class Picture:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._logged: deque[str] = deque(maxlen=MOST_LOGGED)
        self._records: deque[str] = deque(maxlen=MOST_RECORDS)

    def add(self, line: str, what: str) -> None:
        (self._logged if what == ACTION else self._records).append(line)

    async def run(self, demo: DemoRun) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._terminal.read_keys, demo.press)
            while True:
                lines = [*self._drawn(demo)]
                lines += [Text(line, style="bold") for line in self._logged]
                lines = fitted(lines, self._records, *self._terminal.size)
                await self._terminal.paint(Text("\n").join(lines))
                await trio.sleep(FRAME_S)

    def _drawn(self, demo: DemoRun) -> Iterator[Text]:
        time = f"{demo.elapsed_s:.0f} s of {demo.seconds:g}"
        rule = f"a user silent for {demo.timeout_s:g} s is offline"
        yield Text.assemble(("liveness demo", "bold"), f"   {time}   {rule}")
        states = Text()
        for target in demo.director.targets:
            style = "green" if target.state == "up" else "bold red"
            states.append(f"{target.name} ").append(target.state, style=style)
            states.append("   ")
        yield states.append(f"{demo.judge.online} online")
        yield from (Text(place, style="dim") for place in demo.places())
        keys = Text()
        for action in demo.director.actions.values():
            keys.append(action.key, style="bold reverse").append(f" {action.what}  ")
        yield keys.append("q", style="bold reverse").append(" end")
        yield from map(Text, table(demo))
        yield from (Text(line) for line in measures(demo) if line[0] != " ")
        style = "bold red" if demo.faults or demo.faults_anywhere else "green"
        yield from (Text(line, style=style) for line in fault_lines(demo))


def fitted(
    lines: Sequence[Text], records: Iterable[str], width: int, height: int
) -> list[Text]:
    left = max(height - len(lines), 0)
    newest = [*records][-left:] if left else []
    lines = [*lines, *(Text(line, style="dim") for line in newest)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines[:height]
