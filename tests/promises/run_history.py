"""What gateways and watchers saw of a run, and what was done to the sidecar's host.

The checker sees only this and the plan of the run. Times are seconds since the run began, on
the virtual clock or the real one.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any, Final, NamedTuple

from liveness.config.outlet_settings import WebhookSettings

# A pause as short as the sleep that it falls into is not noticed, and does no harm: what
# came meanwhile is read first. It sleeps no longer than a second, and a little may be late.
ASLEEP_S: Final = 1.05

# Stamps are whole milliseconds.
STAMP_S: Final = 0.002
# A real wall clock that is adjusted moves by less than this between two looks at it.
DRIFT_MS: Final = 20

Record = dict[str, Any]
Uid = str | int


class ListedSession(NamedTuple):
    """One that is open, as `list` has it."""

    uid: Uid
    gateway: str
    session: int
    conn: int | None


class Sent(NamedTuple):
    """A frame, and when the last byte of it was put into the socket."""

    at: float
    frame: list[Any]


class Delivered(NamedTuple):
    """A record, and when it was read from the socket."""

    at: float
    record: Record


@dataclass(slots=True)
class LinkHistory:
    """One link of a gateway or watcher, from its own end."""

    number: int
    role: str
    name: str
    life: int  # of that gateway: one more at each start of its process
    opened_at: float
    sidecar: int  # which process of the sidecar was there, or came next
    hello: dict[str, Any]
    welcomed_at: float = inf
    welcome: dict[str, Any] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    pongs: list[tuple[float, int]] = field(default_factory=list)
    lists: list[tuple[int, list[ListedSession]]] = field(default_factory=list)  # by seq
    errors: list[dict[str, Any]] = field(default_factory=list)
    ended_at: float = inf

    @property
    def name_and_role(self) -> tuple[str, str]:
        """Whose it is, over all its links."""
        return self.role, self.name


@dataclass(slots=True)
class Unread:
    """Answers that a watcher asked for, and did not read for a while."""

    link: LinkHistory
    since: float
    until: float
    asked: int

    @property
    def answers(self) -> int:
        """How many it got, in time or later."""
        return len(self.link.pongs) + len(self.link.lists)


class Conn(NamedTuple):
    """One connection of a user to a gateway."""

    conn: int
    uid: Uid
    gateway: str
    life: int
    opened_at: float
    timeout: float | None  # of its own


@dataclass(slots=True)
class Process:
    """One process of the sidecar."""

    began_at: float
    asked_at: float = inf  # to stop
    ended_at: float = inf
    is_planned: bool = False  # its end


class PutBack(NamedTuple):
    """An earlier copy of the state was put back: the records above its last are lost."""

    copied_at: float
    at: float
    last: int


# --- of outlets ------------------------------------------------------------------------


@dataclass(slots=True)
class Request:
    """One request that came whole."""

    at: float
    process: int  # of the sidecar
    id: str
    stamp: int
    is_signed: bool
    body: bytes
    status: int | None = None  # of the answer, if all of its head was sent

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events in it."""
        return list(json.loads(self.body))

    @property
    def is_accepted(self) -> bool:
        """Whether its receiver said that it has the records."""
        return self.status is not None and 200 <= self.status < 300


class Letter(NamedTuple):
    """A dead letter that there was before anybody had it sent again."""

    record: dict[str, Any]
    attempts: int
    status: int | None


class OutletReading(NamedTuple):
    """The status of an outlet at a moment."""

    at: float
    process: int
    state: str
    lag_records: int
    lag_s: float
    sent: int = 0
    latency_s: float = 0.0  # the sum of all
    lease_age_s: float = 0.0  # of the cluster's


@dataclass(slots=True)
class Outbound:
    """All of one webhook."""

    terms: WebhookSettings
    requests: list[Request] = field(default_factory=list)
    readings: list[OutletReading] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)


class ClusterEvent(NamedTuple):
    """A change of the users that are online on Redis."""

    kind: str
    user: str
    session: int
    since_s: float | None  # by its clock, where a session was reported as it began


@dataclass(slots=True)
class ClusterOutbound:
    """The final data of Redis for a single host, and the status shown before."""

    linger_s: float
    online: list[str] = field(default_factory=list)
    events: list[ClusterEvent] = field(default_factory=list)
    readings: list[OutletReading] = field(default_factory=list)


# --- of the whole run --------------------------------------------------------------------


@dataclass(slots=True)
class History:
    """Everything that was sent, delivered and done in one run."""

    links: list[LinkHistory] = field(default_factory=list)
    conns: dict[int, Conn] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    hangs: list[tuple[str, float, float]] = field(default_factory=list)  # of gateways
    # Whatever may make it late, from and until; the pauses are among them.
    troubles: list[tuple[float, float, str]] = field(default_factory=list)
    # Those of one gateway, by its name, which no other gateway may notice.
    troubles_of: dict[str, list[tuple[float, float, str]]] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
    wall: list[tuple[float, int]] = field(default_factory=list)  # from when, ms at 0
    # When the clock of the history stood still while the wall clock, and with it maybe the
    # sidecar, ran on: the moment, and what the wall clock showed before and after.
    standstills: list[tuple[float, int, int]] = field(default_factory=list)
    sleeps: list[tuple[float, float]] = field(default_factory=list)  # of the host
    boots: list[float] = field(default_factory=list)  # of the host, but for the first
    put_backs: list[PutBack] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # the product's own, in words
    rotten: set[int] = field(default_factory=set)  # seqs of records damaged on the disk
    damped: list[Delivered] = field(default_factory=list)  # to a watch with `settle_s`
    outbound: dict[str, Outbound] = field(default_factory=dict)  # by the webhook's name
    cluster: ClusterOutbound | None = None
    calm_from: float = inf  # from here on there are no faults
    ended_at: float = 0.0

    def ran(self, since: float, until: float) -> float:
        """Seconds between two moments in which the sidecar ran, or slept as it meant to."""
        seconds = 0.0
        for process in self.processes:
            seconds += _overlap(since, until, process.began_at, process.ended_at)
        for began, ended in self.pauses:
            seconds -= max(0.0, _overlap(since, until, began, ended) - ASLEEP_S)
        return seconds

    def stood_still(self, since: float, until: float) -> float:
        """Seconds between two moments that the world was not given, but a sidecar may have."""
        return sum(
            (after_ms - before_ms) / 1000
            for at, before_ms, after_ms in self.standstills
            if since < at <= until
        )

    def passed(self, since: float, until: float) -> float:
        """Seconds between two moments, with those in which the host slept.

        At most: over a boot the wall clock says how much that was, however wrong it is.
        """
        slept_s = sum(seconds for at, seconds in self.sleeps if since < at <= until)
        gained_s = sum(self._gained_s(at) for at in self.boots if since <= at <= until)
        return until - since + slept_s + gained_s + self.stood_still(since, until)

    def _gained_s(self, booted_at: float) -> float:
        """By how much the wall clock may have been ahead of itself after a boot.

        One that was behind after an earlier boot says nothing about that.
        """
        known = [self.wall[0][1]]
        for at, zero_ms in self.wall:
            if at < booted_at and not (at in self.boots and zero_ms < known[-1]):
                known.append(zero_ms)
        before = min(known)
        after = max(zero_ms for at, zero_ms in self.wall if at <= booted_at)
        return max(0, after - before) / 1000

    def may_lose_time(self, since: float, until: float) -> bool:
        """Whether less may have counted than has passed: a wall clock was behind at a boot.

        What began before that boot may then seem newer than what began after it.
        """
        for booted_at in self.boots:
            before = [zero_ms for at, zero_ms in self.wall if at < booted_at]
            later = [zero_ms for at, zero_ms in self.wall if booted_at <= at <= until]
            if since <= booted_at <= until and max(before) > min([before[-1], *later]):
                return True
        return False

    def decided(self, since: float, until: float) -> float:
        """Seconds in which it ran, was not paused or busy, and its disk took something."""
        troubles = self.troubles_in(since, until, "disk", "sidecar busy")
        lost = [*self.pauses, *((began, ended) for began, ended, _ in troubles)]
        seconds = 0.0
        for began, ended in sorted([*lost, (until, inf)]):
            seconds += self.ran(since, min(began, until))
            since = max(since, ended)
        return seconds

    def put_backs_after(self, moment: float) -> list[PutBack]:
        """The times after it at which an earlier state was put back."""
        return [it for it in self.put_backs if it.at > moment]

    def crashes(self) -> Iterator[Process]:
        """The processes that took up what a crash had left."""
        for before, process in pairwise(self.processes):
            if not before.is_planned:
                yield process

    def virtual(self, wall_ms: int, until: float = inf) -> float:
        """The moment of a stamp: the last until then that the wall clock's steps allow.

        A sidecar made it: a moment at which one ran goes before others.
        """
        spans = pairwise([*self.wall, (self.ended_at, 0)])
        shown = [
            (began, (wall_ms - zero_ms) / 1000, ended)
            for (began, zero_ms), (ended, _) in spans
        ]
        fits = [at for a, at, b in shown if a - STAMP_S <= at <= b + STAMP_S] or [
            at
            for at, before_ms, after_ms in self.standstills
            if before_ms <= wall_ms <= after_ms
        ]
        assert fits, f"{wall_ms} was never shown by the wall clock"
        fits = [at for at in fits if at <= until + STAMP_S] or fits[-1:]
        return max(fits, key=lambda at: (self._has_run(at), at))

    def _has_run(self, at: float) -> bool:
        """Whether a sidecar ran at a moment, as far as a stamp tells."""
        return any(
            it.began_at <= at + STAMP_S and at - STAMP_S <= it.ended_at
            for it in self.processes
        )

    def wall_steps(self) -> Iterator[float]:
        """When the wall clock was stepped, or the machine stood still; not where it drifts."""
        for (_, before_ms), (at, after_ms) in pairwise(self.wall):
            if abs(after_ms - before_ms) > DRIFT_MS:
                yield at

    @property
    def is_wall_stepped(self) -> bool:
        """Whether the wall clock was stepped, or the machine stood still."""
        return next(self.wall_steps(), None) is not None

    def troubles_in(
        self, since: float, until: float, *kinds: str, gateway: str = ""
    ) -> list[tuple[float, float, str]]:
        """The troubles of these kinds, or of any, in a time: with those of a gateway."""
        return [
            (began, ended, what)
            for began, ended, what in self.troubles + self.troubles_of.get(gateway, [])
            if began < until and since < ended and what.startswith(kinds or "")
        ]

    def gateway_links(self, name: str) -> list[LinkHistory]:
        """All links of a gateway, in order."""
        return [it for it in self.links if it.name_and_role == ("gateway", name)]

    def process_at(self, at: float) -> int:
        """Which process ran then."""
        return bisect_right([it.began_at for it in self.processes], at) - 1


def _overlap(a: float, b: float, c: float, d: float) -> float:
    return max(0.0, min(b, d) - max(a, c))
