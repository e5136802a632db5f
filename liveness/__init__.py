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

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "End",
    "LinkState",
    "LivenessError",
    "Refused",
    "Replaced",
    "ReportError",
    "Sidecar",
    "Stats",
    "SyncSidecar",
    "TaskFailed",
    "Timer",
    "__version__",
    "connect",
    "connect_sync",
]


if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import the client library when one of its names is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        is_sync = name in ("SyncSidecar", "connect_sync")
        module = "liveness.client.sync" if is_sync else "liveness.client.sidecar"
        return getattr(import_module(module), name)

    def __dir__() -> list[str]:
        return __all__
