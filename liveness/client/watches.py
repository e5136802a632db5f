"""`liveness.watch` and `liveness.watch_sync`: the records of one sidecar, or of all hosts.

A watch of the cluster reads Redis itself, and needs no sidecar beside it. coredis is
imported when it connects.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from os import PathLike
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from liveness.client import sync_watch, watcher
from liveness.client.dialer import ReportLine
from liveness.errors import ReportError

if TYPE_CHECKING:
    from liveness.client.sync_cluster import SyncClusterWatch
    from liveness.cluster.cluster_watch import ClusterWatch
    from liveness.config.cluster import ClusterSettings

__all__ = ["watch", "watch_sync"]

Path = str | PathLike[str]


class WatchOptions(TypedDict, total=False):
    """The options of a watch of one sidecar."""

    name: str | None
    after: int | None
    log: str | None
    scope: str
    kinds: Sequence[str]
    users: bool
    settle_s: float
    strict: bool
    report_line: ReportLine | None


class ClusterWatchOptions(TypedDict, total=False):
    """The options of a watch of all hosts."""

    position: str | None
    kinds: Sequence[str]
    lists: bool
    strict: bool
    report_line: ReportLine | None


@overload
def watch(
    path: Path | None = None, **options: Unpack[WatchOptions]
) -> watcher.Watch: ...


@overload
def watch(
    *, cluster: "str | ClusterSettings", **options: Unpack[ClusterWatchOptions]
) -> "ClusterWatch": ...


def watch(
    path: Path | None = None,
    *,
    cluster: "str | ClusterSettings | None" = None,
    **options: Any,
) -> "watcher.Watch | ClusterWatch":
    """Return the records of a sidecar, in order and without end.

    It connects when the first record is requested, and again whenever its link ends. A new
    link neither leaves out nor repeats a record. Without a sidecar it waits: a program may
    start before its sidecar. The logger "liveness.client" logs changes of the link.

    With a `name`, the sidecar stores this reader's position: a program that starts again
    continues after the last record that it finished. Without one, every program begins at
    `after`, and can keep its own position: `Watch.position` and `Watch.log`.

    With `cluster` it returns the events of all hosts, read from Redis itself, as a
    `ClusterWatch`. Only kinds, lists, position, report_line and strict apply then.

    Args:
        path: The sidecar's socket. None: the default, as for the command line.
        cluster: The Redis that all hosts publish to, in place of a sidecar: its URL, some
            nodes of a Redis Cluster ("HOST:PORT,HOST:PORT"), or settings.
        position: With `cluster`: the `position` of an earlier watch; "oldest": everything
            that is kept; None: only new events.
        lists: With `cluster`: whether to list online users, at first and after each
            rollback and gap.
        name: The name of this reader, 1 to 64 bytes. No other process may use it. The
            sidecar forgets it after 1.25 times the retention without a link.
        after: Begin above this `seq`; 0: with the oldest record that is kept. None: with
            the next new record. With a `name`, only for one that the sidecar does not know.
        log: The id of the log that `after` belongs to, from `Watch.log`. If the sidecar
            has another log, all its records are delivered. None: the sidecar's log.
        scope: "all"; or "own", for the records of the gateway of this `name`.
        kinds: The records to read: "online", "offline", "moved", "timer". Empty: all. A
            "gap" is always read.
        users: Read records of users, not of their devices: one when a user's first device
            comes, and one when the last goes. Needs `presence.device_separator` in the
            sidecar's settings.
        settle_s: How long a user must be away, 0 to 600 seconds, before its offline is
            delivered; if it is back before that, neither the offline nor the online is.
            Records are then not in the order of their `seq`; see `Watch`.
        strict: Whether to raise errors that are otherwise logged and tried again: at the
            first attempt all, later only permanent refusals.
        report_line: Called with each line about the link, in place of the logger.
    Raises:
        ReportError: An argument is invalid. (It is a ValueError too.)
        ConfigError: Without a path: the settings do not say where the socket is.
    """
    if cluster is None:
        return watcher.Watch(path, **options)
    return _cluster_watch(path, cluster, options)


@overload
def watch_sync(
    path: Path | None = None, **options: Unpack[WatchOptions]
) -> AbstractContextManager[sync_watch.SyncWatch]: ...


@overload
def watch_sync(
    *, cluster: "str | ClusterSettings", **options: Unpack[ClusterWatchOptions]
) -> AbstractContextManager["SyncClusterWatch"]: ...


def watch_sync(
    path: Path | None = None,
    *,
    cluster: "str | ClusterSettings | None" = None,
    **options: Any,
) -> AbstractContextManager[Any]:
    """Like `watch`, for a program without an event loop: it runs one in a thread.

    `report_line` is called in that thread.

    Raises:
        ReportError: As `watch`.
        ConfigError: As `watch`.
    """
    if cluster is None:
        return sync_watch.reading(watcher.Watch(path, **options))
    from liveness.client.sync_cluster import reading

    return reading(_cluster_watch(path, cluster, options))


def _cluster_watch(
    path: Path | None, cluster: "str | ClusterSettings", options: dict[str, Any]
) -> "ClusterWatch":
    if path is not None:
        raise ReportError("give a path for one sidecar, or cluster for all; not both")
    from liveness.cluster.cluster_watch import ClusterWatch
    from liveness.config.cluster import settings_of

    try:
        settings = settings_of(cluster) if isinstance(cluster, str) else cluster
    except ValueError as error:
        raise ReportError(f"cluster: {error}") from None
    return ClusterWatch(settings, **options)
