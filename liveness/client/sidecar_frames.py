"""Frames from the sidecar that gateways and watchers both take."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from liveness.core.wire.frames import PROTOCOL
from liveness.core.wire.framing import Frame
from liveness.errors import Code, WireError

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


def welcome_of(frame: Frame) -> Welcome:
    """Read a welcome.

    Raises:
        WireError: It is not of this protocol.
    """
    try:
        options = frame[1]
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
    except (
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        OverflowError,
    ) as error:
        raise wrong_form(frame) from error
    return welcome


def wrong_form(frame: object) -> WireError:
    """The error for a frame of another form than the protocol gives it."""
    return WireError(
        Code.BAD_FRAME,
        f"the sidecar sent a frame that is not of protocol {PROTOCOL}: {frame!r:.200}",
    )
