"""The live picture: the wheel as a ring, users, records, lateness, faults and keys."""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, Generic, TypeVar

import trio
from rich.text import Text

from liveness.lab.demo.demo_run import DemoRun, Run
from liveness.lab.demo.gateway import HOST
from liveness.lab.demo.plain_lines import (
    COLUMNS,
    lateness,
    record_line,
    reminders,
    table,
)
from liveness.lab.demo.referee import FAULTS, Record
from liveness.lab.demo.script import KEYS
from liveness.lab.demo.tty import Terminal
from liveness.lab.demo.wheel_metrics import WheelMetrics, wheel_metrics

R = TypeVar("R", bound=Run)

FRAME_S: Final = 0.3
MOST_LOGGED: Final = 4
MOST_RECORDS: Final = 50  # more than most terminals have room for
BARS: Final = " ▁▂▃▄▅▆▇█"
# Thirty slots as a ring: clockwise from the top left.
ACROSS, DOWN, CELL = 11, 4, 4
STRIP_ROWS: Final = 4
GAP: Final = 2
# Heads of the columns that fit 80 columns beside the strip.
TITLES: Final = {
    **{name: name for name in COLUMNS if name not in ("moved", "gateway_lost")},
    "gateway_lost": "lost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The contents of one picture."""

    elapsed_s: float
    seconds: float
    timeout_s: float
    places: tuple[str, ...]  # where to look, and how to join, a line each
    states: tuple[tuple[str, str], ...]  # of each process
    online: int
    events_s: float | None  # events a second; None: not known now
    timers: float | None
    slots: tuple[float, ...]
    hand: int
    rows: tuple[tuple[str, list[int]], ...]  # by behaviour, as in `plain_lines.COLUMNS`
    lateness: str
    reminders: str
    faults: Counter[str]
    logged: tuple[str, ...]
    records: tuple[str, ...]  # the newest last
    has_keys: bool


class Screen(ABC, Generic[R]):
    """Draws the run on a terminal that has been entered."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._logged: deque[str] = deque(maxlen=MOST_LOGGED)
        self._records: deque[str] = deque(maxlen=MOST_RECORDS)

    def log(self, line: str) -> None:
        """Shows a line until newer ones take its place."""
        self._logged.append(line)

    def add(self, record: Record) -> None:
        """Shows a record likewise."""
        self._records.append(self._line(record))

    async def run(self, demo: R) -> None:
        """Draws a few pictures a second, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._terminal.read_keys, demo.press)
            nursery.start_soon(self._prepare, demo)
            while True:
                lines = self._drawn(demo, *self._terminal.size)
                await self._terminal.paint(Text("\n").join(lines))
                await trio.sleep(FRAME_S)

    async def _prepare(self, demo: R) -> None:
        """Reads what the next pictures need."""

    @abstractmethod
    def _line(self, record: Record) -> str:
        """A record as a line."""

    @abstractmethod
    def _drawn(self, demo: R, width: int, height: int) -> list[Text]:
        """The lines of a picture, for a terminal of this size."""


class Picture(Screen[DemoRun]):
    """The picture of one host, with its wheel."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(terminal)
        self._metrics: WheelMetrics | None = None
        self._events_s: float | None = None

    def _line(self, record: Record) -> str:
        return record_line(record)

    def _drawn(self, demo: DemoRun, width: int, height: int) -> list[Text]:
        return drawn(self._scene(demo), width, height)

    async def _prepare(self, demo: DemoRun) -> None:
        while True:
            metrics = await wheel_metrics(demo.host.socket)
            self._events_s = _rate(self._metrics, metrics)
            self._metrics = metrics or self._metrics
            await trio.sleep(FRAME_S)

    def _scene(self, demo: DemoRun) -> Scene:
        referee, metrics = demo.referee, self._metrics
        up_at, timeout_s = demo.sidecar.up_at, demo.timeout_s
        processes = (demo.gateway, demo.sidecar)
        return Scene(
            elapsed_s=demo.elapsed_s,
            seconds=demo.seconds,
            timeout_s=timeout_s,
            places=(
                f"{demo.host.page}   nc {HOST} {demo.host.port}",
                *demo.watch_command(),
            ),
            states=tuple((process.name, process.state) for process in processes),
            online=referee.online,
            events_s=self._events_s,
            timers=metrics.timers if metrics else None,
            slots=metrics.slots if metrics else (),
            hand=metrics.hand(up_at=up_at, timeout_s=timeout_s) if metrics else 0,
            rows=tuple(table(referee)),
            lateness=lateness(referee),
            reminders=reminders(referee),
            faults=referee.faults_of,
            logged=tuple(self._logged),
            records=tuple(self._records),
            has_keys=self._terminal.has_keys,
        )


def drawn(scene: Scene, width: int, height: int) -> list[Text]:
    """The lines of a picture, for a terminal of this size."""
    users, ring, strip = _users(scene), _ring(scene), _strip(scene)
    room = width - GAP - _width(users)
    if ring and room >= _width(ring):
        middle = _beside(ring, users)
    elif room >= _width(strip):
        middle = _beside(strip, users)
    else:
        middle = [*strip, *users]
    lines = [
        *_head(scene),
        *middle,
        Text(scene.lateness),
        Text(scene.reminders),
        faults_line("faults:", scene.faults, FAULTS),
    ]
    return filled(lines, scene.logged, scene.records, width, height)


def filled(
    lines: list[Text],
    logged: Iterable[str],
    records: Iterable[str],
    width: int,
    height: int,
) -> list[Text]:
    """These lines and those about actions, and as many records as there is room for."""
    lines += [Text(line, style="bold") for line in logged]
    left = max(height - len(lines), 0)
    newest = list(records)[-left:] if left else []
    lines += [Text(line, style="dim") for line in newest]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def _rate(before: WheelMetrics | None, now: WheelMetrics | None) -> float | None:
    """Events a second; None if unknown, or if the sidecar restarted in between."""
    if before is None or now is None or now.events < before.events:
        return None
    return (now.events - before.events) / (now.at - before.at)


def _head(scene: Scene) -> Iterator[Text]:
    time = f"{scene.elapsed_s:.0f} s of {scene.seconds:g}"
    rule = f"a user silent for {scene.timeout_s:g} s is offline"
    yield Text.assemble(("liveness demo", "bold"), f"   {time}   {rule}")
    states = Text()
    for name, state in scene.states:
        states.append_text(state_text(name, state))
    events = "?" if scene.events_s is None else f"{scene.events_s:.0f}"
    timers = "?" if scene.timers is None else f"{scene.timers:.0f}"
    counts = f"{scene.online} online   {events} events/s   {timers} timers"
    yield states.append(counts)
    yield from (Text(place, style="dim") for place in scene.places)
    yield keys_line(KEYS if scene.has_keys else {})


def keys_line(keys: Mapping[str, str]) -> Text:
    """What each key does."""
    if not keys:
        return Text("no keys, as stdin is not this terminal", style="dim")
    line = Text()
    for key, what in keys.items():
        line.append(key, style="bold reverse").append(f" {what}  ")
    return line


def state_text(name: str, state: str) -> Text:
    """The state of a process."""
    style = "green" if state == "up" else "bold red"
    return Text.assemble(f"{name} ", (state, style), "   ")


def _users(scene: Scene) -> list[Text]:
    head = (f" {title}" for title in TITLES.values())
    lines = [Text(f"{'':<11}" + "".join(head), style="dim")]
    for kind, numbers in scene.rows:
        cells = (
            f"{number:>{len(TITLES[column]) + 1}}"
            for column, number in zip(COLUMNS, numbers, strict=True)
            if column in TITLES
        )
        lines.append(Text(f"{kind:<11}" + "".join(cells)))
    return lines


def faults_line(head: str, faults: Counter[str], kinds: Sequence[str]) -> Text:
    """The number of faults of each kind."""
    line = Text(head)
    for kind in kinds:
        style = "bold red" if faults[kind] else "green"
        line.append(f"  {kind} ").append(str(faults[kind]), style=style)
    return line


# --- the wheel ------------------------------------------------------------------------


def _ring(scene: Scene) -> list[Text]:
    """The slots around a short explanation; [] unless there are thirty."""
    if len(scene.slots) != 2 * (ACROSS + DOWN):
        return []
    cells = [_cell(scene, slot) for slot in range(len(scene.slots))]
    corner = ACROSS + DOWN
    top, right = cells[:ACROSS], cells[ACROSS:corner]
    bottom, left = cells[corner : corner + ACROSS], cells[corner + ACROSS :]
    inside = (ACROSS - 2) * CELL
    slot_s = scene.timeout_s / len(scene.slots)
    middle = (
        f"{len(scene.slots)} slots of {slot_s:.2g} s, a ring.",
        "A user that sends something moves",
        "behind the hand. A user that the",
        "hand reaches was silent too long.",
    )
    lines = [Text.assemble(*top)]
    for text, west, east in zip(middle, reversed(left), right, strict=True):
        lines.append(Text.assemble(west, (f" {text:<{inside - 1}}", "dim"), east))
    return [*lines, Text.assemble(*reversed(bottom))]


def _cell(scene: Scene, slot: int) -> tuple[str, str]:
    users = scene.slots[slot]
    count = f"{users:.0f}" if users < 1_000 else f"{users / 1_000:.0f}k"
    mark = "▶" if slot == scene.hand else _bar(users, max(scene.slots), 1)[0]
    return f"{mark}{count:<{CELL - 1}.{CELL - 1}}", _style(scene, slot)


def _strip(scene: Scene) -> list[Text]:
    """The slots as bars side by side, for a terminal that is too small for the ring."""
    most = max(scene.slots, default=0)
    bars = [_bar(users, most, STRIP_ROWS) for users in scene.slots]
    lines = [
        Text.assemble(*((bar[row], _style(scene, n)) for n, bar in enumerate(bars)))
        for row in reversed(range(STRIP_ROWS))
    ]
    hand = Text(" " * scene.hand + "▲" + " " * (len(bars) - scene.hand - 1))
    return [*lines, hand, Text(f"▲ the hand; fullest slot {most:.0f}", style="dim")]


def _bar(users: float, most: float, rows: int) -> str:
    """A bar, from its lowest row up; a slot with users always shows something."""
    steps = len(BARS) - 1
    full = max(round(users / most * steps * rows), 1) if users else 0
    return "".join(BARS[min(max(full - steps * row, 0), steps)] for row in range(rows))


def _style(scene: Scene, slot: int) -> str:
    """Red for the half that is due first; users that keep sending stay in the other."""
    ahead = (slot - scene.hand) % len(scene.slots)
    if ahead == 0:
        return "bold reverse"
    return "red" if ahead < len(scene.slots) / 2 else "green"


def _width(lines: Sequence[Text]) -> int:
    return max(line.cell_len for line in lines)


def _beside(left: Sequence[Text], right: Sequence[Text]) -> list[Text]:
    width, lines = _width(left) + GAP, []
    for west, east in zip_longest(left, right, fillvalue=Text()):
        line = west.copy()
        line.append(" " * (width - west.cell_len))
        lines.append(line.append_text(east))
    return lines
