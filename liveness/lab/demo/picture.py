"""The live picture: programs, keys, the wheel, users, faults and records."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio
from rich.text import Text

from liveness.console.admin_client import CommandError, request_json
from liveness.lab.demo.demo_run import ACTION, DemoRun
from liveness.lab.demo.plain_lines import fault_lines, lost_lines, measures, table
from liveness.lab.demo.tty import Terminal

FRAME_S: Final = 0.3
ANSWER_S: Final = 1.0  # it takes milliseconds, unless the sidecar is stopped
MOST_LOGGED: Final = 4
MOST_RECORDS: Final = 50  # more than most terminals have room for
BARS: Final = " ▁▂▃▄▅▆▇█"
ROWS: Final = 3  # of bars
WIDTH: Final = 2  # of a bar


class Picture:
    """Draws the run on a terminal that has been entered."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._logged: deque[str] = deque(maxlen=MOST_LOGGED)
        self._records: deque[str] = deque(maxlen=MOST_RECORDS)
        self._wheel: Mapping[str, Any] | None = (
            None  # as the sidecar's live page has it
        )

    def add(self, line: str, what: str) -> None:
        """Shows a line until newer ones take its place."""
        (self._logged if what == ACTION else self._records).append(line)

    async def run(self, demo: DemoRun) -> None:
        """Draws a few pictures a second, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._terminal.read_keys, demo.press)
            if not demo.cluster:
                nursery.start_soon(self._read_wheel, demo)
            while True:
                lines = [*self._drawn(demo)]
                lines += [Text(line, style="bold") for line in self._logged]
                lines = fitted(lines, self._records, *self._terminal.size)
                await self._terminal.paint(Text("\n").join(lines))
                await trio.sleep(FRAME_S)

    async def _read_wheel(self, demo: DemoRun) -> None:
        socket = demo.hosts[0].socket
        ask = partial(request_json, socket, "/v1/wheel", timeout_s=ANSWER_S)
        while True:
            try:
                self._wheel = await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
            except CommandError:
                self._wheel = None  # it is stopped, or restarts
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
        keys = {action.key: action.what for action in demo.director.actions.values()}
        yield keys_line({**keys, "q": "end"} if self._terminal.has_keys else {})
        if not demo.cluster:
            wheel = self._wheel or {"slot_users": [], "hand": 0}
            yield from strip(wheel["slot_users"], int(wheel["hand"]))
        yield from map(Text, table(demo))
        if demo.cluster and demo.cluster.judge.lost:
            yield from map(Text, lost_lines(demo.cluster.judge.lost[-1]))
        yield from (Text(line) for line in measures(demo) if line[0] != " ")
        for line in fault_lines(demo):
            shown = Text(line)
            shown.highlight_regex(r"\b0\b", "green")
            shown.highlight_regex(r"\b[1-9]\d*\b", "bold red")
            yield shown


def fitted(
    lines: Sequence[Text], records: Iterable[str], width: int, height: int
) -> list[Text]:
    """These lines, and as many records as there is room for."""
    left = max(height - len(lines), 0)
    newest = [*records][-left:] if left else []
    lines = [*lines, *(Text(line, style="dim") for line in newest)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def keys_line(keys: Mapping[str, str]) -> Text:
    """What each key does."""
    if not keys:
        return Text("no keys, as stdin is not this terminal", style="dim")
    line = Text()
    for key, what in keys.items():
        line.append(key, style="bold reverse").append(f" {what}  ")
    return line


def strip(slots: Sequence[int], hand: int) -> Iterator[Text]:
    """The slots of the wheel as bars side by side, and its hand below.

    Red is the half that is due first; users that keep sending stay in the green one.
    """
    most, steps = max(slots, default=0), len(BARS) - 1
    for row in reversed(range(ROWS)):
        line = Text()
        for slot, users in enumerate(slots):
            # A slot with users always shows something.
            full = max(round(users / most * steps * ROWS), 1) if users else 0
            bar = BARS[min(max(full - steps * row, 0), steps)]
            ahead = (slot - hand) % len(slots)
            style = "red" if 0 < ahead < len(slots) / 2 else "green"
            line.append(bar * WIDTH, style=style)
        yield line
    hint = f"▲ the hand, which users must not be reached by; fullest slot {most}"
    yield Text(" " * hand * WIDTH + "▲")
    yield Text(hint, style="dim")
