"""liveness: who has gone silent? A connection-liveness sidecar for TCP gateways."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liveness.client.inbox import End
    from liveness.client.reconnecting_link import LinkState
    from liveness.client.sidecar import Sidecar, Stats, connect
    from liveness.client.sync import SyncSidecar, connect_sync
    from liveness.client.sync_cluster import SyncClusterWatch
    from liveness.client.sync_watch import SyncWatch
    from liveness.client.tasks import Timer
    from liveness.client.watcher import HostSession, Listing, Watch, Whereabouts
    from liveness.client.watches import watch, watch_sync
    from liveness.cluster.cluster_watch import ClusterWatch
    from liveness.config.cluster import ClusterSettings
    from liveness.errors import (
        ConfigError,
        LivenessError,
        Refused,
        Replaced,
        ReportError,
        TaskFailed,
    )

__version__ = "0.2.0"
__all__ = [
    "ClusterSettings",
    "ClusterWatch",
    "ConfigError",
    "End",
    "HostSession",
    "LinkState",
    "Listing",
    "LivenessError",
    "Refused",
    "Replaced",
    "ReportError",
    "Sidecar",
    "Stats",
    "SyncClusterWatch",
    "SyncSidecar",
    "SyncWatch",
    "TaskFailed",
    "Timer",
    "Watch",
    "Whereabouts",
    "__version__",
    "connect",
    "connect_sync",
    "watch",
    "watch_sync",
]
# Names from other modules than `liveness.client.sidecar`.
_MODULES = {
    "ClusterSettings": "config.cluster",
    "ClusterWatch": "cluster.cluster_watch",
    **dict.fromkeys(("ConfigError", "LivenessError", "ReportError"), "errors"),
    **dict.fromkeys(("Refused", "Replaced", "TaskFailed"), "errors"),
    "End": "client.inbox",
    "LinkState": "client.reconnecting_link",
    "Timer": "client.tasks",
    "SyncClusterWatch": "client.sync_cluster",
    "SyncSidecar": "client.sync",
    "connect_sync": "client.sync",
    "SyncWatch": "client.sync_watch",
    "HostSession": "client.watcher",
    "Listing": "client.watcher",
    "Watch": "client.watcher",
    "Whereabouts": "client.watcher",
    "watch": "client.watches",
    "watch_sync": "client.watches",
}


if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import the client library when one of its names is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = import_module(f"liveness.{_MODULES.get(name, 'client.sidecar')}")
        return getattr(module, name)

    def __dir__() -> list[str]:
        return __all__
