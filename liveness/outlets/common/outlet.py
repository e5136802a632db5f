"""An outlet: a reader of the log with a place of its own, that sends records elsewhere."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from liveness.metrics import DELIVERY_S, Histogram, OutletNow
from liveness.outlets.common.outlet_log import LogBatch, OutletLog
from liveness.service.common.clock import Clock


class OutletState(StrEnum):
    """What an operator wants to know first."""

    FOLLOWING = "following"  # it delivers what there is
    RETRYING = "retrying"  # the newest try failed; it tries again by itself
    STOPPED = "stopped"  # a person has to act: `detail` says how


class Outlet(Protocol):
    """What a sidecar knows of each outlet.

    Whatever it does, nobody else waits for it: it reads the log as others do, blocks only
    itself, and gives way before each larger piece of work (`Turnstile`).
    """

    @property
    def name(self) -> str:
        """Its section in the settings, such as `webhooks.mail`."""
        ...

    async def run(self) -> None:
        """Deliver until cancelled. It may be called again after it has failed.

        Raises:
            LivenessError: It cannot go on until a person has acted.
        """
        ...

    def failed(self, why: str) -> None:
        """Show from now on that `run` has ended, and why, until it runs again."""
        ...


class CursorOutlet(Outlet, Protocol):
    """An outlet that stores its cursor in `outlets.db`."""

    def now(self) -> OutletNow:
        """How it is, for metrics, status and page."""
        ...


@dataclass(slots=True)
class OutletStatus:
    """How an outlet is, and what it has done; the outlet keeps it up to date.

    Args:
        clock: The clocks.
        since: When `state` became what it is, in Unix milliseconds.
    """

    clock: Clock
    since: int
    state: OutletState = OutletState.FOLLOWING
    detail: str = ""
    sent: int = 0  # records that were acknowledged
    retries: int = 0  # tries after the first one
    dead: int = 0  # records that became dead letters
    dead_kept: int = 0
    dead_deleted: int = 0  # above the bound
    latency: Histogram = field(default_factory=lambda: Histogram(DELIVERY_S))

    def now_is(self, state: OutletState, detail: str = "") -> None:
        """Note a state, and why it is so."""
        if state is not self.state:
            self.state, self.since = state, self.clock.wall_ms()
        self.detail = detail

    def delivered(self, batch: LogBatch) -> None:
        """Count a batch that is delivered."""
        self.sent += len(batch.entries)
        self.latency.observe((self.clock.wall_ms() - batch.oldest_at) / 1000)

    def shown(self, log: OutletLog) -> OutletNow:
        """The row of an outlet with this status, that reads this log."""
        return OutletNow(
            outlet=log.name,
            state=self.state.value,
            since=self.since,
            detail=self.detail,
            lag_records=log.lag_records,
            lag_s=log.lag_s,
            sent=self.sent,
            retries=self.retries,
            dead=self.dead,
            dead_kept=self.dead_kept,
            dead_deleted=self.dead_deleted,
            missed=log.missed,
            damped=log.damping.left_out,
            settling_overflows=log.damping.hurried,
            settling=log.settling,
            latency=self.latency,
        )
