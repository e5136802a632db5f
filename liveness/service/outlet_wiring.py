"""Makes the outlets of a sidecar, if its settings name any."""

from functools import partial
from typing import TYPE_CHECKING

from liveness.config.settings import Config
from liveness.core.presence import Presence
from liveness.core.records import Record
from liveness.service.common.clock import Clock
from liveness.service.common.turnstile import Turnstile
from liveness.service.links.spools import Spools
from liveness.service.storage.log_tail import LogTail
from liveness.service.storage.log_writer import LogWriter

if TYPE_CHECKING:
    from liveness.outlets.supervisor import Outlets


def outlets_of(
    config: Config,
    presence: Presence,
    log_writer: LogWriter,
    feed: LogTail,
    *,
    spools: Spools,
    clock: Clock,
    turnstile: Turnstile,
) -> "Outlets | None":
    """The outlets that the settings name; None if they name none.

    Raises:
        StartError: As `make_outlets`.
    """
    if not (config.cluster.is_on or config.webhooks or config.kafka):
        return None
    # Imported when one is configured: without it, the sidecar starts sooner.
    from liveness.outlets.common.outlet_log import LogAccess
    from liveness.outlets.common.outlet_store import OutletStore
    from liveness.outlets.supervisor import make_outlets

    access = LogAccess(
        log_writer,
        feed,
        OutletStore(log_writer.store.folder, clock),
        clock,
        turnstile,
        config.limits.max_settling,
        partial(_is_back, presence, log_writer),
    )
    return make_outlets(config, access, spools)


def _is_back(
    presence: Presence, log_writer: LogWriter, offline: Record, of_any_device: bool
) -> bool:
    """Whether the log has a session of this user that began after an offline."""
    wheel = presence.wheel
    uids = [offline.uid]
    if of_any_device and offline.devices is not None:
        uids = wheel.devices_of(offline.user, 1)
    sessions = [entry.session for uid in uids if (entry := wheel.find(uid))]
    # One that is not on disk yet is shown nowhere.
    return any(offline.seq < session <= log_writer.durable_seq for session in sessions)
