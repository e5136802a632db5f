"""Events of the cluster as lines for a person, and errors of Redis as such."""

from collections.abc import Iterator
from contextlib import contextmanager

from liveness.cluster.connection import CallError
from liveness.cluster.events import ClusterEvent, ClusterGap, Listed, Rollback
from liveness.cluster.format import Place
from liveness.config.cluster import ClusterSettings
from liveness.config.sources import NO_SOCKET, NO_STATE, load
from liveness.console.admin_client import CommandError
from liveness.core.records import GAP
from liveness.text import escaped, local_time, uid_text


def configured_cluster() -> ClusterSettings:
    """The settings of the cluster, as `serve` would use them.

    Raises:
        CommandError: No cluster is configured.
        ConfigError: As for `load`.
    """
    settings = load(NO_SOCKET | NO_STATE).cluster
    if not settings.is_on:
        raise CommandError(
            "no cluster is configured: set cluster.url in the settings file, or "
            "LIVENESS_CLUSTER_URL; see `liveness check-config`"
        )
    return settings


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Turn what a strict watch raises into a CommandError that says what to do."""
    try:
        yield
    except CallError as error:
        raise CommandError(error.advice) from None


def event_line(event: ClusterEvent) -> str:
    if isinstance(event, Rollback):
        when, kind, tail = _moment(event.version), event.kind, f"p {event.partition}"
        what = "Redis lost what came after: those records are void"
    elif isinstance(event, ClusterGap):
        when, kind, tail = _moment(event.until), GAP, f"p {event.partition}"
        what = f"records since {_moment(event.first)} are no longer kept"
    elif isinstance(event, Listed):
        when, kind, tail = _moment(event.version), event.kind, f"p {event.partition}"
        what = f"{len(event.places)} users online"
    else:
        when, kind = _moment(event.version), event.kind
        what = f"{escaped(uid_text(event.place.uid))}  {_at(event.place)}"
        if event.lost is not None:
            what += f" from {_at(event.lost)}"
        what += f"  {event.place.reason}"
        tail = f"p {event.partition} v {event.version}"
    return f"{when}  {kind:<7}  {what}  {tail}"


def _at(place: Place) -> str:
    return f"{escaped(place.gateway)} on {escaped(place.host)}"


def _moment(version: int) -> str:
    """When a version was made, by Redis' clock, in local time."""
    return local_time(version // 1_000) if version else "the beginning"
