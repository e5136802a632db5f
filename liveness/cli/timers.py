"""`liveness timers`: what comes due and what became of it, and an operator's say in it.

A key names a timer within its gateway. Where several gateways have one of that key,
nothing is guessed: the person is told which, and says which one is meant.
"""

import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, TextIO
from urllib.parse import urlencode

from cyclopts import App, Parameter

from liveness.cli.options import GatewayName, Json, Key, Socket, ext_of, number
from liveness.config.sources import socket_path
from liveness.console.admin_client import CommandError, asked, no_sidecar
from liveness.console.terminal import tell
from liveness.core.timer_states import FIRED, PENDING, STATES
from liveness.text import escaped, relative, utc_time

PAGE: Final = 100
# The sidecar waits 5 s for its disk before it says that it cannot write, twice at most.
TIMEOUT_S: Final = 15.0
MESSAGE_SHOWN: Final = 60  # characters of a message that are on one line with the rest
MOST_NAMED: Final = 8  # gateways in one error

TimerMap = dict[str, Any]


def list_timers(
    socket_path: Path,
    wanted: Mapping[str, str],
    *,
    limit: int,
    as_json: bool,
    out: TextIO,
    tell: Callable[[str], None],
) -> None:
    """Writes timers to *out*, the newest first, one a line.

    Args:
        socket_path: The sidecar's socket.
        wanted: Of `gateway`, `state` and `ext` those that must be so.
        limit: At most this many.
        as_json: Whether a line is the timer as JSON, and not for a person.
        out: Flushed after each page.
        tell: Is told that there may be more.
    Raises:
        CommandError: They could not be had.
    """
    line = _json_line if as_json else text_line
    left, query = limit, dict(wanted)
    while left:
        query["limit"] = str(min(left, PAGE))
        timers, before = _page(socket_path, "/v1/timers", query)
        out.writelines(f"{line(timer)}\n" for timer in timers)
        out.flush()
        if before is None:
            return
        left -= len(timers)
        query["before"] = before
    tell(f"there may be more than these {limit}: see them with a larger --limit")


def show_timer(
    socket_path: Path,
    key: str,
    gateway: str | None,
    *,
    damaged: bool = False,
    as_json: bool,
    out: TextIO,
) -> None:
    """Writes all that is kept of a timer.

    Args:
        socket_path: The sidecar's socket.
        key: The timer's.
        gateway: None: the only one that has a timer of that key.
        damaged: Whether the key is the id of a damaged timer.
        as_json: Whether it is written as JSON.
        out: Where it is written.
    Raises:
        CommandError: There is none, or there are several.
    """
    timer = _only(socket_path, key, gateway, damaged=damaged)
    out.write(f"{json.dumps(timer, indent=2)}\n" if as_json else as_text(timer))


def change_timer(
    socket_path: Path,
    what: str,
    key: str,
    gateway: str | None,
    *,
    damaged: bool = False,
    out: TextIO,
) -> None:
    """Has a timer cancelled or retried, and writes what it then is.

    Args:
        socket_path: The sidecar's socket.
        what: `cancel` or `retry`.
        key: The timer's.
        gateway: None: the only one that has a timer of that key.
        damaged: Whether the key is the id of a damaged timer.
        out: Where the timer is written, as one line.
    Raises:
        CommandError: It was refused, or there is none, or there are several.
    """
    if damaged:
        what, named = f"{what}-damaged", {"id": key}
    else:
        if gateway is None:
            gateway = _only(socket_path, key, None)["gateway"]
        named = {"gateway": gateway, "key": key}
    timer = asked(socket_path, f"/v1/timers/{what}", named, timeout_s=TIMEOUT_S)
    out.write(f"{text_line(timer)}\n")


# --- how a timer looks ----------------------------------------------------------------


def text_line(timer: TimerMap) -> str:
    """A timer as one line for a person."""
    state = timer["state"]
    at = {PENDING: "due", FIRED: "fired"}.get(state, "changed")
    parts = [utc_time(timer[at]), f"{_ago(timer[at]):<10}", f"{state:<9}"]
    parts += [escaped(timer["gateway"]), escaped(timer["key"])]
    if "ext" in timer:
        parts.append(f"ext {escaped(timer['ext'])}")
    if "damaged" in timer:
        parts.append(f"damaged {timer['damaged']}")
    if timer["attempts"]:
        parts.append(f"attempt {timer['attempts']}")
    if "message" in timer:
        message = timer["message"]
        cut = "…" if len(message) > MESSAGE_SHOWN else ""
        parts.append(escaped(message[:MESSAGE_SHOWN]) + cut)
    return "  ".join(parts)


def as_text(timer: TimerMap) -> str:
    """All that is kept of a timer, a line each."""
    names = ("key", "gateway", "ext", "state")
    rows: dict[str, str] = {name: timer[name] for name in names if name in timer}
    rows["attempts"] = str(timer["attempts"])
    rows |= {
        name: f"{utc_time(timer[name])}  {_ago(timer[name])}"
        for name in ("created", "due", "fired", "changed")
        if name in timer
    }
    if "damaged" in timer:
        rows["damaged"] = f"id {timer['damaged']}"
    if "seq" in timer:
        rows["record"] = f"seq {timer['seq']}"
    rows |= {name: timer[name] for name in ("message", "payload") if name in timer}
    return "".join(f"{name:<9} {escaped(text)}\n" for name, text in rows.items())


def _ago(at_ms: int) -> str:
    return relative(at_ms / 1000 - datetime.now(UTC).timestamp())


def _json_line(timer: TimerMap) -> str:
    """A timer as one line of JSON, all ASCII: nothing in it can steer a terminal."""
    return json.dumps(timer, separators=(",", ":"))


# --- what the sidecar says ------------------------------------------------------------


def _only(
    socket_path: Path, key: str, gateway: str | None, *, damaged: bool = False
) -> TimerMap:
    """The newest timer with a key, of this gateway or of the only one that has it."""
    if damaged:
        timers, _ = _page(socket_path, "/v1/timers", {"id": key})
        if timers and "damaged" in timers[0]:
            return timers[0]
        raise CommandError(
            f"no timer {key} is damaged: `liveness timers list` shows those that are"
        )
    query = {"key": key} if gateway is None else {"key": key, "gateway": gateway}
    timers, _ = _page(socket_path, "/v1/timers/newest", query)
    if len(timers) == 1:
        return timers[0]
    if timers:
        named = [
            f"{timer['gateway']} ({timer['state']})" for timer in timers[:MOST_NAMED]
        ]
        if len(timers) > MOST_NAMED:
            named.append("and others")
        told = f"several gateways have a timer {key!r}: {', '.join(named)}"
        raise CommandError(f"{told}; say whose is meant with --gateway")
    whose = "no gateway has a" if gateway is None else f"{gateway!r} has no"
    raise CommandError(
        f"{whose} timer {key!r}: `liveness timers list` shows those that there are"
    )


def _page(
    socket_path: Path, page: str, query: Mapping[str, str]
) -> tuple[list[TimerMap], str | None]:
    found = asked(socket_path, f"{page}?{urlencode(query)}", timeout_s=TIMEOUT_S)
    if not isinstance(found.get("timers"), list):
        raise no_sidecar(socket_path)
    return found["timers"], found.get("next")


command: Final = App(
    name="timers",
    help="List timers, show one, cancel it, or have it tried again.",
    help_epilogue="Example: liveness timers list --state failed",
    version_flags=[],
)

Damaged = Annotated[
    bool,
    Parameter(help="KEY is the number that `list` shows of a timer damaged on disk"),
]


@command.command(
    name="list",
    help_epilogue="Example: liveness timers list --gateway gw-1 --state pending",
)
def list_command(
    *,
    socket: Socket = None,
    gateway: GatewayName = None,
    state: Annotated[
        str | None,
        Parameter(help="only in this state", choices=STATES, metavar="STATE"),
    ] = None,
    ext: Annotated[
        str | None,
        Parameter(
            help="only those that share this; found soonest with --state pending",
            metavar="EXT",
            converter=ext_of,
        ),
    ] = None,
    limit: Annotated[
        int, number(int, "N", "at most N (default 100)", 1, 2**63 - 1)
    ] = 100,
    json: Json = False,
) -> None:
    """List timers, the newest first; with --json one a line."""
    path = socket_path(socket)
    wanted = {"gateway": gateway, "state": state, "ext": ext}

    list_timers(
        path,
        {name: value for name, value in wanted.items() if value is not None},
        limit=limit,
        as_json=json,
        out=sys.stdout,
        tell=tell,
    )


@command.command(name="show", help_epilogue="Example: liveness timers show order:17")
def show_command(
    key: Key,
    /,
    *,
    socket: Socket = None,
    gateway: GatewayName = None,
    damaged: Damaged = False,
    json: Json = False,
) -> None:
    """Show all that is kept of the newest timer with a key."""
    path = socket_path(socket)

    show_timer(path, key, gateway, damaged=damaged, as_json=json, out=sys.stdout)


@command.command(
    name="cancel",
    help_epilogue="Example: liveness timers cancel order:17 --gateway gw-1",
)
def cancel_command(
    key: Key,
    /,
    *,
    socket: Socket = None,
    gateway: GatewayName = None,
    damaged: Damaged = False,
) -> None:
    """Cancel a pending or fired timer, or one that is damaged on disk."""
    _change("cancel", key, gateway, socket, damaged=damaged)


@command.command(
    name="retry",
    help_epilogue="Example: liveness timers retry order:17 --gateway gw-1",
)
def retry_command(
    key: Key, /, *, socket: Socket = None, gateway: GatewayName = None
) -> None:
    """Have a failed or pending timer tried now, from its first attempt on."""
    _change("retry", key, gateway, socket)


def _change(
    what: str,
    key: str,
    gateway: str | None,
    socket: str | None,
    *,
    damaged: bool = False,
) -> None:
    path = socket_path(socket)

    change_timer(path, what, key, gateway, damaged=damaged, out=sys.stdout)
