"""The states of a gateway's link, and the log lines about the end of one."""

import os
from enum import StrEnum
from typing import Final

import anyio

from liveness.errors import Code, LivenessError, Refused, Replaced

# What an operator can do about a refusal that is repeated.
_REMEDIES: Final = {
    Code.NOT_ALLOWED: "allow this gateway's Unix user and name in the sidecar's settings "
    "([access]), or run the gateway as a user that is allowed",
    Code.BAD_HELLO: "correct the arguments of connect, or update the older one of this "
    "library and the sidecar",
    Code.UNSUPPORTED_PROTOCOL: "update the older one of this library and the sidecar",
}


class LinkState(StrEnum):
    """Whether a gateway has its link to the sidecar, and if not, why.

    Reports are collected in every state. Only `replaced` needs an action of the gateway,
    `resume`; every other state ends by itself.
    """

    CONNECTING = "connecting"  # no link yet since the start
    LINKED = "linked"
    AWAY = "away"  # the link has ended, and reconnects
    REFUSED = "refused"  # the sidecar has refused this gateway, which tries again
    REPLACED = "replaced"  # another process has the name; only `resume` connects again


def no_link_line(path: str, reason: Exception | None) -> str:
    """The log line for a link that has ended, or that could not be made."""
    return f"no link to the sidecar at {path}: {advice(reason)}"


def advice(reason: Exception | None) -> str:
    """Why there is no link, and what to do about it."""
    match reason:
        case FileNotFoundError() | ConnectionRefusedError():
            return "it is not running, or runs elsewhere"
        case PermissionError():
            return "not allowed to connect; be its user, or of its group"
        case OSError() | LivenessError():
            return str(reason)
        case None | anyio.BrokenResourceError():
            return "the link has ended"
        case _:
            return f"a fault of this library, {reason!r:.200}; please report it"


def refused_line(path: str, reason: Refused) -> str:
    """The log line for a permanent refusal: its meaning, and what to do."""
    remedy = _REMEDIES.get(Code(reason.code), "see the sidecar's log")
    return (
        f"the sidecar at {path} refuses this gateway, so its users are not watched: "
        f"{reason}. What to do: {remedy}. The gateway goes on, keeps its reports, and "
        "tries again"
    )


def replaced_line(name: str, reason: Replaced) -> str:
    """The log line for a link whose name another process has taken."""
    own, other = os.getpid(), reason.pid
    taker = "another process" if other is None else f"process {other}"
    if other == own:
        taker = "a second connect in this very process"
    worker_name = f'name=f"{name}:{{worker}}"'
    return (
        f"replaced: {taker} said hello as {name!r} and has the name now, so the users of "
        f"this process, {own}, are not watched. What to "
        f"do: if the same gateway was started twice, end one of the two; otherwise give "
        f"each a name of its own, such as {worker_name}. This link stays down, as the two "
        "would replace each other for ever; resume() takes the name over again"
    )
