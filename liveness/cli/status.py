"""`liveness status`: the state of the sidecar, on one screen."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from liveness.cli.options import Json, Socket, declared
from liveness.config.sources import socket_path
from liveness.console.admin_client import (
    CommandError,
    request_json,
    send_request,
    unexpected_answer,
)
from liveness.core.cursors import UNACKNOWLEDGED
from liveness.core.links.link_troubles import REFUSED, REPLACED
from liveness.core.sessions.cadence import TIMES, is_short
from liveness.core.timer_states import FAILED, FIRED, PENDING
from liveness.metrics.collector import OTHER
from liveness.text import duration, escaped

FOLLOWING: Final = "following"  # the state in which nothing is to be done
LEAST_NAME_WIDTH: Final = 13
MOST_LISTED: Final = 8  # of at most 65 gateways; --json has them all
# What is shown as the sidecar's summary has it.
SAME: Final = (
    *("version", "wheel", "uptime_s", "storms", "storms_more", "links", "stalled"),
    *("link_troubles_forgotten", "early", "timers"),
    *("log_pending", "log_bytes", "unattended_s"),
)

Rows = dict[str, str]


def look(socket_path: Path) -> dict[str, Any]:
    """Asks the sidecar at *socket_path* for its state, as `--json` shows it.

    Raises:
        CommandError: It did not answer, or with something else.
    """
    found = request_json(socket_path, "/v1/wheel")
    try:
        return _state(found) | {"socket": str(socket_path)}
    except (AttributeError, KeyError, TypeError, ValueError):
        if "version" in found:
            raise CommandError(
                f"the sidecar at {socket_path} has another version: restart it, or use the "
                "`liveness` that it was started with"
            ) from None
        raise unexpected_answer(socket_path) from None


def _state(found: Mapping[str, Any]) -> dict[str, Any]:
    total, now_ms = found["total"], found["at"]

    def by_gateway(key: str) -> dict[str, float]:
        values = {row["name"]: row[key] for row in found["gateways"]}
        return {name: value for name, value in values.items() if value is not None}

    def timed(shown: Mapping[str, Any]) -> dict[str, Any]:
        return dict(shown) | {"for_s": max(0.0, (now_ms - shown["since"]) / 1_000)}

    users = by_gateway("users")
    if found["gateways_more"]:
        users[OTHER] = found["users"] - sum(users.values())
    return {key: found[key] for key in SAME} | {
        "ready": bool(found["ready"]),
        "why": [str(reason) for reason in found["why"]],
        "users_online": found["users"],
        "users_by_gateway": users,
        "timeout_s_by_gateway": by_gateway("timeout"),
        "interval_s_by_gateway": by_gateway("interval"),
        "mutes_by_gateway": by_gateway("mutes"),
        "users_held": found["held"],
        "link_troubles": [
            dict(row) | {"ago_s": (now_ms - row["at"]) / 1_000}
            for row in found["link_troubles"]
        ],
        "events": total["events"],
        "offlines": total["offlines"],
        "lateness_s": {
            stage: {"p50": known["p50_s"], "p99": known["p99_s"]}
            for stage, known in total["lateness"].items()
        },
        "cluster": found["cluster"] and timed(found["cluster"]),
        "outlets": [timed(outlet) for outlet in found["outlets"]],
        "log_seq": found["seq"],
    }


def as_text(found: Mapping[str, Any]) -> str:
    """One screen for a person: rows without news are left out."""
    timers = {
        state: found["timers"].get(state, 0) for state in (PENDING, FIRED, FAILED)
    }
    rows = {
        "liveness": f"{found['version']} (wheel: {found['wheel']})",
        "socket": found["socket"],
        "ready": "yes" if found["ready"] else "no: " + "; ".join(found["why"]),
        "up": duration(found["uptime_s"]),
        "users online": f"{found['users_online']:,.0f}",
        "by gateway": _counts(found["users_by_gateway"]),
        "held": _counts(found["users_held"]),
        **_advice(found),
        "links": _counts(found["links"]),
        "stalled": "; ".join(_first([*map(_stalled, found["stalled"])])),
        **_troubles(found["link_troubles"]),
        "events": _counts(found["events"]),
        "offline": _counts(found["offlines"]),
        **{
            f"{stage} after": f"p50 {_ms(p['p50'])}, p99 {_ms(p['p99'])} from the deadline"
            for stage, p in found["lateness_s"].items()
        },
        "early": f"{found['early']:,.0f} (must stay 0)",
        "timers": _counts(timers) if any(timers.values()) else "",
        **_readers(found["cluster"], found["outlets"]),
        "log": f"seq {found['log_seq']:,.0f}, {found['log_pending']:,.0f} pending, "
        f"{found['log_bytes'] / 2**20:.1f} MiB",
        "unattended": f"{found['unattended_s']:.1f} s",
    }
    rows = {name: text for name, text in rows.items() if text}
    width = max(LEAST_NAME_WIDTH, *map(len, rows))  # outlets have names of up to 41
    return "".join(f"{name:<{width}} {escaped(text)}\n" for name, text in rows.items())


def _advice(found: Mapping[str, Any]) -> Rows:
    """Storms, timeouts that are too short, and gateways that broke their promise to ping."""
    rows = {}
    if found["storms"]:
        storms = [
            f"{storm['gateway']} {storm['users']:,} users, {storm['left_s']:.0f} s left"
            for storm in found["storms"]
        ]
        rows["storm"] = "; ".join(_first(storms, found["storms_more"]))
    intervals = found["interval_s_by_gateway"]
    short = [
        f"{name} users send every {intervals[name]:.1f} s, timeout {timeout:g} s"
        for name, timeout in found["timeout_s_by_gateway"].items()
        if is_short(timeout, intervals.get(name, 0.0))
    ]
    if short:
        rows["cadence"] = "; ".join(_first(short))
        rows["to mend"] = (
            f"a timeout of {TIMES} intervals or more survives a lost keepalive"
        )
    mutes = {name: times for name, times in found["mutes_by_gateway"].items() if times}
    if mutes:
        rows["times mute"] = _counts(mutes)
    return rows


def _stalled(row: Mapping[str, Any]) -> str:
    why = "does not read its link"
    if row["why"] == UNACKNOWLEDGED:
        why = f"has not acknowledged {row['unacked']:,} records"
    lasting = duration(row["for_s"])
    return f"{row['role']} {row['name']} {why} for {lasting}, and gets no more"


def _troubles(troubles: Sequence[Mapping[str, Any]]) -> Rows:
    """The names refused or replaced within the last hour: they may not be watched."""
    rows = {
        what: "; ".join(
            _first([_trouble(row) for row in troubles if row["what"] == what])
        )
        for what in (REFUSED, REPLACED)
    }
    if troubles:
        rows["what to do"] = 'see "A name is refused or replaced" in the runbook'
    return rows


def _trouble(row: Mapping[str, Any]) -> str:
    name = "without a hello" if row["name"] is None else f"{row['role']} {row['name']}"
    why = "" if row["what"] == REPLACED else f" {row['code']},"
    times = "once" if row["times"] == 1 else f"{row['times']:,} times"
    process = f"process {row['pid']}" if row["pid"] else "a process"
    return (
        f"{name}{why} {times}, last {duration(max(0.0, row['ago_s']))} ago, {process} of "
        f"Unix user {row['unix_user']}"
    )


def _readers(
    cluster: Mapping[str, Any] | None, outlets: Sequence[Mapping[str, Any]]
) -> Rows:
    """The cluster and each outlet, and what to do if they do not follow."""
    rows = {}
    if cluster is not None:
        rows["cluster"] = f"{_lag(cluster)}, {cluster['users']:,} users on all hosts"
        rows["why"] = cluster["detail"]
    for outlet in outlets:
        kept = outlet["dead_kept"]
        counts = {
            "sent": outlet["sent"],
            "dead letter" if kept == 1 else "dead letters": kept,
            "missed": outlet["missed"],
            "left out": outlet["damped"],
            "settling": outlet["settling"],
        }
        parts = [f"{n:,} {name}" for name, n in counts.items() if n or name == "sent"]
        why = f"; {outlet['detail']}" if outlet["detail"] else ""
        rows[outlet["outlet"]] = ", ".join([_lag(outlet), *parts]) + why
        if kept:
            rows["dead letters"] = "see them by `liveness webhooks dead`"
    if letters := rows.pop("dead letters", None):
        rows["dead letters"] = letters  # below all outlets
    return rows


def _lag(reader: Mapping[str, Any]) -> str:
    state = reader["state"]
    if state != FOLLOWING:
        state = f"{state} for {duration(reader['for_s'])}"
    return f"{state}, lag {reader['lag_records']:,} records ({reader['lag_s']:.1f} s)"


def _counts(values: Mapping[str, float]) -> str:
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


command: Final = declared("status", "status --quiet || echo not ready")


@command.default
def show_status(
    *,
    socket: Socket = None,
    json: Json = False,
    quiet: Annotated[
        bool, Parameter(help="print nothing; only set the exit code")
    ] = False,
) -> int:
    """Show the state of the sidecar; the exit code is 0 if it is ready, else 1."""
    path = socket_path(socket)
    if quiet:
        try:
            return 0 if send_request(path, "/readyz")[0] == HTTPStatus.OK else 1
        except CommandError:
            return 1
    found = look(path)
    print(f"{dumps(found, indent=2)}\n" if json else as_text(found), end="")
    return 0 if found["ready"] else 1
