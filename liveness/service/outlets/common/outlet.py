"""An outlet: a reader of the log with its own cursor, which sends records elsewhere."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from liveness.metrics.histogram import Histogram
from liveness.metrics.outlet_now import DELIVERY_S, OutletNow
from liveness.service.common.clock import Clock
from liveness.service.outlets.common.outlet_log import LogBatch, OutletLog


class OutletState(StrEnum):
    """The state of an outlet, for operators."""

    FOLLOWING = "following"  # it delivers records as they come
    RETRYING = "retrying"  # the newest try failed; it tries again by itself
    STOPPED = "stopped"  # an operator has to act: `detail` says how


class Outlet(Protocol):
    """The interface of an outlet.

    It must not delay any other task: it reads the log like other readers, never blocks the
    event loop, and waits for the `Turnstile` before each larger piece of work.
    """

    @property
    def name(self) -> str:
        """Its section in the settings, such as `webhooks.mail`."""
        ...

    async def run(self) -> None:
        """Deliver until cancelled. It may be called again after it has failed.

        Raises:
            LivenessError: It cannot continue until an operator has acted.
        """
        ...

    def failed(self, why: str) -> None:
        """Show why `run` has ended, until it runs again."""
        ...


class CursorOutlet(Outlet, Protocol):
    """An outlet that stores its cursor in `outlets.db`."""

    def now(self) -> OutletNow:
        """Its status, for the metrics, `liveness status` and the live page."""
        ...


@dataclass(slots=True)
class OutletStatus:
    """The state and the counts of an outlet, which keeps them up to date.

    Args:
        clock: The clocks.
        since: When `state` last changed, in milliseconds of the state's clock.
    """

    clock: Clock
    since: int
    state: OutletState = OutletState.FOLLOWING
    detail: str = ""
    sent: int = 0  # records that were acknowledged
    retries: int = 0  # tries after the first one
    dead: int = 0  # records that became dead letters
    dead_kept: int = 0
    dead_deleted: int = 0  # dead letters above `max_dead`
    latency: Histogram = field(default_factory=lambda: Histogram(DELIVERY_S))

    def now_is(self, state: OutletState, detail: str = "") -> None:
        """Set the state, and the text that explains it."""
        if state is not self.state:
            self.state, self.since = state, self.clock.state_ms()
        self.detail = detail

    def delivered(self, batch: LogBatch) -> None:
        """Count a batch that is delivered."""
        self.sent += len(batch.entries)
        self.latency.observe(self.clock.age_s(batch.oldest_ms))

    def shown(self, log: OutletLog) -> OutletNow:
        """This status and the position in *log*, as a row for metrics."""
        return OutletNow(
            outlet=log.name,
            state=self.state.value,
            since=self.since + self.clock.wall_ahead_ms(),
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
