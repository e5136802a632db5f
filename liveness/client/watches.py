"""`liveness.watch` and `liveness.watch_sync`: the records of one sidecar, or of all hosts.

    async with liveness.watch(cluster="redis://redis:6379") as watch:
        async for event in watch:
            print(event.kind, event.as_map())

A watch of the cluster reads Redis itself, and needs no sidecar beside it. coredis is
imported when it connects.
"""

from contextlib import AbstractContextManager
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from liveness.client import sync_watch, watcher
from liveness.errors import ReportError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liveness.client.sync_cluster import SyncClusterWatch
    from liveness.client.watcher_link import ReportLine
    from liveness.cluster.cluster_watch import ClusterWatch
    from liveness.config.cluster import ClusterSettings

__all__ = ["watch", "watch_sync"]

Path = str | PathLike[str]


@overload
def watch(
    path: Path | None = None,
    *,
    name: str | None = None,
    after: int | None = None,
    log: str | None = None,
    scope: str = "all",
    kinds: "Sequence[str]" = (),
    users: bool = False,
    strict: bool = False,
    report_line: "ReportLine | None" = None,
) -> watcher.Watch: ...


@overload
def watch(
    *,
    cluster: "str | ClusterSettings",
    position: str | None = None,
    kinds: "Sequence[str]" = (),
    lists: bool = False,
    strict: bool = False,
    report_line: "ReportLine | None" = None,
) -> "ClusterWatch": ...


def watch(
    path: Path | None = None,
    *,
    cluster: "str | ClusterSettings | None" = None,
    **options: Any,
) -> "watcher.Watch | ClusterWatch":
    """Return the records of a sidecar, or with `cluster` the events of all hosts.

    Args:
        path: The sidecar's socket. None: where the command line looks for it too.
        cluster: In place of a sidecar, the Redis that all hosts publish to: its URL, some
            nodes of a Redis Cluster ("HOST:PORT,HOST:PORT"), or settings.
        options: As `liveness.client.watcher.watch` has them; with `cluster` those of
            `liveness.cluster.cluster_watch.ClusterWatch`.
    Raises:
        ReportError: An argument is invalid. (It is a ValueError too.)
        ConfigError: Without a path: the settings do not say where the socket is.
    """
    if cluster is None:
        return watcher.watch(path, **options)
    _refuse_path(path)
    return _cluster_watch(cluster, options)


@overload
def watch_sync(
    path: Path | None = None,
    *,
    name: str | None = None,
    after: int | None = None,
    log: str | None = None,
    scope: str = "all",
    kinds: "Sequence[str]" = (),
    users: bool = False,
    strict: bool = False,
    report_line: "ReportLine | None" = None,
) -> AbstractContextManager[sync_watch.SyncWatch]: ...


@overload
def watch_sync(
    *,
    cluster: "str | ClusterSettings",
    position: str | None = None,
    kinds: "Sequence[str]" = (),
    lists: bool = False,
    strict: bool = False,
    report_line: "ReportLine | None" = None,
) -> AbstractContextManager["SyncClusterWatch"]: ...


def watch_sync(
    path: Path | None = None,
    *,
    cluster: "str | ClusterSettings | None" = None,
    **options: Any,
) -> (
    AbstractContextManager[sync_watch.SyncWatch]
    | AbstractContextManager["SyncClusterWatch"]
):
    """As `watch`, for a program without an event loop: it runs one in a thread.

    `report_line` is called in that thread.

    Raises:
        ReportError: As `watch`.
        ConfigError: As `watch`.
    """
    if cluster is None:
        return sync_watch.watch_sync(path, **options)
    _refuse_path(path)
    from liveness.client.sync_cluster import reading

    return reading(_cluster_watch(cluster, options))


def _refuse_path(path: Path | None) -> None:
    if path is not None:
        raise ReportError("give a path for one sidecar, or cluster for all; not both")


def _cluster_watch(
    cluster: "str | ClusterSettings", options: dict[str, Any]
) -> "ClusterWatch":
    from liveness.cluster.cluster_watch import ClusterWatch
    from liveness.config.cluster import settings_of

    try:
        settings = settings_of(cluster) if isinstance(cluster, str) else cluster
    except ValueError as error:
        raise ReportError(f"cluster: {error}") from None
    return ClusterWatch(settings, **options)
