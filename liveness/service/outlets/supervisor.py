"""Runs the outlets of a sidecar; one that fails does not disturb anything else.

An outlet that ends with an error begins again after a pause, and continues from its cursor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog
import trio

from liveness.config.settings import Config
from liveness.errors import LivenessError
from liveness.metrics.outlet_now import OutletNow
from liveness.service.outlets.common.outlet import CursorOutlet, Outlet
from liveness.service.outlets.common.outlet_log import LogAccess
from liveness.service.outlets.common.outlet_store import OutletStore

if TYPE_CHECKING:
    from liveness.service.outlets.cluster.publisher import Publisher
    from liveness.service.outlets.webhooks.dead_letters import DeadLetters
    from liveness.service.outlets.webhooks.webhook_outlet import WebhookOutlet

# The pause before a failed outlet begins again.
RESTART_S: Final = 60.0
# How long the end waits for a change to the database that an operator requested.
CLOSE_S: Final = 0.5

_log = structlog.get_logger("outlet")


def make_outlets(config: Config, access: LogAccess) -> "Outlets":
    """The outlets in the settings, not running yet.

    Raises:
        StartError: An outlet's package is not installed, or a file or setting of Kafka
            cannot be used.
    """
    from liveness.service.outlets.webhooks.dead_letters import DeadLetters

    # Each is imported only if configured: without it, the sidecar starts sooner.
    cluster: Publisher | None = None
    if config.cluster.is_on:
        from liveness.service.outlets.cluster import publisher

        cluster = publisher.Publisher(config, access)
    webhooks: list[WebhookOutlet] = []
    if config.webhooks:
        from liveness.service.outlets.webhooks.webhook_outlet import make_webhooks

        webhooks = make_webhooks(config, access)
    others: list[CursorOutlet] = []
    if config.kafka:
        from liveness.service.outlets.kafka.kafka_outlet import make_kafka

        others += make_kafka(config, access)
    return Outlets(
        [*webhooks, *others],
        access.store,
        retention_s=config.state.retention_s,
        cluster=cluster,
        webhooks=webhooks,
        letters=DeadLetters(access.store),
    )


@dataclass(eq=False, slots=True, kw_only=True)
class Outlets:
    """Runs outlets."""

    with_cursors: Sequence[CursorOutlet] = field(kw_only=False)
    store: OutletStore = field(kw_only=False)  # of their cursors
    retention_s: float  # of records, and of cursors of outlets that the settings lost
    cluster: "Publisher | None" = None  # its cursor is in Redis
    webhooks: "Sequence[WebhookOutlet]" = ()  # among those with cursors
    letters: "DeadLetters | None" = None

    async def run(self) -> None:
        """Run all outlets until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                if self.cluster is not None:
                    nursery.start_soon(self._run_alone, self.cluster)
                for outlet in self.with_cursors:
                    nursery.start_soon(self._run_alone, outlet)
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await self.store.close()

    async def _run_alone(self, outlet: Outlet) -> None:
        """Run one outlet, and again whenever it fails; no error leaves this task."""
        while True:
            try:
                if outlet is not self.cluster:
                    names = {other.name for other in self.with_cursors}
                    await self.store.open(keep=names, unused_s=self.retention_s)
                await outlet.run()
            except LivenessError as error:
                outlet.failed(str(error))
                _log.error("an outlet stopped", outlet=outlet.name, error=str(error))
            except Exception as error:
                cause: BaseException = error
                while isinstance(cause, BaseExceptionGroup):  # of a nursery
                    cause = cause.exceptions[0]
                outlet.failed(f"{type(cause).__name__}: {cause}; please report this")
                _log.exception("an outlet failed", outlet=outlet.name)
            await trio.sleep(RESTART_S)

    def now(self) -> list[OutletNow]:
        """A row of each outlet but the cluster, which has metrics of its own."""
        return [outlet.now() for outlet in self.with_cursors]
