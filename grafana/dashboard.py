"""The Grafana dashboard, as code: `make dashboard` writes `grafana/liveness.json`.

Read from the top: is it ready, who is online, were offlines late; then, row by row, the
possible causes. Every panel says what it shows and what to do about it, and leads to the
runbook.

The expressions use the sidecar's own metrics and no recording rule, so the dashboard
works without the rules of `deploy/prometheus`.
"""

from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import (
    heatmap,
    stat,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import (
    HeatmapCellLayout,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.panels import (
    DATASOURCE,
    GREEN,
    HERE,
    ORANGE,
    RED,
    THROUGH,
    by,
    curves,
    figure,
    increase,
    promised,
    quantile,
    query,
    rate,
    seldom,
    stacked,
    steps,
)
from grafana.runbook import RUNBOOK, VARIABLE, alerts, links

FILE: Final = Path(__file__).with_name("liveness.json")
UID: Final = "liveness"  # links to the dashboard hold it: it never changes

OFFLINE: Final = "liveness_offline_lateness_seconds"
DECIDED: Final = f'{HERE},stage="decided"'
WIDTH: Final = 24  # columns of the grid
PROMISE_S: Final = 0.05  # decided, p99: the second promise
LISTED: Final = f'{HERE},function="begin",answer="reset"'
CHANGING: Final = f'{HERE},function!~"beat|look"'
COMMIT: Final = "liveness_log_commit_seconds"
TIMER: Final = "liveness_timer_lateness_seconds"

Panel = heatmap.Panel | stat.Panel | timeseries.Panel


def at_a_glance() -> list[Panel]:
    """The top row, without a title: its state in six figures."""
    words = {
        "1": model.ValueMappingResult(text="ready", color=GREEN),
        "0": model.ValueMappingResult(text="not ready", color=RED),
    }
    return [
        figure(
            "Ready",
            "Whether every sidecar answers and is ready: it listens, its hand moves, log "
            "and timers can be written, and their files are where they were. If not, `liveness status` on its host says why; "
            "see LivenessDown and LivenessNotReady.",
            f"min(liveness_ready{{{HERE}}} or up{{{HERE}}})",
        ).mappings([model.ValueMap(options=words)]),
        figure(
            "Users online",
            "Users with a session now. A step down is a gateway that has lost its "
            "users, or that left: Users by gateway shows which. If no sidecar "
            "answers, it keeps its last value: see Ready.",
            f"sum(liveness_users_online{{{HERE}}})",
        ),
        figure(
            "Offlines a second",
            "Sessions that end, for whatever reason. Compare with what is usual at this "
            "hour; a step up is explained by Sessions ended.",
            rate("", "liveness_offline_total"),
            "cps",
            decimals=1,
        ),
        figure(
            "Decided within (p99)",
            "99 of 100 silent users were decided within this time after their "
            "deadline; 50 ms is promised. While nobody falls silent, it is about the "
            "last ones who did. If it is more: is the processor used up (Processor), "
            "or the host (Time unattended)?",
            quantile(0.99, OFFLINE, over=DECIDED),
            "s",
            decimals=3,
        ).thresholds(steps((PROMISE_S, ORANGE), (10 * PROMISE_S, RED))),
        figure(
            "Early offlines",
            "Users reported silent before their whole timeout, since the start. It must "
            "be 0. One is a fault of the sidecar: see LivenessEarlyOffline.",
            f"sum(liveness_early_offline_total{{{HERE}}})",
        ).thresholds(steps((1, RED))),
        figure(
            "Unattended",
            "The part of the time shown in which a sidecar did not run or did not "
            "read; it counts for nobody's silence. Some ms are normal. Seconds mean a "
            "stopped process, a frozen host, or a disk that does not keep up.",
            f"sum(increase(liveness_unattended_seconds_total{{{HERE}}}[$__range]))",
            "s",
            decimals=1,
        ).thresholds(steps((1, ORANGE), (30, RED))),
    ]


def users() -> list[Panel]:
    """Who is online, who comes, who goes and why."""
    return [
        curves(
            "Users by sidecar",
            "Sessions at each sidecar, and users, who may have several devices where "
            "presence.device_separator is set. They follow the hour of the day; a restart "
            "leaves them as they were.",
            query(by("instance", "liveness_users_online")),
            query(by("instance", "liveness_users_distinct"), "{{instance}}, users"),
            width=12,
        ),
        curves(
            "Users by gateway",
            "Sessions through each gateway; those after the first 64 are `other`. If "
            "one drops alone, look at that gateway; if all drop at once, at the "
            "network.",
            query(by("gateway", "liveness_gateway_users", THROUGH)),
            width=12,
        ),
        curves(
            "Sessions ended",
            "By reason. silence: no event for the whole timeout. logout: the gateway "
            "reported one. gateway_lost: silence while the gateway was gone or mute. "
            "moved: a newer connection took over. Many gateway_lost point at "
            "gateways, not users; a burst of silence at the network: see "
            "LivenessMassOffline.",
            query(rate("reason", "liveness_offline_total")),
            query(rate("", "liveness_moved_total"), "moved"),
            unit="cps",
            coloured=("silence", "logout", "gateway_lost", "moved"),
        ),
        curves(
            "Sessions begun",
            "By reason. login: the gateway reported one. keepalive, message: activity "
            "of a user who was offline by then. Many of these: the timeout is too "
            "short for how often users send, and they flap.",
            query(rate("reason", "liveness_online_total")),
            unit="cps",
            coloured=("login", "keepalive", "message"),
        ),
        curves(
            "Events received",
            "What gateways report; most of it is keepalives and messages. If it stops "
            "while users are online, gateways hang or have no link: see Links.",
            query(rate("event", "liveness_events_total")),
            unit="cps",
            coloured=("login", "keepalive", "message", "logout"),
        ),
        seldom(
            curves(
                "Events ignored",
                "Events that changed no session: of an older connection (older, "
                "other_conn), of a gateway that does not have the user "
                "(other_gateway), of a user who is offline, or beyond a limit "
                "(no_room). Some after a move are normal; no_room is limits.max_users "
                "or limits.max_gateway_users.",
                query(f"{rate('why', 'liveness_events_ignored_total')} > 0"),
                unit="cps",
                width=12,
            ).height(6)
        ),
        seldom(
            curves(
                "Beginnings not used",
                "Connections whose gateway said when they began, by another clock than "
                "the sidecar's (other_clock) or in the future: their age counts. Run the "
                "gateway in the sidecar's time namespace; have it connect again if the "
                "wall clock was set as its link began.",
                query(f"{rate('why', 'liveness_began_unused_total')} > 0"),
                unit="cps",
                width=12,
            ).height(6)
        ),
    ]


def lateness() -> list[Panel]:
    """From a silent user's deadline to each stage of its offline."""
    buckets = increase("le", f"{OFFLINE}_bucket", DECIDED)
    heat = (
        heatmap.Panel()
        .title("Decided after the deadline")
        .description(
            "How many offlines were decided how long after the deadline. Nearly all "
            "belong below 50 ms. A band high above is a burst, a stop of the process, or "
            "users who came due while the disk was behind."
        )
        .datasource(DATASOURCE)
        .height(9)
        .span(12)
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .steps(64)
        )
        .cell_gap(1)
        .rows_frame(heatmap.RowsHeatmapOptions().layout(HeatmapCellLayout.AUTO))
        .y_axis(heatmap.YAxisConfig().unit("s"))
        .cell_values(heatmap.CellValues().unit("short").decimals(0))
        .show_y_histogram()
        .show_legend()
        .with_target(query(buckets, "{{le}}").format(PromQueryFormat.HEATMAP))
    )
    stages = curves(
        "Lateness by stage",
        "decided: the sidecar knew. durable: it was on disk. sent: it was written to "
        "the gateway's socket. The dashed line is the promise for decided p99. "
        "durable far above decided: the disk (Time of a commit). sent far above "
        "durable: a gateway that does not read (Unacknowledged).",
        query(quantile(0.5, OFFLINE, "stage"), "{{stage}} p50"),
        query(quantile(0.99, OFFLINE, "stage"), "{{stage}} p99"),
        unit="s",
        width=12,
        coloured=(
            "decided p50",
            "decided p99",
            "durable p50",
            "durable p99",
            "sent p50",
            "sent p99",
        ),
    )
    return [heat, promised(stages, PROMISE_S).height(9)]


def wheel() -> list[Panel]:
    """The hand of the wheel, and unattended time."""
    return [
        curves(
            "Hand lag",
            "By how much a turn of the hand was overdue, at most, within the last 15 to "
            "30 s. Some ms are a busy pass. Much, again and again, is a process that "
            "does not keep up: see Processor, and Events received. A single step is a "
            "stop of the process: see Time unattended.",
            query(by("instance", "liveness_hand_lag_seconds")),
            unit="s",
            width=12,
        ),
        curves(
            "Time unattended",
            "Share of the time in which the sidecar did not run or did not read. It "
            "counts for nobody's silence, so offlines come that much later. Look for a "
            "stopped process, a paused or crowded host, a quota, a disk far behind.",
            query(rate("instance", "liveness_unattended_seconds_total")),
            unit="percentunit",
            width=12,
        ),
    ]


def gateways() -> list[Panel]:
    """Links, and the records sent on them."""
    return [
        curves(
            "Links",
            "Connected gateways and watchers. If a gateway is missing: does it run, and "
            "what does its log say? Without a link its users are gateway_lost, each at "
            "its own timeout.",
            query(by("role", "liveness_links")),
            width=6,
        ),
        curves(
            "Unacknowledged",
            "Records that a gateway was sent and has not acknowledged, at most 10,000. "
            "Normally it returns to 0. A gateway that stays high does not process its "
            "records: restart it; nothing is lost, they are delivered again.",
            query(by("gateway", "liveness_link_unacked", THROUGH)),
            width=6,
        ),
        curves(
            "Unread and unfinished",
            "Bytes of answers that are not read, in memory (at most twice "
            "limits.max_unread_bytes) and on disk (limits.max_spool_bytes), and of "
            "incomplete frames (limits.max_unfinished_bytes). Normally it is near 0. "
            "Links that cause more are ended, and named in the sidecar's log.",
            query(by("where", "liveness_unread_bytes")),
            query(f"sum(liveness_unfinished_bytes{{{HERE}}})", "unfinished"),
            unit="bytes",
            width=6,
        ),
        curves(
            "Records sent and acknowledged",
            "Normally they are equal. More sent than acknowledged: gateways fall "
            "behind, or reconnect and get the same records again.",
            query(rate("", "liveness_notices_sent_total"), "sent"),
            query(rate("", "liveness_notices_acked_total"), "acknowledged"),
            unit="cps",
            width=6,
        ),
        curves(
            "How often users speak",
            "For each gateway the usual pause between two activities of a user, and "
            "the timeout. The timeout should be at least twice the pause, or a lost "
            "keepalive makes a false offline: raise the timeout, or have clients send "
            "more often.",
            query(
                by("gateway", "liveness_gateway_interval_seconds", THROUGH),
                "{{gateway}} interval",
            ),
            query(
                by("gateway", "liveness_gateway_timeout_seconds", THROUGH),
                "{{gateway}} timeout",
            ),
            unit="s",
        ),
        curves(
            "Promises to ping",
            "How often each gateway was not heard for longer than it promised. More "
            "than a few: have it ping as often as its hello promises, or promise a "
            "longer interval; or it hangs.",
            query(increase("gateway", "liveness_gateway_mute_total", THROUGH)),
        ),
        curves(
            "Streams",
            "Streaming answers over HTTP: readers of /v1/feed, live pages, and lists "
            "of everyone online. At most 32; at that, find who has them open.",
            query(by("stream", "liveness_streams")),
        ),
    ]


def holds() -> list[Panel]:
    """Users who are due and not judged yet."""
    return [
        stacked(
            curves(
                "Held",
                "Due users who are not judged yet. away: their gateway has no link, "
                "and still has time to come back. mute: it promised ping and is "
                "silent. unread: its socket has not been read empty. storm: the guard "
                "holds them.",
                query(by("why", "liveness_users_held")),
                width=16,
                coloured=("away", "mute", "unread", "storm"),
            )
        ),
        seldom(
            curves(
                "Storms",
                "How often too many users of a gateway came due at once, and were held. "
                "The sidecar's log names the gateway.",
                query(f"{increase('instance', 'liveness_storms_total')} > 0"),
            )
        ),
    ]


def log() -> list[Panel]:
    """What is on disk, and how it gets there."""
    return [
        curves(
            "Records written",
            "Records written to disk. If it stops while Records waiting grows, the "
            "disk does not write.",
            query(
                f"sum by (instance) (deriv(liveness_log_seq{{{HERE}}}[$__rate_interval]))"
            ),
            unit="cps",
            width=6,
        ),
        curves(
            "Records waiting",
            "Decided and not on disk yet, so not delivered either. It returns to 0 "
            "within a second. At limits.pause_firing offlines judging slows down, at "
            "limits.pause_reading records reading stops.",
            query(by("instance", "liveness_log_pending")),
            width=6,
        ),
        curves(
            "Time of a commit",
            "How long the disk takes for one commit, with its sync. Every record "
            "waits for it. Tens of ms mean a slow or shared disk: put the state on a "
            "better one (state.dir).",
            query(quantile(0.5, COMMIT), "p50"),
            query(quantile(0.99, COMMIT), "p99"),
            unit="s",
            width=6,
        ),
        curves(
            "Log size",
            "Bytes of the database in use. It levels off at state.retention_s or "
            "state.retention_bytes, whichever is met first; leave some room above that.",
            query(by("instance", "liveness_log_bytes")),
            unit="bytes",
            width=6,
        ),
        seldom(
            curves(
                "Failed writes",
                "Tries to write to the disk that failed, of the log or of the timers. "
                "Nothing is dropped, and it is tried again every second: make room or "
                "repair the disk. See LivenessWritesFail.",
                query(f"{rate('what', 'liveness_write_failures_total')} > 0"),
                unit="cps",
                width=8,
            ).height(6)
        ),
        seldom(
            curves(
                "Files lost",
                "Times that a socket's file or a file of the state was removed or "
                "replaced while in use. A socket is created again at once; for files "
                "of the state see LivenessNotReady.",
                query(f"{rate('file', 'liveness_files_lost_total')} > 0"),
                unit="cps",
                width=8,
            ).height(6)
        ),
        seldom(
            curves(
                "Damaged records",
                "Records of the log that were found to be damaged on disk. Links that "
                "had not got them get a gap, and all other records: see "
                "LivenessLogDamaged.",
                query(f"{by('instance', 'liveness_log_damaged_records')} > 0"),
                width=8,
            ).height(6)
        ),
    ]


def timers() -> list[Panel]:
    """What was asked to happen later."""
    return [
        curves(
            "Timers by state",
            "pending and fired are alive; the others have ended, and are kept for a "
            "while. If failed grows, `liveness timers list --state failed` shows "
            "which and why. Many fired: gateways do not answer.",
            query(by("state", "liveness_timers")),
            width=6,
            coloured=("pending", "fired", "done", "failed", "cancelled", "replaced"),
        ),
        curves(
            "Timers in memory",
            "Timers of the coming hour, at about 130 bytes each. At 1,000,000 the others "
            "stay on disk for longer, and fire in time all the same.",
            query(by("instance", "liveness_timers_loaded")),
            width=6,
        ),
        curves(
            "Runs of timers",
            "By result. done and fail are the gateway's answers; unanswered had none "
            "within timers.run_timeout_s; late is an answer after that. Many fail or "
            "unanswered: the gateway's work does not succeed.",
            query(rate("result", "liveness_timer_attempts_total")),
            unit="cps",
            width=6,
            coloured=("done", "fail", "unanswered", "late"),
        ),
        curves(
            "Timer lateness",
            "From a timer's due moment to its firing. After a downtime it is once as "
            "long as the downtime. Otherwise more than some tens of ms mean a disk or "
            "a process that does not keep up.",
            query(quantile(0.5, TIMER), "p50"),
            query(quantile(0.99, TIMER), "p99"),
            unit="s",
            width=6,
        ),
    ]


def cluster() -> list[Panel]:
    """What the other hosts see of these, and what Redis answers."""
    return [
        curves(
            "Users on all hosts",
            "Users online on any host, as the last answers of Redis told each sidecar. "
            "All sidecars should show the same. One that differs for long is away: see "
            "Lease used.",
            query(by("instance", "liveness_cluster_users")),
            width=6,
        ),
        curves(
            "Age of what Redis lacks",
            "Age of the oldest change that Redis does not have. Normally it is some tens "
            "of ms. If it grows, Redis is away, or its core is used up: see "
            "LivenessClusterLag.",
            query(by("instance", "liveness_cluster_lag_seconds")),
            unit="s",
            width=6,
        ),
        curves(
            "Records that Redis lacks",
            "Records of the log that Redis does not have yet. They wait in the log, on "
            "disk. If there are more than state.retention_s keeps, all sessions are "
            "listed anew, and nothing is lost.",
            query(by("instance", "liveness_cluster_lag_records")),
            width=6,
        ),
        curves(
            "Lease used",
            "Time since the last answer of the partition that has waited the longest, as "
            "a share of the lease. Normally it is below a fifth. Above 100 %, other hosts "
            "may declare this one lost: see LivenessClusterAway.",
            query(
                f"sum by (instance) (liveness_cluster_lease_age_seconds{{{HERE}}} / "
                f"liveness_cluster_lease_seconds{{{HERE}}})"
            ),
            unit="percentunit",
            width=6,
        ),
        curves(
            "Redis answers",
            "Sidecars whose newest call to Redis succeeded; it should be all. If one is "
            "missing, look at its way to Redis; if all are, at Redis: see "
            "LivenessClusterAway.",
            query(f"sum(liveness_cluster_up{{{HERE}}})", "sidecars with an answer"),
            width=6,
        ),
        curves(
            "Partitions",
            "Partitions of all sidecars by what is done in them. All should be "
            "following. asserting: sessions are listed anew, which ends by itself. "
            "beginning for long: see LivenessClusterNotFollowing.",
            query(by("mode", "liveness_cluster_partitions")),
            width=6,
        ),
        curves(
            "Calls to Redis",
            "By function and answer, without those that only show that hosts live (beat, "
            "look). Most are apply: ok. gap: an answer was lost, or Redis lost writes; the "
            "sidecar goes on from there. replaced: another process has the name of this "
            "host. config: it has other settings.",
            query(
                f"{rate('function, answer', 'liveness_cluster_calls_total', CHANGING)} > 0",
                "{{function}}: {{answer}}",
            ),
            unit="cps",
            width=6,
        ),
        seldom(
            curves(
                "Failed calls to Redis",
                "By kind. timeout, connection, loading, readonly, moving: it is away, "
                "fails over, or a slot moves; this heals by itself. memory: raise "
                "maxmemory. auth, permission: correct cluster.user, its password or its "
                "rights.",
                query(f"{rate('kind', 'liveness_cluster_errors_total')} > 0"),
                unit="cps",
                width=6,
            )
        ),
        seldom(
            curves(
                "Sessions listed anew",
                "Times that a partition began to list all sessions of its host: after "
                "Redis lost them, or the host was taken for lost. mismatches: Redis had "
                "other users than hosts had brought, which must not be: see "
                "LivenessClusterAuditMismatch.",
                query(increase("instance", "liveness_cluster_calls_total", LISTED)),
                query(
                    increase("instance", "liveness_cluster_audit_mismatches_total"),
                    "{{instance}} mismatches",
                ),
            )
        ),
        seldom(
            curves(
                "Hosts lost",
                "Partitions in which a sidecar declared another host lost, and the "
                "sessions that it ended there. A host that was stopped for good is "
                "normal. For any other see LivenessClusterHostLost.",
                query(increase("instance", "liveness_cluster_fences_total")),
                query(
                    increase("instance", "liveness_cluster_sessions_reaped_total"),
                    "{{instance}} sessions",
                ),
            )
        ),
        curves(
            "Questions about all hosts",
            "Questions which users are on any host, and which hosts there are, by answer. "
            "slow: Redis did not answer in time. away: it cannot be asked. Links get what "
            "this host knows then. If there are many, see Lease used.",
            query(rate("answer", "liveness_cluster_questions_total")),
            unit="cps",
            coloured=("answered", "slow", "away"),
        ),
    ]


def outlets() -> list[Panel]:
    """How each outlet delivers the records of the log to its receiver."""
    named = "{{instance}} {{outlet}}"
    own = "instance, outlet"
    return [
        curves(
            "Outlets by state",
            "Outlets of all sidecars by what they do. All should be following. retrying: "
            "the newest try failed, which heals by itself once the receiver answers: see "
            "LivenessOutletRetrying. stopped: a person has to act: see "
            "LivenessOutletStopped.",
            query(by("state", "liveness_outlet_state")),
            width=6,
            coloured=("following", "retrying", "stopped"),
        ),
        curves(
            "Outlets behind by",
            "For how long there have been records that an outlet has not delivered. "
            "Normally it is a second or two. If it grows, the receiver is away or too "
            "slow: see LivenessOutletLag.",
            query(by(own, "liveness_outlet_lag_seconds"), named),
            unit="s",
            width=6,
        ),
        curves(
            "Records not delivered",
            "Records that an outlet has not read, or not delivered. They wait in the log, "
            "on disk, for as long as state.retention_s keeps them; then they are missed: "
            "see LivenessOutletMissed.",
            query(by(own, "liveness_outlet_lag_records"), named),
            query(
                increase(own, "liveness_outlet_records_missed_total"), f"{named} missed"
            ),
            width=6,
        ),
        curves(
            "Delivered by outlets",
            "Records that the receiver of each outlet acknowledged. Compare with Sessions "
            "ended. None although users come and go: see Outlets by state.",
            query(rate(own, "liveness_outlet_records_sent_total"), named),
            unit="cps",
            width=6,
        ),
        curves(
            "Delivered within",
            "From a record's decision to its acknowledgement; settle_s is part of it. If "
            "p99 is far above p50, tries fail: see Retries of outlets. If both are high, "
            "the receiver is slow.",
            query(
                quantile(0.5, "liveness_outlet_delivery_seconds", "outlet"),
                "{{outlet}} p50",
            ),
            query(
                quantile(0.99, "liveness_outlet_delivery_seconds", "outlet"),
                "{{outlet}} p99",
            ),
            unit="s",
            width=6,
        ),
        seldom(
            curves(
                "Retries of outlets",
                "Tries after a first one. A few are normal when a receiver restarts. If "
                "they do not end, `liveness status` says why: see "
                "LivenessOutletRetrying.",
                query(increase(own, "liveness_outlet_retries_total"), named),
                width=6,
            )
        ),
        seldom(
            curves(
                "Dead letters",
                "Records that became dead letters, how many of them are kept, and "
                "how many were deleted, as there were more than 100,000. Delivery goes on "
                "without them. See LivenessOutletDead, LivenessOutletDeadDeleted.",
                query(increase(own, "liveness_outlet_records_dead_total"), named),
                query(by(own, "liveness_outlet_dead_letters"), f"{named} kept"),
                query(
                    increase(own, "liveness_outlet_dead_letters_deleted_total"),
                    f"{named} deleted",
                ),
                width=6,
            )
        ),
        curves(
            "Damped",
            "Offlines that wait for settle_s, offlines and onlines left out as their "
            "user was back by then, and offlines passed on early. If there are early "
            "ones, see LivenessOutletSettling.",
            query(by(own, "liveness_outlet_settling"), f"{named} wait"),
            query(
                increase(own, "liveness_outlet_records_damped_total"),
                f"{named} left out",
            ),
            query(
                increase(own, "liveness_outlet_settling_overflows_total"),
                f"{named} early",
            ),
            width=6,
        ),
    ]


def refusals() -> list[Panel]:
    """What was refused, and which bounds were met. Nothing here is good news."""
    return [
        seldom(
            curves(
                "Frames refused",
                "Frames and links refused, by error code. bad-… and unknown-frame: a "
                "fault in a gateway. not-allowed: who connects is not in [access]. "
                "replaced: two processes share a name. The sidecar's log names the "
                "process.",
                query(f"{rate('code', 'liveness_frames_refused_total')} > 0"),
                unit="cps",
                width=6,
            )
        ),
        seldom(
            curves(
                "HTTP refused",
                "Connections and requests refused, by door and reason: "
                "docs/http-api.md explains each. token and tries: a program with an "
                "old token, or somebody who guesses it.",
                query(
                    f"{rate('door, why', 'liveness_http_refused_total')} > 0",
                    "{{door}}: {{why}}",
                ),
                unit="reqps",
                width=6,
            )
        ),
        seldom(
            curves(
                "Limits met",
                "How often a limit was met, by its name. If it is a setting and the "
                "load is right, raise it; otherwise find the cause.",
                query(f"{rate('limit', 'liveness_limits_met_total')} > 0"),
                unit="cps",
                width=6,
            )
        ),
        seldom(
            curves(
                "Accepts put off",
                "Connections that could not be accepted for lack of descriptors or "
                "memory; they wait. Raise the limit of open files: see Descriptors.",
                query(f"{rate('socket', 'liveness_accepts_put_off_total')} > 0"),
                unit="cps",
                width=6,
            )
        ),
    ]


def process() -> list[Panel]:
    """What it takes of the machine."""
    return [
        curves(
            "Processor",
            "Share of a core. The hand is one thread: near 100 % it falls behind, and "
            "Hand lag grows. Have gateways collect for as long as `welcome` allows, and "
            "send batches.",
            query(rate("instance", "process_cpu_seconds_total")),
            unit="percentunit",
            width=6,
        ),
        curves(
            "Memory",
            "Resident memory: some 50 MB, and some 130 bytes for each user and for each "
            "timer in memory. If that is too much: limits.max_users.",
            query(by("instance", "process_resident_memory_bytes")),
            unit="bytes",
            width=6,
        ),
        curves(
            "Descriptors",
            "Open files and sockets, and the most there may be. Each link and each HTTP "
            "connection takes one. Close to it: raise the limit of open files, or find "
            "who connects so often.",
            query(by("instance", "process_open_fds")),
            query(by("instance", "process_max_fds"), "{{instance}} at most"),
            width=6,
        ),
        curves(
            "Uptime",
            "Time since the start, with version and wheel. A saw-tooth is a process that "
            "ends again and again: its log says why. The wheel `reference` is slower: "
            "`liveness version` says what is missing.",
            query(
                f"(time() - process_start_time_seconds{{{HERE}}}) * on (instance, job) "
                f"group_left (version, wheel) liveness_build_info{{{HERE}}}",
                "{{instance}} {{version}} {{wheel}}",
            ),
            unit="s",
            width=6,
        ),
    ]


ROWS: Final = {
    "Users": users,
    "Lateness": lateness,
    "Wheel": wheel,
    "Gateways and watchers": gateways,
    "Holds and storms": holds,
    "Log": log,
    "Timers": timers,
    "Cluster": cluster,
    "Outlets": outlets,
    "Refusals and limits": refusals,
    "Process": process,
}


def dashboard() -> model.Dashboard:
    """All of it."""
    board = (
        build.Dashboard("liveness")
        .uid(UID)
        .description(
            "Who is online, who has fallen silent, and how soon that is reported."
        )
        .tags(["liveness"])
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .annotation(
            build.AnnotationQuery()
            .name("Alerts")
            .datasource(DATASOURCE)
            .enable(True)
            .icon_color(RED)
            .expr(f'ALERTS{{alertname=~"Liveness.+",alertstate="firing",{HERE}}}')
        )
        .with_variable(
            build.DatasourceVariable("datasource")
            .label("Data source")
            .type("prometheus")
        )
        .with_variable(
            _choice(
                "instance", "Sidecar", "label_values(liveness_build_info, instance)"
            )
        )
        .with_variable(
            _choice(
                "gateway",
                "Gateway",
                f"label_values(liveness_gateway_users{{{HERE}}}, gateway)",
            ).all_value(".*")  # so that one that has just come is not left out
        )
        .with_variable(build.ConstantVariable(VARIABLE).value(RUNBOOK))
    )
    for panel in at_a_glance():
        board.with_panel(panel)
    for title, panels in ROWS.items():
        board.with_row(build.Row(title))
        for panel in panels():
            board.with_panel(panel)
    built = board.build()
    for variable in built.templating.list_val or []:
        # Another address in a link to the dashboard would lead to another runbook.
        variable.skip_url_sync = variable.name == VARIABLE
    about = alerts()
    for place, one in enumerate(built.panels or [], 1):
        one.id_val = place  # links to a panel hold it
        if isinstance(one, model.Panel):
            one.links = links(one, about)
    return built


def _choice(name: str, label: str, values: str) -> build.QueryVariable:
    return (
        build.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": values, "refId": name})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def text() -> str:
    """The dashboard as the file has it."""
    encoder = JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False)
    return encoder.encode(dashboard()) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"liveness: {FILE} is written")
