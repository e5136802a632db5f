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
Rows = dict[str, str]


def screen(path: Path, found: Mapping[str, Any]) -> str:
    """The answer of the sidecar at the socket *path* to `/v1/wheel`, as text.

    Raises:
        CommandError: The answer has another form.
    """
    try:
        return _as_text(path, found)
    except (AttributeError, KeyError, TypeError, ValueError):
        if "version" in found:
            raise CommandError(
                f"the sidecar at {path} has another version: restart it, or use the "
                "`liveness` that it was started with"
            ) from None
        raise unexpected_answer(path) from None


def _as_text(path: Path, found: Mapping[str, Any]) -> str:
    """One screen for a person: rows without news are left out."""
    now_ms, total = found["at"], found["total"]
    users = {row["name"]: row["users"] for row in found["gateways"]}
    if found["gateways_more"]:
        users[OTHER] = found["users"] - sum(users.values())
    timers = {
        state: found["timers"].get(state, 0) for state in (PENDING, FIRED, FAILED)
    }
    rows = {
        "liveness": f"{found['version']} (wheel: {found['wheel']})",
        "socket": str(path),
        "ready": "yes" if found["ready"] else "no: " + "; ".join(found["why"]),
        "up": duration(found["uptime_s"]),
        "users online": f"{found['users']:,.0f}",
        "by gateway": _counts(users),
        "held": _counts(found["held"]),
        **_advice(found),
        "links": _counts(found["links"]),
        "stalled": "; ".join(_first([*map(_stalled, found["stalled"])])),
        **_troubles(found["link_troubles"], now_ms),
        "events": _counts(total["events"]),
        "offline": _counts(total["offlines"]),
        **{
            f"{stage} after": f"p50 {_ms(p['p50_s'])}, p99 {_ms(p['p99_s'])} from the "
            "deadline"
            for stage, p in total["lateness"].items()
        },
        "early": f"{found['early']:,.0f} (must stay 0)",
        "timers": _counts(timers) if any(timers.values()) else "",
        **_readers(found["cluster"], found["outlets"], now_ms),
        "log": f"seq {found['seq']:,.0f}, {found['log_pending']:,.0f} pending, "
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
    short = [
        f"{row['name']} users send every {row['interval']:.1f} s, timeout "
        f"{row['timeout']:g} s"
        for row in found["gateways"]
        if is_short(row["timeout"], row["interval"] or 0.0)
    ]
    if short:
        rows["cadence"] = "; ".join(_first(short))
        rows["to mend"] = (
            f"a timeout of {TIMES} intervals or more survives a lost keepalive"
        )
    mutes = {row["name"]: row["mutes"] for row in found["gateways"] if row["mutes"]}
    if mutes:
        rows["times mute"] = _counts(mutes)
    return rows


def _stalled(row: Mapping[str, Any]) -> str:
    why = "does not read its link"
    if row["why"] == UNACKNOWLEDGED:
        why = f"has not acknowledged {row['unacked']:,} records"
    lasting = duration(row["for_s"])
    return f"{row['role']} {row['name']} {why} for {lasting}, and gets no more"


def _troubles(troubles: Sequence[Mapping[str, Any]], now_ms: int) -> Rows:
    """The names refused or replaced within the last hour: they may not be watched."""
    rows = {
        what: "; ".join(
            _first([_trouble(row, now_ms) for row in troubles if row["what"] == what])
        )
        for what in (REFUSED, REPLACED)
    }
    if troubles:
        rows["what to do"] = 'see "A name is refused or replaced" in the runbook'
    return rows


def _trouble(row: Mapping[str, Any], now_ms: int) -> str:
    name = "without a hello" if row["name"] is None else f"{row['role']} {row['name']}"
    why = "" if row["what"] == REPLACED else f" {row['code']},"
    times = "once" if row["times"] == 1 else f"{row['times']:,} times"
    process = f"process {row['pid']}" if row["pid"] else "a process"
    return (
        f"{name}{why} {times}, last {_since(row['at'], now_ms)} ago, {process} of Unix user "
        f"{row['unix_user']}"
    )


def _readers(
    cluster: Mapping[str, Any] | None,
    outlets: Sequence[Mapping[str, Any]],
    now_ms: int,
) -> Rows:
    """The cluster and each outlet, and what to do if they do not follow."""
    rows = {}
    if cluster is not None:
        rows["cluster"] = (
            f"{_lag(cluster, now_ms)}, {cluster['users']:,} users on all hosts"
        )
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
        rows[outlet["outlet"]] = ", ".join([_lag(outlet, now_ms), *parts]) + why
    if any(outlet["dead_kept"] for outlet in outlets):
        rows["dead letters"] = "see them by `liveness webhooks dead`"
    return rows


def _lag(reader: Mapping[str, Any], now_ms: int) -> str:
    state = reader["state"]
    if state != FOLLOWING:
        state = f"{state} for {_since(reader['since'], now_ms)}"
    return f"{state}, lag {reader['lag_records']:,} records ({reader['lag_s']:.1f} s)"


def _since(at_ms: int, now_ms: int) -> str:
    return duration(max(0, now_ms - at_ms) / 1_000)


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
    """Show the state of the sidecar; the exit code is 0 if it is ready, else 1.

    With --json, the answer of /v1/wheel.
    """
    path = socket_path(socket)
    if quiet:
        try:
            return 0 if send_request(path, "/readyz")[0] == HTTPStatus.OK else 1
        except CommandError:
            return 1
    found = request_json(path, "/v1/wheel")
    text = screen(path, found)
    print(f"{dumps(found, indent=2)}\n" if json else text, end="")
    return 0 if found["ready"] else 1
