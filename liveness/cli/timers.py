"""`liveness timers`: lists, shows, cancels and retries timers.

A key names a timer within its gateway. Where several gateways have a timer of that key,
the command names them and asks for `--gateway`; it never picks one itself.
"""

from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from cyclopts import Parameter

from liveness.cli.options import (
    GatewayName,
    Json,
    Limit,
    Socket,
    declared,
    text_of,
)
from liveness.config.sources import socket_path
from liveness.console.admin_client import (
    CommandError,
    print_list,
    request_json,
    unexpected_answer,
)
from liveness.console.record_lines import ascii_json
from liveness.core.timer_states import FIRED, PENDING, STATES
from liveness.core.wire.frames import MAX_KEY_BYTES
from liveness.text import escaped, relative, shortened, utc_time

# The sidecar waits up to twice 5 s for its disk before it answers that it cannot write.
TIMEOUT_S: Final = 15.0
MESSAGE_SHOWN: Final = 60  # characters of a message in the line of a timer
MOST_NAMED: Final = 8  # gateways in one error

TimerMap = dict[str, Any]


# --- a timer as text ------------------------------------------------------------------


def text_line(timer: TimerMap) -> str:
    state = timer["state"]
    at = {PENDING: "due", FIRED: "fired"}.get(state, "changed")
    parts = [utc_time(timer[at]), f"{_ago(timer[at]):<10}", f"{state:<9}"]
    parts += [escaped(timer["gateway"]), escaped(timer["key"])]
    if "ext" in timer:
        parts.append(f"ext {escaped(timer['ext'])}")
    if timer["attempts"]:
        parts.append(f"attempt {timer['attempts']}")
    if "message" in timer:
        parts.append(shortened(timer["message"], MESSAGE_SHOWN))
    return "  ".join(parts)


def as_text(timer: TimerMap) -> str:
    """All that is stored of a timer, a line each."""
    names = ("key", "gateway", "ext", "state")
    rows: dict[str, str] = {name: timer[name] for name in names if name in timer}
    rows["attempts"] = str(timer["attempts"])
    rows |= {
        name: f"{utc_time(timer[name])}  {_ago(timer[name])}"
        for name in ("created", "due", "fired", "changed")
        if name in timer
    }
    if "seq" in timer:
        rows["record"] = f"seq {timer['seq']}"
    rows |= {name: timer[name] for name in ("message", "payload") if name in timer}
    return "".join(f"{name:<9} {escaped(text)}\n" for name, text in rows.items())


def _ago(at_ms: int) -> str:
    return relative(at_ms / 1000 - datetime.now(UTC).timestamp())


# --- requests -------------------------------------------------------------------------


def _find(path: Path, key: str, gateway: str | None) -> TimerMap:
    """The newest timer with a key, of *gateway* or of the only gateway that has one."""
    query = {"key": key} if gateway is None else {"key": key, "gateway": gateway}
    page = f"/v1/timers/newest?{urlencode(query)}"
    timers = request_json(path, page, timeout_s=TIMEOUT_S).get("timers")
    if not isinstance(timers, list):
        raise unexpected_answer(path)
    if len(timers) == 1:
        found: TimerMap = timers[0]
        return found
    if timers:
        named = [
            f"{timer['gateway']} ({timer['state']})" for timer in timers[:MOST_NAMED]
        ]
        if len(timers) > MOST_NAMED:
            named.append("and others")
        raise CommandError(
            f"several gateways have a timer {key!r}: {', '.join(named)}; name one with "
            "--gateway"
        )
    whose = "no gateway has a" if gateway is None else f"{gateway!r} has no"
    raise CommandError(
        f"{whose} timer {key!r}: `liveness timers list` shows all timers"
    )


def _change(what: str, key: str, gateway: str | None, socket: str | None) -> None:
    """Cancels or retries a timer, and prints its new state as one line."""
    path = socket_path(socket)
    if gateway is None:
        gateway = _find(path, key, None)["gateway"]
    body = {"gateway": gateway, "key": key}
    timer = request_json(path, f"/v1/timers/{what}", body, timeout_s=TIMEOUT_S)
    print(text_line(timer))


# --- commands -------------------------------------------------------------------------

command: Final = declared(
    "timers",
    "timers list --state failed",
    help="List timers; show, cancel or retry one.",
)

Key = Annotated[
    str,
    Parameter(
        help="the timer's key", metavar="KEY", converter=text_of("key", MAX_KEY_BYTES)
    ),
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
            help="only those with this ext; fastest with --state pending",
            metavar="EXT",
            converter=text_of("ext", MAX_KEY_BYTES),
        ),
    ] = None,
    limit: Limit = 100,
    json: Json = False,
) -> None:
    """List timers, the newest first; with --json an object a line."""
    filters = {"gateway": gateway, "state": state, "ext": ext}
    query = {name: value for name, value in filters.items() if value is not None}
    print_list(
        socket_path(socket),
        "/v1/timers",
        "timers",
        query,
        line=ascii_json if json else text_line,
        limit=limit,
        timeout_s=TIMEOUT_S,
    )


@command.command(name="show", help_epilogue="Example: liveness timers show order:17")
def show_command(
    key: Key,
    /,
    *,
    socket: Socket = None,
    gateway: GatewayName = None,
    json: Json = False,
) -> None:
    """Show all that is stored of the newest timer with a key."""
    timer = _find(socket_path(socket), key, gateway)
    print(f"{dumps(timer, indent=2)}\n" if json else as_text(timer), end="")


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
) -> None:
    """Cancel a pending or fired timer."""
    _change("cancel", key, gateway, socket)


@command.command(
    name="retry",
    help_epilogue="Example: liveness timers retry order:17 --gateway gw-1",
)
def retry_command(
    key: Key, /, *, socket: Socket = None, gateway: GatewayName = None
) -> None:
    """Retry a failed or pending timer now, from its first attempt on."""
    _change("retry", key, gateway, socket)
