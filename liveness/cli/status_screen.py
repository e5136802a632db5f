"""The state of the sidecar: read from `/v1/wheel`, and laid out as rows of text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from liveness.console.admin_client import CommandError, request_json, unexpected_answer
from liveness.core.cursors import UNACKNOWLEDGED
from liveness.core.links.link_troubles import REFUSED, REPLACED
from liveness.core.timer_states import FAILED, FIRED, PENDING
from liveness.core.wheel.intervals import TIMES, is_short
from liveness.metrics.collector import OTHER
from liveness.text import duration, escaped

FOLLOWING: Final = "following"  # the state in which nothing is to be done
LEAST_NAME_WIDTH: Final = 13
MOST_LISTED: Final = 8  # of at most 65 gateways; --json has them all
# Timers that have not ended, and those that an operator has to look at.
TIMERS_SHOWN: Final = (PENDING, FIRED, FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What `status --json` prints."""

    socket: str
    ready: bool
    why: list[str]
    version: str
    wheel: str
    uptime_s: float
    users_online: float
    users_by_gateway: dict[str, float]
    timeout_s_by_gateway: dict[str, float]
    interval_s_by_gateway: dict[str, float]
    mutes_by_gateway: dict[str, float]
    users_held: dict[str, float]
    storms: list[dict[str, Any]]
    storms_more: int
    links: dict[str, float]
    stalled: list[dict[str, Any]]
    link_troubles: list[dict[str, Any]]
    link_troubles_forgotten: int
    events: dict[str, float]
    offlines: dict[str, float]
    lateness_s: dict[str, dict[str, float | None]]
    early: float
    timers: dict[str, float]
    cluster: dict[str, Any] | None
    outlets: list[dict[str, Any]]
    log_seq: float
    log_pending: float
    log_bytes: float
    unattended_s: float


def look(socket_path: Path) -> Status:
    """Asks the sidecar at *socket_path* for its state.

    Raises:
        CommandError: It did not answer, or with something else.
    """
    found = request_json(socket_path, "/v1/wheel")
    try:
        return _read(socket_path, found)
    except (AttributeError, KeyError, TypeError, ValueError):
        if "version" in found:
            raise CommandError(
                f"the sidecar at {socket_path} has another version: restart it, or use the "
                "`liveness` that it was started with"
            ) from None
        raise unexpected_answer(socket_path) from None


def _read(socket_path: Path, found: Mapping[str, Any]) -> Status:
    total = found["total"]
    gateways = {gateway["name"]: gateway for gateway in found["gateways"]}
    cluster = found["cluster"]

    def by_gateway(key: str) -> dict[str, float]:
        values = {name: gateway[key] for name, gateway in gateways.items()}
        return {name: value for name, value in values.items() if value is not None}

    # Many values of the page are shown as they are.
    same = {
        field.name: found[field.name] for field in fields(Status) if field.name in found
    }
    users = by_gateway("users")
    if found["gateways_more"]:
        users[OTHER] = found["users"] - sum(users.values())
    changed: dict[str, Any] = {
        "socket": str(socket_path),
        "ready": bool(found["ready"]),
        "why": [str(reason) for reason in found["why"]],
        "users_online": found["users"],
        "users_by_gateway": users,
        "timeout_s_by_gateway": by_gateway("timeout"),
        "interval_s_by_gateway": by_gateway("interval"),
        "mutes_by_gateway": by_gateway("mutes"),
        "users_held": found["held"],
        "link_troubles": _aged(found["link_troubles"], found["at"]),
        "events": total["events"],
        "offlines": total["offlines"],
        "lateness_s": {
            stage: {"p50": known["p50_s"], "p99": known["p99_s"]}
            for stage, known in total["lateness"].items()
        },
        "cluster": None if cluster is None else _timed(cluster, found["at"]),
        "outlets": [_timed(outlet, found["at"]) for outlet in found["outlets"]],
        "log_seq": found["seq"],
    }
    return Status(**same | changed)


def as_text(found: Status) -> str:
    """One screen for a person."""
    rows = rows_of(found)
    width = max(LEAST_NAME_WIDTH, *map(len, rows))  # outlets have names of up to 41
    return "".join(f"{name:<{width}} {text}\n" for name, text in rows.items())


def rows_of(found: Status, rates: Mapping[str, str] | None = None) -> dict[str, str]:
    """The rows of that screen: name and text, safe for a terminal.

    Args:
        found: The state.
        rates: Rows with rates, if these are known.
    """
    timers = {state: found.timers.get(state, 0) for state in TIMERS_SHOWN}
    log = f"seq {found.log_seq:,.0f}, {found.log_pending:,.0f} pending"
    rows = {
        "liveness": f"{found.version} (wheel: {found.wheel})",
        "socket": found.socket,
        "ready": "yes" if found.ready else "no: " + "; ".join(found.why),
        "up": duration(found.uptime_s),
        "users online": f"{found.users_online:,.0f}",
        "by gateway": _listed(found.users_by_gateway),
        "held": _listed(found.users_held),
        **_storm_rows(found),
        **_cadence_rows(found),
        **_mute_rows(found),
        "links": _listed(found.links),
        **_stalled_rows(found),
        **_trouble_rows(found),
        "events": _listed(found.events),
        "offline": _listed(found.offlines),
        **(rates or {}),
        **{
            f"{stage} after": f"p50 {_ms(p['p50'])}, p99 {_ms(p['p99'])} from the deadline"
            for stage, p in found.lateness_s.items()
        },
        "early": f"{found.early:,.0f} (must stay 0)",
        **({"timers": _listed(timers)} if any(timers.values()) else {}),
        **_cluster_rows(found.cluster),
        **_outlet_rows(found.outlets),
        "log": f"{log}, {found.log_bytes / 2**20:.1f} MiB",
        "unattended": f"{found.unattended_s:.1f} s",
    }
    return {name: escaped(text) for name, text in rows.items()}


def _storm_rows(found: Status) -> dict[str, str]:
    """The users that the guard holds, the time left, and the command that ends it."""
    if not found.storms:
        return {}
    storms = [
        f"{storm['gateway']} {storm['users']:,} users, {storm['left_s']:.0f} s left"
        for storm in found.storms
    ]
    shown = "; ".join(_first(storms, found.storms_more))
    return {"storm": shown, "to release": "liveness guard release [NAME]"}


def _cadence_rows(found: Status) -> dict[str, str]:
    """Gateways whose timeout is too short for how often their users send."""
    timeouts, intervals = found.timeout_s_by_gateway, found.interval_s_by_gateway
    short = [
        f"{name} users send every {intervals[name]:.1f} s, timeout {timeout:g} s"
        for name, timeout in timeouts.items()
        if is_short(timeout, intervals.get(name, 0.0))
    ]
    if not short:
        return {}
    advice = f"a timeout of {TIMES} intervals or more survives a lost keepalive"
    return {"cadence": "; ".join(_first(short)), "to mend": advice}


def _mute_rows(found: Status) -> dict[str, str]:
    """How often gateways broke their promise to ping since the sidecar started."""
    mutes = {name: times for name, times in found.mutes_by_gateway.items() if times}
    return {"times mute": _listed(mutes)} if mutes else {}


def _stalled_rows(found: Status) -> dict[str, str]:
    """The gateways and watchers that take no more records."""
    stalled = [
        f"{row['role']} {row['name']} "
        + (
            f"has not acknowledged {row['unacked']:,} records"
            if row["why"] == UNACKNOWLEDGED
            else "does not read its link"
        )
        + f" for {duration(row['for_s'])}, and gets no more"
        for row in found.stalled
    ]
    return {"stalled": "; ".join(_first(stalled))} if stalled else {}


def _aged(rows: Sequence[Mapping[str, Any]], now_ms: int) -> list[dict[str, Any]]:
    """The refused and replaced names, each with how many seconds ago it was last."""
    return [dict(row) | {"ago_s": (now_ms - row["at"]) / 1_000} for row in rows]


def _trouble_rows(found: Status) -> dict[str, str]:
    """The names refused or replaced within the last hour: they may not be watched."""
    rows: dict[str, str] = {}
    for what in (REFUSED, REPLACED):
        troubles = [row for row in found.link_troubles if row["what"] == what]
        if troubles:
            rows[what] = "; ".join(_first([*map(_trouble_text, troubles)]))
    if rows:
        rows["what to do"] = 'see "A name is refused or replaced" in the runbook'
    return rows


def _trouble_text(row: Mapping[str, Any]) -> str:
    name = "without a hello" if row["name"] is None else f"{row['role']} {row['name']}"
    why = "" if row["what"] == REPLACED else f" {row['code']},"
    times = "once" if row["times"] == 1 else f"{row['times']:,} times"
    process = f"process {row['pid']}" if row["pid"] else "a process"
    return (
        f"{name}{why} {times}, last {duration(max(0.0, row['ago_s']))} ago, {process} of "
        f"Unix user {row['unix_user']}"
    )


def _timed(shown: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """The state of the cluster or an outlet, with for how many seconds it is in it."""
    return dict(shown) | {"for_s": max(0.0, (now_ms - shown["since"]) / 1_000)}


def _cluster_rows(cluster: Mapping[str, Any] | None) -> dict[str, str]:
    """One row, and if the host does not follow, why and what to do."""
    if cluster is None:
        return {}
    text = f"{_progress(cluster)}, {cluster['users']:,} users on all hosts"
    rows = {"cluster": text}
    if cluster["detail"]:
        rows["why"] = cluster["detail"]
    return rows


def _outlet_rows(outlets: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A row for each outlet, and how to see the dead letters that are kept."""
    rows = {outlet["outlet"]: _outlet_text(outlet) for outlet in outlets}
    if any(outlet["dead_kept"] for outlet in outlets):
        rows["dead letters"] = "see them by `liveness webhooks dead`"
    return rows


def _outlet_text(outlet: Mapping[str, Any]) -> str:
    """The state and the counts of an outlet, and why it does not follow."""
    kept = outlet["dead_kept"]
    counts = {
        "sent": outlet["sent"],
        "dead letter" if kept == 1 else "dead letters": kept,
        "missed": outlet["missed"],
        "left out": outlet["damped"],
        "settling": outlet["settling"],
    }
    parts = [_progress(outlet)]
    parts += [f"{n:,} {name}" for name, n in counts.items() if n or name == "sent"]
    why = f"; {outlet['detail']}" if outlet["detail"] else ""
    return ", ".join(parts) + why


def _progress(reader: Mapping[str, Any]) -> str:
    """The state of the cluster or an outlet, and how far it is behind."""
    state = reader["state"]
    if state != FOLLOWING:
        state = f"{state} for {duration(reader['for_s'])}"
    return f"{state}, lag {reader['lag_records']:,} records ({reader['lag_s']:.1f} s)"


def _listed(values: Mapping[str, float]) -> str:
    """The largest first."""
    ordered = sorted(values.items(), key=lambda item: -item[1])
    shown = _first([f"{name} {value:,.0f}" for name, value in ordered])
    return ", ".join(shown) or "none"


def _first(texts: Sequence[str], more: int = 0) -> list[str]:
    """No more of them than a line or two will hold; *more* are not even in *texts*."""
    left = max(0, len(texts) - MOST_LISTED) + more
    return [*texts[:MOST_LISTED], *([f"and {left} more"] if left else [])]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"
