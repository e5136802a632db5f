"""How the sidecar is, on one screen: asked, and laid out in rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from liveness.cli.guard import storms
from liveness.console.admin_client import ask, no_sidecar, readiness
from liveness.core.clearance import STORM
from liveness.core.intervals import TIMES, is_short
from liveness.core.timer_states import FAILED, FIRED, PENDING
from liveness.metrics import quantile
from liveness.text import duration, escaped

MOST_LISTED: Final = 8  # of at most 65 gateways; --json has them all
# Timers that something may still become of, and those that an operator has to look at.
TIMERS_SHOWN: Final = (PENDING, FIRED, FAILED)
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What `status --json` prints. None: the sidecar did not say."""

    socket: str
    ready: bool
    why: list[str]
    version: str | None
    wheel: str | None
    uptime_s: float | None
    users_online: float | None
    users_by_gateway: dict[str, float]
    timeout_s_by_gateway: dict[str, float]
    interval_s_by_gateway: dict[str, float]
    mutes_by_gateway: dict[str, float]
    users_held: dict[str, float]
    storms: list[dict[str, Any]]
    storms_more: int
    links: dict[str, float]
    events: dict[str, float]
    offlines: dict[str, float]
    lateness_s: dict[str, dict[str, float | None]]
    early: float | None
    timers: dict[str, float]
    log_seq: float | None
    log_pending: float | None
    log_bytes: float | None
    unattended_s: float | None


def look(socket_path: Path) -> Status:
    """Asks the sidecar at *socket_path* how it is.

    Raises:
        CommandError: It could not be asked.
    """
    ready, why = readiness(socket_path)
    _code, body = ask(socket_path, "/metrics")
    return _read(socket_path, body, ready=ready, why=why)


class _Samples:
    """The samples of one scrape, by name."""

    def __init__(self, body: str) -> None:
        self._by_name: dict[str, list[tuple[Labels, float]]] = {}
        for family in text_string_to_metric_families(body):
            for sample in family.samples:
                named = self._by_name.setdefault(sample.name, [])
                named.append((sample.labels, sample.value))

    def labelled(self, name: str) -> list[tuple[Labels, float]]:
        return self._by_name.get(name, [])

    def one(self, name: str) -> float | None:
        found = self.labelled(name)
        return found[0][1] if found else None

    def by(self, label: str, name: str) -> dict[str, float]:
        return {labels[label]: value for labels, value in self.labelled(name)}

    def quantiles(self, name: str, by: str) -> dict[str, dict[str, float | None]]:
        """The median and the 99th percentile of a histogram, for each value of *by*."""
        buckets: dict[str, list[tuple[float, float]]] = {}
        for labels, count in self.labelled(f"{name}_bucket"):
            bound = float(labels["le"])
            buckets.setdefault(labels[by], []).append((bound, count))
        return {
            value: {"p50": quantile(0.5, found), "p99": quantile(0.99, found)}
            for value, found in buckets.items()
        }


def _read(socket_path: Path, body: bytes, *, ready: bool, why: list[str]) -> Status:
    try:
        samples = _Samples(body.decode())
    except ValueError:
        raise no_sidecar(socket_path) from None
    build: Any = next(iter(samples.labelled("liveness_build_info")), ({}, 1.0))[0]
    started = samples.one("process_start_time_seconds")
    now = datetime.now(UTC).timestamp()
    held = samples.by("why", "liveness_users_held")
    on, more = storms(socket_path) if held.get(STORM) else ([], 0)
    return Status(
        socket=str(socket_path),
        ready=ready,
        why=why,
        version=build.get("version"),
        wheel=build.get("wheel"),
        uptime_s=None if started is None else max(0.0, now - started),
        users_online=samples.one("liveness_users_online"),
        users_by_gateway=samples.by("gateway", "liveness_gateway_users"),
        timeout_s_by_gateway=samples.by("gateway", "liveness_gateway_timeout_seconds"),
        interval_s_by_gateway=samples.by(
            "gateway", "liveness_gateway_interval_seconds"
        ),
        mutes_by_gateway=samples.by("gateway", "liveness_gateway_mute_total"),
        users_held=held,
        storms=on,
        storms_more=more,
        links=samples.by("role", "liveness_links"),
        events=samples.by("event", "liveness_events_total"),
        offlines=samples.by("reason", "liveness_offline_total"),
        lateness_s=samples.quantiles("liveness_offline_lateness_seconds", by="stage"),
        early=samples.one("liveness_early_offline_total"),
        timers=samples.by("state", "liveness_timers"),
        log_seq=samples.one("liveness_log_seq"),
        log_pending=samples.one("liveness_log_pending"),
        log_bytes=samples.one("liveness_log_bytes"),
        unattended_s=samples.one("liveness_unattended_seconds_total"),
    )


def as_text(found: Status) -> str:
    """One screen for a person."""
    return "".join(f"{name:<13} {text}\n" for name, text in rows_of(found).items())


def rows_of(found: Status, rates: Mapping[str, str] | None = None) -> dict[str, str]:
    """What is on that screen: name and text, safe for a terminal.

    Args:
        found: How it is.
        rates: Rows of how fast it changes, if that is known.
    """
    mib = None if found.log_bytes is None else found.log_bytes / 2**20
    timers = {state: found.timers.get(state, 0) for state in TIMERS_SHOWN}
    log = f"seq {_number(found.log_seq)}, {_number(found.log_pending)} pending"
    rows = {
        "liveness": f"{found.version or '?'} (wheel: {found.wheel or '?'})",
        "socket": found.socket,
        "ready": "yes" if found.ready else "no: " + "; ".join(found.why),
        "up": duration(found.uptime_s),
        "users online": _number(found.users_online),
        "by gateway": _listed(found.users_by_gateway),
        "held": _listed(found.users_held),
        **_storm_rows(found),
        **_cadence_rows(found),
        **_mute_rows(found),
        "links": _listed(found.links),
        "events": _listed(found.events),
        "offline": _listed(found.offlines),
        **(rates or {}),
        **{
            f"late {stage}": f"p50 {_ms(both['p50'])}, p99 {_ms(both['p99'])}"
            for stage, both in found.lateness_s.items()
        },
        "early": f"{_number(found.early)} (must stay 0)",
        **({"timers": _listed(timers)} if any(timers.values()) else {}),
        "log": f"{log}, {_number(mib, '.1f')} MiB",
        "unattended": f"{_number(found.unattended_s, '.1f')} s",
    }
    return {name: escaped(text) for name, text in rows.items()}


def _storm_rows(found: Status) -> dict[str, str]:
    """Whom the guard holds, for how long yet, and what ends that."""
    if not found.storms:
        return {}
    shown = [
        f"{storm['gateway']} {storm['users']:,} users, {storm['left_s']:.0f} s left"
        for storm in found.storms[:MOST_LISTED]
    ]
    more = len(found.storms) - len(shown) + found.storms_more
    if more:
        shown.append(f"and {more} more")
    return {"storm": "; ".join(shown), "to release": "liveness guard release [NAME]"}


def _cadence_rows(found: Status) -> dict[str, str]:
    """Which timeouts are too short for how often users speak."""
    timeouts, intervals = found.timeout_s_by_gateway, found.interval_s_by_gateway
    short = [
        f"{name} speaks every {intervals[name]:.1f} s, timeout {timeout:g} s"
        for name, timeout in timeouts.items()
        if is_short(timeout, intervals.get(name, 0.0))
    ]
    if not short:
        return {}
    shown = short[:MOST_LISTED]
    if len(short) > len(shown):
        shown.append(f"and {len(short) - len(shown)} more")
    advice = f"a timeout of {TIMES} intervals or more outlasts a lost keepalive"
    return {"cadence": "; ".join(shown), "to mend": advice}


def _mute_rows(found: Status) -> dict[str, str]:
    """Which gateways broke their promise to ping, since the sidecar began."""
    mutes = {name: times for name, times in found.mutes_by_gateway.items() if times}
    return {"times mute": _listed(mutes)} if mutes else {}


def _number(value: float | None, form: str = ",.0f") -> str:
    return "?" if value is None else format(value, form)


def _listed(values: Mapping[str, float]) -> str:
    """The largest first, and no more of them than a line or two will hold."""
    ordered = sorted(values.items(), key=lambda item: -item[1])
    shown = [f"{name} {_number(value)}" for name, value in ordered[:MOST_LISTED]]
    if len(ordered) > MOST_LISTED:
        shown.append(f"and {len(ordered) - MOST_LISTED} more")
    return ", ".join(shown) or "none"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"
