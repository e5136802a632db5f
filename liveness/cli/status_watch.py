"""`liveness status --watch`: the state of the sidecar, refreshed, with rates.

On a terminal each sample is drawn over the last one, from the top left corner, in one
write and no larger than the terminal. So nothing has to be restored, however this ends.
Elsewhere each sample is one line. Rates are differences of counters between two samples.
After a restart of the sidecar, which resets them, there are none until the next sample.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Final, NamedTuple, TextIO

import trio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from liveness.cli.status_screen import Status, look, rows_of
from liveness.console.admin_client import CommandError
from liveness.console.terminal import can_move_cursor, terminal_size
from liveness.text import escaped, local_time, printable

# Moves the cursor to the top left corner, and clears the screen.
REDRAWN: Final = "\x1b[H\x1b[J"
# Least width of the names of rows, so that the texts beside them stay where they are.
NAME_WIDTH: Final = 12
_GOOD: Final = "green"
_BAD: Final = "bold red"
_WARNING: Final = "yellow"
_WARNING_ROWS: Final = (
    *("storm", "to release", "cadence", "to mend"),
    *("refused", "replaced", "what to do", "dead letters"),
)


class StatusSample(NamedTuple):
    """The state of the sidecar at one moment, or why it is unknown."""

    at_ms: int
    mono: float
    found: Status | None
    why: str


class Rates(NamedTuple):
    """What happened between two samples, per second."""

    over_s: float
    events: dict[str, float]
    offlines: dict[str, float]


async def watch_status(
    socket_path: Path,
    *,
    every_s: float,
    as_json: bool,
    out: TextIO,
    report_line: Callable[[str], None],
) -> None:
    """Shows the state of the sidecar at *socket_path* repeatedly, until interrupted.

    Args:
        socket_path: The sidecar's socket.
        every_s: Seconds from one sample to the next.
        as_json: Whether each sample is one line of JSON.
        out: Gets a picture if it is a terminal that can move its cursor, else lines.
        report_line: Called, if there is no picture, with one line when the sidecar stops
            answering, and one when it is back.
    Raises:
        CommandError: The first sample failed.
    """
    is_picture = not as_json and can_move_cursor(out)
    before: StatusSample | None = None
    next_at = trio.current_time()
    while True:
        now = _sample(socket_path)
        if before is None and now.found is None:
            raise CommandError(now.why)
        rates = None if before is None else rates_between(before, now)
        if is_picture:
            out.write(REDRAWN + _picture(now, rates, terminal_size(out)))
        elif now.found is None:
            if before is not None and before.found is not None:
                report_line(f"{now.why}; asking again every {every_s:g} s")
        else:
            if before is not None and before.found is None:
                report_line(f"the sidecar at {socket_path} is back")
            out.write(_json_line(now, rates) if as_json else text_line(now, rates))
        out.flush()
        before = now
        # Missed samples are skipped.
        next_at = max(next_at + every_s, trio.current_time())
        await trio.sleep_until(next_at)


def _sample(socket_path: Path) -> StatusSample:
    mono = trio.current_time()
    at_ms = time.time_ns() // 1_000_000
    try:
        return StatusSample(at_ms, mono, look(socket_path), "")
    except CommandError as error:
        return StatusSample(at_ms, mono, None, printable(str(error)))


def rates_between(before: StatusSample, now: StatusSample) -> Rates | None:
    """How fast the counters rose; None if that is unknown."""
    was, found, over_s = before.found, now.found, now.mono - before.mono
    if was is None or found is None or over_s <= 0:
        return None
    rises = [
        {name: value - old.get(name, 0.0) for name, value in new.items()}
        for old, new in ((was.events, found.events), (was.offlines, found.offlines))
    ]
    is_new = found.uptime_s < over_s
    if is_new or any(rise < 0 for each in rises for rise in each.values()):
        return None
    events, offlines = (
        {name: rise / over_s for name, rise in each.items()} for each in rises
    )
    return Rates(over_s, events, offlines)


def text_line(now: StatusSample, rates: Rates | None) -> str:
    """A sample as one line for a person."""
    found = now.found
    assert found is not None
    parts = [
        local_time(now.at_ms),
        "ready" if found.ready else f"NOT READY: {escaped('; '.join(found.why))}",
        f"{found.users_online:,.0f} online",
    ]
    if rates is not None:
        parts.append(f"{_speed(sum(rates.events.values()))} events/s")
        parts.append(f"{_speed(sum(rates.offlines.values()))} offlines/s")
    parts.append(f"{sum(found.users_held.values()):,.0f} held")
    if found.early:
        parts.append(f"{found.early:,.0f} EARLY")
    return "  ".join(parts) + "\n"


def _json_line(now: StatusSample, rates: Rates | None) -> str:
    assert now.found is not None
    shown: dict[str, object] = {"at": now.at_ms, **asdict(now.found)}
    shown["rates"] = None if rates is None else rates._asdict()
    return json.dumps(shown, separators=(",", ":")) + "\n"


def _picture(now: StatusSample, rates: Rates | None, size: os.terminal_size) -> str:
    """As many rows as there is room for."""
    if now.found is None:
        rows = {"ready": f"no: {now.why}"}
    else:
        rows = rows_of(now.found, _rate_rows(rates))
    rows = {"at": local_time(now.at_ms), **rows}
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, min_width=NAME_WIDTH)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(Text(name, "dim"), Text(text, _style(name, text)))
    # The last line and column stay free: what ends there may scroll or wrap the picture.
    drawn = StringIO()
    console = Console(file=drawn, force_terminal=True, width=max(1, size.columns - 1))
    console.print(table)
    return "".join(drawn.getvalue().splitlines(keepends=True)[: max(1, size.lines - 1)])


def _style(name: str, text: str) -> str:
    match name:
        case "ready":
            return _GOOD if text == "yes" else _BAD
        case "early" if not text.startswith("0 "):
            return _BAD
        case name if name in _WARNING_ROWS:
            return _WARNING
        case _:
            return ""


def _rate_rows(rates: Rates | None) -> dict[str, str]:
    if rates is None:
        return {"events/s": "-", "offlines/s": "-"}
    return {"events/s": _speeds(rates.events), "offlines/s": _speeds(rates.offlines)}


def _speeds(values: Mapping[str, float]) -> str:
    each = ", ".join(f"{name} {_speed(value)}" for name, value in values.items())
    return f"{_speed(sum(values.values()))} ({each})" if each else "-"


def _speed(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}"
