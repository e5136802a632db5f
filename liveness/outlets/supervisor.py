"""All outlets of one sidecar: they begin with it, and each fails alone.

An outlet that ends by an error begins again after a pause, and goes on from its cursor.
Whoever else there is notices nothing.
"""

from typing import TYPE_CHECKING, Final

import structlog
import trio

from liveness.config.settings import Config
from liveness.errors import LivenessError
from liveness.metrics import OutletNow
from liveness.outlets.common.outlet import CursorOutlet, Outlet
from liveness.outlets.common.outlet_log import LogAccess
from liveness.service.links.spools import Spools

if TYPE_CHECKING:
    from liveness.outlets.cluster.publisher import Publisher
    from liveness.outlets.webhooks.webhook_outlet import WebhookOutlet

# The pause before an outlet that failed by an error of its own begins again.
RESTART_S: Final = 60.0

_log = structlog.get_logger("outlet")


class Outlets:
    """The outlets that the settings name.

    Args:
        config: The settings.
        access: What outlets share.
        spools: Where the cluster's lists of all sessions wait.
    Raises:
        StartError: A secret cannot be read, or an outlet's package is not installed.
    """

    def __init__(self, config: Config, access: LogAccess, spools: Spools) -> None:
        self._store = access.store
        self._clock = access.clock
        self._retention_ms = round(config.state.retention_s * 1000)
        self.all: list[Outlet] = []
        self.with_cursors: list[CursorOutlet] = []
        # Each is imported when it is configured: without it, the sidecar starts sooner.
        self.cluster: Publisher | None = None
        if config.cluster.is_on:
            from liveness.outlets.cluster.publisher import make_publisher

            self.cluster = make_publisher(
                config,
                log_writer=access.log_writer,
                feed=access.feed,
                spools=spools,
                clock=access.clock,
                turnstile=access.turnstile,
            )
            self.all.append(self.cluster)
        self.webhooks: list[WebhookOutlet] = []
        if config.webhooks:
            from liveness.outlets.webhooks.webhook_outlet import make_webhooks

            self.webhooks = make_webhooks(config, access)
            self.with_cursors += self.webhooks
        if config.kafka:
            from liveness.outlets.kafka.kafka_outlet import make_kafka

            self.with_cursors += make_kafka(config, access)
        self.all += self.with_cursors

    async def run(self) -> None:
        """Run all outlets until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                for outlet in self.all:
                    nursery.start_soon(self._run_alone, outlet)
        finally:
            self._store.close()

    async def _run_alone(self, outlet: Outlet) -> None:
        """Run one outlet, again and again: its errors concern nobody else."""
        while True:
            try:
                if outlet is not self.cluster:  # which has its cursor in Redis
                    await self._prepare()
                await outlet.run()
            except LivenessError as error:
                outlet.failed(str(error))
                _log.error("an outlet stopped", outlet=outlet.name, error=str(error))
            except Exception as error:
                outlet.failed(f"{type(error).__name__}: {error}; please report this")
                _log.exception("an outlet failed; it begins again", outlet=outlet.name)
            await trio.sleep(RESTART_S)

    async def _prepare(self) -> None:
        await self._store.open()
        names = {outlet.name for outlet in self.all}
        since = self._clock.wall_ms() - self._retention_ms
        await self._store.forget_all_but(names, since)

    def now(self) -> list[OutletNow]:
        """A row of each, but for the cluster, which has metrics of its own."""
        return [outlet.now() for outlet in self.with_cursors]
