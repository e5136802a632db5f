"""Why a user is online or offline, in one sentence for the person on call.

It is made from the state of the sidecar, and from the user's records in the log. A record
may be missing: not durable yet, trimmed, or older than the searched part. Then the sentence
says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from liveness.core.records import (
    GATEWAY_LOST,
    LOGOUT,
    OFFLINE,
    SILENCE,
    LogPosition,
    Record,
    Uid,
    identity,
)
from liveness.core.sessions.clearance import AWAY, DISK, MUTE, PAUSED, STORM, UNREAD
from liveness.core.sessions.firing import UserStatus
from liveness.text import duration, escaped, json_ready, local_moment, uid_text

RECORDS: Final = 20  # how many records of a user are shown by default
DEVICES: Final = 100  # how many of a user's devices are shown
DEVICES_IN_SENTENCE: Final = 5
# Shorter durations are shown in seconds only.
READ_AS_SECONDS: Final = 120.0


class Known(NamedTuple):
    """Everything known about a user.

    `status` is None if this uid has no session. `records` are its newest, newest first.
    `back_to` is where the search of the log ended; None: it had all of it, from `oldest`
    on (None: the log is empty). `user` is None if devices are not counted; `devices` are
    those of it, at most `DEVICES`, in the order of their logins.
    """

    uid: Uid
    status: UserStatus | None
    records: Sequence[Record]
    back_to: LogPosition | None
    oldest: LogPosition | None
    user: Uid | None = None
    devices: Mapping[Uid, UserStatus] = {}

    @property
    def devices_online(self) -> int:
        return next((status.devices for status in self.devices.values()), 0)

    @property
    def is_user_online(self) -> bool:
        """Whether the uid is that of a user, and not of a device, who has devices online."""
        is_asked = self.user is not None and identity(self.user) == identity(self.uid)
        return is_asked and bool(self.devices)


_HELD: Final = {
    AWAY: "held: {gateway} is not connected, and gets time to come back",
    MUTE: "held: {gateway} sends nothing at all, so its users cannot be heard",
    UNREAD: "held: what {gateway} has sent is read first",
    STORM: "held by the storm guard: too many users of {gateway} came due at once",
    PAUSED: "no user's timeout runs: the sidecar was away, and gateways get time to "
    "send the events they collected",
    DISK: "held: the disk has to write earlier decisions first",
}
_ABSENCE: Final = {AWAY: "is not connected", MUTE: "sends nothing at all"}
_UNHEARD: Final = "not heard since the sidecar restarted"


def answer(known: Known, *, now_ms: int) -> dict[str, Any]:
    """Everything known about a user, for JSON; `told` is the sentence.

    If devices are counted, `devices` has those of the user, each in the form of a user
    without records; a user with devices has no session under its own name.
    """
    shown = {
        **json_ready({"uid": known.uid}),
        "online": known.status is not None or known.is_user_online,
        **_session(known.status),
        "records": [json_ready(record.as_map()) for record in known.records],
        "looked_back_to": known.back_to and known.back_to._asdict(),
        "told": sentence(known, now_ms=now_ms),
    }
    if known.user is not None:
        shown |= {
            **json_ready({"user": known.user}),
            "devices_online": known.devices_online,
            "devices": [
                {**json_ready({"uid": device}), **_session(status)}
                for device, status in known.devices.items()
            ],
        }
    return shown


def _session(status: UserStatus | None) -> dict[str, Any]:
    """A session for JSON; unknown values are null."""
    keys = (
        *("gateway", "session", "conn", "last", "seen"),
        *("slot", "layer", "fires_in", "held", "timeout"),
    )
    if status is None:
        return dict.fromkeys(keys)
    session = {key: getattr(status, key, None) for key in keys}
    session["layer"], session["slot"] = status.slot or (None, None)
    session["fires_in"] = round(status.fires_in, 3)
    return json_ready(session)


def sentence(known: Known, *, now_ms: int) -> str:
    """Return the explanation, without control characters."""
    status = known.status
    newest = known.records[0] if known.records else None
    # One device alone may have the user's name.
    if known.is_user_online and (known.devices_online > 1 or not status):
        parts = _devices(known, now_ms)
    elif status is not None:
        parts = _online(status, now_ms)
    elif newest is None:
        parts = [_nothing(known, now_ms)]
    elif newest.kind != OFFLINE:
        # Its offline is not durable yet, or was lost with the end of the log.
        parts = ["offline; the reason is not on disk yet: ask again"]
    else:
        parts = _offline(newest, now_ms)
    return "; ".join(parts)


def _lasting(seconds: float) -> str:
    """A duration: a short one in seconds, to a tenth."""
    return f"{seconds:.1f} s" if seconds < READ_AS_SECONDS else duration(seconds)


def _ago(at_ms: int, now_ms: int) -> str:
    return f"{_lasting(max(0, now_ms - at_ms) / 1000)} ago"


def _online(user: UserStatus, now_ms: int) -> list[str]:
    gateway = escaped(user.gateway)
    through = f"online through {gateway}"
    parts = [through if user.conn is None else f"{through} (connection {user.conn})"]
    if user.last is None or user.seen is None:
        parts.append(_UNHEARD)
    else:
        heard = local_moment(user.seen, now_ms)
        parts.append(f"last heard: {user.last} at {heard}, {_ago(user.seen, now_ms)}")
    if user.held is not None:
        parts.append(_HELD[user.held].format(gateway=gateway))
    elif user.slot is None:
        parts.append("due, and about to go offline")
    else:
        parts.append(f"offline in {_lasting(user.fires_in)} unless it is heard")
    if user.absence is not None and user.held != user.absence:
        parts.append(f"{gateway} {_ABSENCE[user.absence]}")
    parts.append(f"connected {local_moment(user.since, now_ms)}")
    return parts


def _devices(known: Known, now_ms: int) -> list[str]:
    """A user's devices, the latest login first."""
    online = known.devices_online
    parts = [f"online with {online} device{'' if online == 1 else 's'}"]
    newest = [*known.devices.items()][::-1][:DEVICES_IN_SENTENCE]
    for device, status in newest:
        part = f"{escaped(uid_text(device))} through {escaped(status.gateway)}"
        if status.last and status.seen:
            part += f", last heard {_ago(status.seen, now_ms)}"
        if status.held is not None:
            part += f", {_HELD[status.held].format(gateway=escaped(status.gateway))}"
        parts.append(part)
    if online > len(newest):
        parts.append(f"and {online - len(newest)} more")
    return parts


def _offline(end: Record, now_ms: int) -> list[str]:
    gateway, when = escaped(end.gateway), f"offline at {local_moment(end.at, now_ms)}"
    silence = f"{_lasting(end.silence or 0.0)} of silence"
    if end.reason == LOGOUT:
        return [f"{when} by a logout through {gateway}"]
    if end.reason == GATEWAY_LOST:
        when += f" with its gateway {gateway}, which was lost, after {silence}"
    else:
        assert end.reason == SILENCE
        when += f" after {silence}"
    if end.last is None or end.seen is None:
        heard = _UNHEARD + (f", through {gateway}" if end.reason == SILENCE else "")
    else:
        seen = local_moment(end.seen, now_ms)
        heard = f"last heard: {end.last} at {seen} through {gateway}"
    return [when, heard]


def _nothing(known: Known, now_ms: int) -> str:
    if known.back_to is not None:
        back_to = local_moment(known.back_to.at, now_ms)
        return (
            f"offline, and not in the log back to {back_to}, where the search ended "
            "(`liveness history` searches all of it)"
        )
    if known.oldest is None:
        return "never heard of: the log is empty"
    oldest = local_moment(known.oldest.at, now_ms)
    return (
        f"offline; not in the log, which begins at {oldest}: never heard of, or its "
        "records were deleted"
    )
