"""Makes and runs the outlets of a sidecar; one that fails does not disturb anything else.

An outlet that ends with an error begins again after a pause, and continues from its cursor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio

from liveness.config.outlet_settings import OutletSettings
from liveness.config.settings import Config
from liveness.core.records import MOVED, OFFLINE, Record
from liveness.core.sessions.presence import Presence
from liveness.errors import LivenessError
from liveness.metrics.now import OutletNow
from liveness.service.common.clock import Clock
from liveness.service.common.turnstile import Turnstile
from liveness.service.outlets.common.outlet import Outlet
from liveness.service.outlets.common.outlet_log import LogAccess
from liveness.service.outlets.common.outlet_store import OutletStore
from liveness.service.storage.log_tail import LogTail
from liveness.service.storage.log_writer import LogWriter

if TYPE_CHECKING:
    from liveness.service.outlets.cluster.publisher import Publisher
    from liveness.service.outlets.webhooks.webhook_outlet import WebhookOutlet

# The pause before a failed outlet begins again.
RESTART_S: Final = 60.0
# How long the end waits for a change to the database that an operator requested.
CLOSE_S: Final = 0.5

_log = structlog.get_logger("outlet")


def outlets_of(
    config: Config,
    presence: Presence,
    log_writer: LogWriter,
    feed: LogTail,
    *,
    clock: Clock,
    turnstile: Turnstile,
) -> "Outlets | None":
    """The outlets in the settings, not running yet; None if there are none.

    Raises:
        StartError: A package is missing, or a file or setting of Redis cannot be used.
    """
    if not (config.cluster.is_on or config.webhooks or config.kafka):
        return None
    access = LogAccess(
        log_writer,
        feed,
        OutletStore(log_writer.store.folder, clock),
        clock,
        turnstile,
        config.limits.max_settling,
        partial(is_superseded, presence, log_writer),
    )
    # Each is imported only if configured: without it, the sidecar starts sooner.
    outlets = Outlets([], access.store, retention_s=config.state.retention_s)
    if config.cluster.is_on:
        from liveness.service.outlets.cluster import publisher

        outlets.cluster = publisher.Publisher(config, access)
    if config.webhooks:
        from liveness.service.outlets.webhooks.webhook_outlet import WebhookOutlet

        outlets.webhooks = [
            WebhookOutlet(*it, access) for it in config.webhooks.items()
        ]
        outlets.with_cursors += outlets.webhooks
    if config.kafka:
        from liveness.service.outlets.kafka.kafka_outlet import KafkaOutlet

        outlets.with_cursors += [
            KafkaOutlet(*it, access) for it in config.kafka.items()
        ]
    return outlets


def is_superseded(
    presence: Presence, log_writer: LogWriter, record: Record, settings: OutletSettings
) -> bool:
    """Whether a record of a session is not true any more, by who is online now.

    Only durable sessions count. Without moves, the reader does not know their gateways.
    """
    gateways = {
        gateway
        for _, gateway, session, _ in presence.where(
            [record.user if settings.users_only else record.uid]
        )
        if session <= log_writer.durable_seq
    }
    if record.kind == OFFLINE:
        return bool(gateways)
    if settings.users_only or MOVED not in settings.kind_set:
        return not gateways
    return record.gateway not in gateways


@dataclass(eq=False, slots=True, kw_only=True)
class Outlets:
    """Runs outlets."""

    with_cursors: list[Outlet] = field(kw_only=False)
    store: OutletStore = field(kw_only=False)  # of their cursors
    retention_s: float  # of records, and of cursors of outlets that the settings lost
    cluster: "Publisher | None" = None  # its cursor is in Redis
    webhooks: "Sequence[WebhookOutlet]" = ()  # among those with cursors

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                if self.cluster is not None:
                    nursery.start_soon(self._run_alone, self.cluster)
                for outlet in self.with_cursors:
                    nursery.start_soon(self._run_alone, outlet)
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await self.store.close()

    async def _run_alone(self, outlet: "Outlet | Publisher") -> None:
        """Run one outlet, and again whenever it fails; no error leaves this task."""
        while True:
            try:
                if outlet is not self.cluster:
                    names = {other.name for other in self.with_cursors}
                    await self.store.open(keep=names, unused_s=self.retention_s)
                await outlet.run()
            except Exception as error:
                cause: BaseException = error
                while isinstance(cause, BaseExceptionGroup):  # of a nursery
                    cause = cause.exceptions[0]
                if isinstance(cause, LivenessError):
                    outlet.failed(str(cause))
                    _log.error(
                        "an outlet stopped", outlet=outlet.name, error=str(cause)
                    )
                else:
                    outlet.failed(
                        f"{type(cause).__name__}: {cause}; please report this"
                    )
                    _log.exception("an outlet failed", outlet=outlet.name)
            await trio.sleep(RESTART_S)

    def now(self) -> list[OutletNow]:
        """A row of each outlet but the cluster, which has metrics of its own."""
        return [outlet.now() for outlet in self.with_cursors]
