"""liveness: who has gone silent? A connection-liveness sidecar for TCP gateways."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liveness.client.sidecar import (
        ConfigError,
        End,
        LinkState,
        LivenessError,
        Refused,
        Replaced,
        ReportError,
        Sidecar,
        Stats,
        TaskFailed,
        Timer,
        connect,
    )
    from liveness.client.sync import SyncSidecar, connect_sync
    from liveness.client.sync_watch import SyncWatch, watch_sync
    from liveness.client.watcher import Listing, Watch, Whereabouts, watch

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "End",
    "LinkState",
    "Listing",
    "LivenessError",
    "Refused",
    "Replaced",
    "ReportError",
    "Sidecar",
    "Stats",
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
# The names that are in another module than `liveness.client.sidecar`.
_MODULES = {
    "SyncSidecar": "sync",
    "connect_sync": "sync",
    "SyncWatch": "sync_watch",
    "watch_sync": "sync_watch",
    "Listing": "watcher",
    "Watch": "watcher",
    "Whereabouts": "watcher",
    "watch": "watcher",
}


if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import the client library when one of its names is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = import_module(f"liveness.client.{_MODULES.get(name, 'sidecar')}")
        return getattr(module, name)

    def __dir__() -> list[str]:
        return __all__
