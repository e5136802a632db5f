"""One outlet of [webhooks.NAME]: reads, sends, and moves its cursor."""

from liveness.config.outlet_settings import WebhookSettings
from liveness.config.settings import Config
from liveness.metrics import OutletNow
from liveness.outlets.common.outlet import OutletState, OutletStatus
from liveness.outlets.common.outlet_log import LogAccess, OutletLog
from liveness.outlets.webhooks.results import DeadLetter, SendResult


def make_webhooks(config: Config, access: LogAccess) -> "list[WebhookOutlet]":
    """The outlets that the settings name."""
    return [
        WebhookOutlet(name, settings, access)
        for name, settings in config.webhooks.items()
    ]


class WebhookOutlet:
    """One outlet.

    Args:
        name: The name in its section.
        settings: Its settings.
        access: What outlets share.
    """

    def __init__(self, name: str, settings: WebhookSettings, access: LogAccess) -> None:
        self.name = f"webhooks.{name}"
        self.settings = settings
        self._access = access
        self._log = OutletLog(self.name, settings, access)
        self._status = OutletStatus(access.clock, access.clock.wall_ms())

    async def run(self) -> None:
        """As `Outlet.run`."""
        raise NotImplementedError

    async def send_test(self) -> SendResult:
        """Post one signed event of type `liveness.test` now, apart from the log.

        A receiver that fails raises nothing.
        """
        raise NotImplementedError

    async def dead_letters(self, before: int | None, limit: int) -> list[DeadLetter]:
        """The dead letters of this outlet, newest first.

        Args:
            before: Only those with a number below this one; None: from the newest on.
            limit: At most this many.
        """
        raise NotImplementedError

    async def retry(self, number: int) -> SendResult | None:
        """Post a dead letter alone, now; delete it if it is accepted.

        None: there is no such letter.
        """
        raise NotImplementedError

    def failed(self, why: str) -> None:
        """As `Outlet.failed`."""
        self._status.now_is(OutletState.STOPPED, why)

    def now(self) -> OutletNow:
        """As `CursorOutlet.now`."""
        return self._status.shown(self._log)
