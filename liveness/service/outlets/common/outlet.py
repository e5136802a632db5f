"""An outlet: a reader of the log with its own cursor, which sends records elsewhere."""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias, TypeVar

import structlog
import trio

from liveness.config.outlet_settings import OutletSettings
from liveness.metrics.families import Histogram
from liveness.metrics.now import DELIVERY_S, OutletNow
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.outlets.common.outlet_log import (
    RETRY_S,
    LogAccess,
    OutletLog,
)

# It delivers records as they come; the newest try failed, and it tries again by itself; an
# operator has to act: `detail` says how.
OutletState: TypeAlias = Literal["following", "retrying", "stopped"]

T = TypeVar("T")

_log = structlog.get_logger("outlet")


class Outlet(ABC):
    """An outlet that stores its cursor in `outlets.db`: its log, its state and counts.

    It must not delay any other task: it reads the log like other readers, never blocks the
    event loop, and waits for the `Turnstile` before each larger piece of work. Its name is
    its section in the settings, such as `webhooks.mail`.
    """

    def __init__(self, name: str, settings: OutletSettings, access: LogAccess) -> None:
        self.name = name
        self.log = OutletLog(name, settings, access)
        self.state: OutletState = "following"
        self.detail = ""
        self.sent = 0  # records that were acknowledged
        self.retries = 0  # tries after the first one
        self.dead = 0  # records that became dead letters
        self.dead_kept = 0
        self.dead_deleted = 0  # the oldest dead letters, as there were too many
        self.latency = Histogram(DELIVERY_S)
        self._access = access
        self._since_ms = access.clock.state_ms()  # when `state` last changed
        self._log_throttled = LogThrottle(REPEAT_LOG_S, clock=access.clock.mono)

    @abstractmethod
    async def run(self) -> None:
        """Deliver until cancelled. It may be called again after it has failed.

        Raises:
            LivenessError: It cannot continue until an operator has acted.
        """

    def failed(self, why: str) -> None:
        """Show why `run` has ended, until it runs again."""
        self.now_is("stopped", why)

    def now_is(self, state: OutletState, detail: str = "") -> None:
        if state != self.state:
            self.state, self._since_ms = state, self._access.clock.state_ms()
        self.detail = detail

    def count_sent(self, records: int, oldest_ms: int) -> None:
        """Count acknowledged records, the oldest decided at *oldest_ms* (state's clock)."""
        self.sent += records
        self.latency.observe(self._access.clock.age_s(oldest_ms))

    def now(self) -> OutletNow:
        """Its status, for the metrics, `liveness status` and the live page."""
        return OutletNow(
            outlet=self.name,
            state=self.state,
            since=self._since_ms + self._access.clock.wall_ahead_ms(),
            detail=self.detail,
            lag_records=self.log.lag_records,
            lag_s=self.log.lag_s,
            sent=self.sent,
            retries=self.retries,
            dead=self.dead,
            dead_kept=self.dead_kept,
            dead_deleted=self.dead_deleted,
            missed=self.log.missed,
            damped=self.log.damping.left_out,
            settling_overflows=self.log.damping.hurried,
            settling=self.log.damping.waiting,
            latency=self.latency,
        )

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Use the database; repeat that every second while the disk refuses it."""
        while True:
            try:
                return await call()
            except (OSError, sqlite3.Error) as error:
                message = f"{self._access.store.path} cannot be used"
                self.now_is("retrying", f"{message} ({error}); is the disk full?")
                self._log_throttled(
                    _log.error, f"{message}; it is tried again every second",
                    key="disk", outlet=self.name, error=str(error),
                )  # fmt: skip
            await trio.sleep(RETRY_S)
