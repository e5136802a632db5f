"""Frames from the sidecar that gateways and watchers both take."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from liveness.core.wire.frames import PROTOCOL
from liveness.errors import Code, Replaced, WireError

RUN_TIMEOUT_S: Final = 60.0  # if the welcome does not name it


class Welcome(NamedTuple):
    """The sidecar's welcome (`proto/README.md`, "Frames from the sidecar")."""

    log: str
    next: int
    timeout: float
    flush: float
    max_batch: int
    max_frame: int
    server: str
    features: Sequence[str]
    run_timeout: float  # seconds from the firing of a timer to its answer
    began: bool  # it has our clock, so logins carry `began`
    known: bool  # it knew the gateway's name, and its position in the log
    device_separator: str = ""  # "": devices are not counted


def parse_welcome(options: dict[str, Any]) -> Welcome:
    """Read the content of a welcome.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: It is not of this protocol.
    """
    welcome = Welcome(
        log=str(options["log"]),
        next=int(options["next"]),
        timeout=float(options["timeout"]),
        flush=float(options["flush"]),
        max_batch=int(options["max_batch"]),
        max_frame=int(options["max_frame"]),
        server=str(options.get("server", "")),
        features=options.get("features", ()),
        run_timeout=float(options.get("run_timeout", RUN_TIMEOUT_S)),
        began=options.get("began") is True,
        known=options.get("known") is not False,
        device_separator=str(options.get("device_separator", "")),
    )
    times = welcome.flush, welcome.run_timeout
    if welcome.max_batch < 1 or not all(0 <= time < float("inf") for time in times):
        raise ValueError("impossible limits")
    return welcome


def wrong_form(frame: object) -> WireError:
    """The error for a frame of another form than the protocol gives it."""
    return WireError(
        Code.BAD_FRAME,
        f"the sidecar sent a frame that is not of protocol {PROTOCOL}: {frame!r:.200}",
    )


def replaced_by(pid: object, remedy: str) -> Replaced:
    """The error of a link whose name another process has taken."""
    other = pid if type(pid) is int and pid > 0 else None
    taker = "another process" if other is None else f"process {other}"
    return Replaced(Code.REPLACED, f"{taker} said hello {remedy}", pid=other)
