"""One outlet of [kafka.NAME]: reads, sends, and moves its cursor."""

from liveness.config.outlet_settings import KafkaSettings
from liveness.config.settings import Config
from liveness.metrics import OutletNow
from liveness.outlets.common.outlet import OutletState, OutletStatus
from liveness.outlets.common.outlet_log import LogAccess, OutletLog


def make_kafka(config: Config, access: LogAccess) -> "list[KafkaOutlet]":
    """The outlets that the settings name."""
    return [
        KafkaOutlet(name, settings, access) for name, settings in config.kafka.items()
    ]


class KafkaOutlet:
    """One outlet.

    Args:
        name: The name in its section.
        settings: Its settings.
        access: What outlets share.
    """

    def __init__(self, name: str, settings: KafkaSettings, access: LogAccess) -> None:
        self.name = f"kafka.{name}"
        self._settings = settings
        self._access = access
        self._log = OutletLog(self.name, settings, access)
        self._status = OutletStatus(access.clock, access.clock.wall_ms())

    async def run(self) -> None:
        """As `Outlet.run`."""
        raise NotImplementedError

    def failed(self, why: str) -> None:
        """As `Outlet.failed`."""
        self._status.now_is(OutletState.STOPPED, why)

    def now(self) -> OutletNow:
        """As `CursorOutlet.now`."""
        return self._status.shown(self._log)
