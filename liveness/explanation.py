"""One sentence that says why a user is online, or offline: for the person on call.

It is made of what the sidecar holds in memory, if it runs, and of what the log has of the
user. Neither need have everything: a record may not be on disk yet, the log may have been
trimmed, and the look back may have ended before it was found. Then the sentence says so.

Times are the host's, to the second; the date stands where it is not today's.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from liveness.core.clearance import AWAY, DISK, MUTE, STANDS, STORM, UNREAD
from liveness.core.presence import UserStatus
from liveness.core.records import (
    GATEWAY_LOST,
    LOGIN,
    LOGOUT,
    MOVED,
    OFFLINE,
    SILENCE,
    LogPosition,
    OnlineRow,
    Record,
    Uid,
)
from liveness.text import duration, escaped, json_ready

RECORDS: Final = 20  # of a user, the newest, unless somebody wants more
# From two minutes on seconds alone are not easily read.
READ_AS_SECONDS: Final = 120.0


class Known(NamedTuple):
    """What is known of a user.

    `records` are its newest, newest first, and `opening` is the one that its session
    began with; None: not found. `back_to` is how far back the log was looked through;
    None: all of it, which begins at `oldest` (None: it is empty).
    """

    standing: (
        UserStatus | OnlineRow | None
    )  # a row: as the log has it, without a sidecar
    records: Sequence[Record]
    opening: Record | None
    back_to: LogPosition | None
    oldest: LogPosition | None


_HELD: Final = {
    AWAY: "held: {gateway} is not connected, and gets time to come back",
    MUTE: "held: {gateway} says nothing at all, which is not its users' silence",
    UNREAD: "held: what {gateway} has sent is read first",
    STORM: "held by the storm guard: too many users of {gateway} came due at once "
    "(`liveness guard release` ends it)",
    STANDS: "nobody's time goes on: the sidecar was away, and gateways get time to "
    "send what they collected",
    DISK: "held: the disk has to write first what was decided before",
}
_ABSENCE: Final = {AWAY: "is not connected", MUTE: "says nothing at all"}


def answer(uid: Uid, known: Known, *, now_ms: int) -> dict[str, Any]:
    """All that is known of a user, as JSON has it; `told` is the sentence."""
    standing = known.standing
    user = standing if isinstance(standing, UserStatus) else None
    slot = None if user is None else user.slot
    return {
        **json_ready({"uid": uid}),
        "online": standing is not None,
        "gateway": None if standing is None else standing.gateway,
        "session": None if standing is None else standing.session,
        "conn": None if standing is None else standing.conn,
        "last": None if user is None else user.last,
        "seen": None if user is None else user.seen,
        "slot": None if slot is None else slot.slot,
        "layer": None if slot is None else slot.layer,
        "fires_in": None if user is None else round(user.fires_in, 3),
        "held": None if user is None else user.held,
        "timeout": None if standing is None else standing.timeout,
        "records": [json_ready(record.as_map()) for record in known.records],
        "looked_back_to": known.back_to and known.back_to._asdict(),
        "told": sentence(known, now_ms=now_ms),
    }


def sentence(known: Known, *, now_ms: int) -> str:
    """The sentence, without control characters.

    Args:
        known: What is known.
        now_ms: The moment for which it is made, Unix milliseconds.
    """
    standing = known.standing
    newest = known.records[0] if known.records else None
    at = _Clock(now_ms)
    if isinstance(standing, UserStatus):
        parts = _online(standing, known.opening, at)
    elif standing is not None:
        parts = [f"online through {escaped(standing.gateway)} when the log ended"]
        parts.append(_began(known.opening, at) or f"since {at(standing.start_ms)}")
    elif newest is None:
        parts = [_nothing(known, at)]
    elif newest.kind != OFFLINE:
        # Decided, and not written yet; or the log was cut off behind it.
        parts = ["offline, and why is not on disk yet: ask again"]
        parts.append(_began(newest, at))
    else:
        parts = _offline(newest, known.opening, at)
    return "; ".join(filter(None, parts))


class _Clock:
    """Moments as the host's clock shows them, to be read at one moment."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._today = self._local(now_ms).date()

    def __call__(self, at_ms: int) -> str:
        """The time; before it the date, unless it is today's."""
        moment = self._local(at_ms)
        form = "%H:%M:%S" if moment.date() == self._today else "%Y-%m-%d %H:%M:%S"
        return moment.strftime(form)

    def ago(self, at_ms: int) -> str:
        """How long ago that is."""
        return f"{_lasting(max(0, self._now_ms - at_ms) / 1000)} ago"

    @staticmethod
    def _local(at_ms: int) -> datetime:
        return datetime.fromtimestamp(at_ms / 1000).astimezone()


def _lasting(seconds: float) -> str:
    """To a tenth of a second, as long as that is easily read."""
    return f"{seconds:.1f} s" if seconds < READ_AS_SECONDS else duration(seconds)


def _online(user: UserStatus, opening: Record | None, at: _Clock) -> list[str]:
    gateway = escaped(user.gateway)
    through = f"online through {gateway}"
    parts = [through if user.conn is None else f"{through} (connection {user.conn})"]
    if user.last is None or user.seen is None:
        parts.append("not heard since the sidecar was started again")
    else:
        parts.append(f"last heard: {user.last} at {at(user.seen)}, {at.ago(user.seen)}")
    if user.held is not None:
        parts.append(_HELD[user.held].format(gateway=gateway))
    elif user.slot is None:
        parts.append("due, and about to be judged")
    else:
        parts.append(f"offline in {_lasting(user.fires_in)} unless it is heard")
    if user.absence is not None and user.held != user.absence:
        parts.append(f"{gateway} {_ABSENCE[user.absence]}")
    parts.append(_began(opening, at) or f"connected {at(user.since)}")
    return parts


def _offline(end: Record, opening: Record | None, at: _Clock) -> list[str]:
    gateway, when = escaped(end.gateway), f"offline at {at(end.at)}"
    silence = f"{_lasting(end.silence or 0.0)} of silence"
    if end.reason == LOGOUT:
        return [f"{when} by a logout through {gateway}", _began(opening, at)]
    if end.reason == GATEWAY_LOST:
        when += f" with its gateway {gateway}, which was lost, after {silence}"
    else:
        assert end.reason == SILENCE
        when += f" after {silence}"
    if end.last is None or end.seen is None:
        heard = "not heard since the sidecar was started again"
        if end.reason == SILENCE:
            heard += f", through {gateway}"
    else:
        heard = f"last heard: {end.last} at {at(end.seen)} through {gateway}"
    return [when, heard, _began(opening, at)]


def _began(opening: Record | None, at: _Clock) -> str:
    """How its session began; nothing if that record was not found."""
    if opening is None:
        return ""
    when = at(opening.at)
    if opening.kind == MOVED:
        moved = f"moved from {escaped(opening.from_gateway or '')} at {when}"
        return f"{moved}, by a login through {escaped(opening.gateway)}"
    if opening.reason == LOGIN:
        return f"logged in {when}"
    return f"online since {when}, by a {opening.reason} without a login"


def _nothing(known: Known, at: _Clock) -> str:
    """Nothing was found."""
    if known.back_to is not None:
        told = f"offline, and not in the log back to {at(known.back_to.at)}"
        return f"{told}; it was looked no further (`liveness history` does)"
    if known.oldest is None:
        return "never heard of: the log is empty"
    told = f"not in the log, which begins at {at(known.oldest.at)}"
    return f"offline; {told}: never heard of, or its records are no longer kept"
