"""Makes the outlets in the settings, if any."""

from functools import partial
from typing import TYPE_CHECKING

from liveness.config.outlet_settings import OutletSettings
from liveness.config.settings import Config
from liveness.core.records import MOVED, OFFLINE, Record
from liveness.core.sessions.presence import Presence
from liveness.service.common.clock import Clock
from liveness.service.common.turnstile import Turnstile
from liveness.service.storage.log_tail import LogTail
from liveness.service.storage.log_writer import LogWriter

if TYPE_CHECKING:
    from liveness.service.outlets.supervisor import Outlets


def outlets_of(
    config: Config,
    presence: Presence,
    log_writer: LogWriter,
    feed: LogTail,
    *,
    clock: Clock,
    turnstile: Turnstile,
) -> "Outlets | None":
    """The outlets in the settings; None if there are none.

    Raises:
        StartError: See `make_outlets`.
    """
    if not (config.cluster.is_on or config.webhooks or config.kafka):
        return None
    # Imported only if one is configured: the sidecar starts sooner without.
    from liveness.service.outlets.common.outlet_log import LogAccess
    from liveness.service.outlets.common.outlet_store import OutletStore
    from liveness.service.outlets.supervisor import make_outlets

    access = LogAccess(
        log_writer,
        feed,
        OutletStore(log_writer.store.folder, clock),
        clock,
        turnstile,
        config.limits.max_settling,
        partial(is_superseded, presence, log_writer),
    )
    return make_outlets(config, access)


def is_superseded(
    presence: Presence,
    log_writer: LogWriter,
    record: Record,
    log: str,
    settings: OutletSettings,
) -> bool:
    """Whether a later record has made this record of a session untrue.

    Only records that the reader gets count: without moves, a move supersedes nothing.

    *log* is the id of its log: another one if a backup was restored since.
    """
    gateways = settings.gateway_set
    of_user = settings.users_only and record.devices is not None
    # A session that is not durable yet is shown nowhere.
    sessions = {
        session: gateway
        for _, gateway, session, _ in presence.where(
            [record.user if of_user else record.uid]
        )
        if session <= log_writer.durable_seq and (not gateways or gateway in gateways)
    }
    if record.kind == OFFLINE or (gateways and record.gateway not in gateways):
        return bool(sessions)
    if settings.users_only or MOVED not in settings.kind_set:
        return not sessions
    store = log_writer.store
    is_same = log == store.log or record.session <= store.ancestors.get(log, 0)
    if is_same and not settings.settle_s:
        return record.session not in sessions
    # In another log the session has another number; and with damping, the reader may have
    # missed that the user left and came back.
    return record.gateway not in sessions.values()
