"""The metrics of the cluster: what is read of its publisher at a scrape."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from liveness.metrics.families import Values, counter, gauge

# What Redis may answer to each function of the cluster, why a call may fail, and how
# questions about users of all hosts are answered.
CLUSTER_CALLS: Final = tuple(
    (function, answer)
    for function, answers in {
        "begin": ("keep", "reset", "epoch", "replaced", "config"),
        "assert": (
            *("ok", "gap", "late", "epoch", "unknown", "damaged"),
            *("live", "fenced"),
        ),
        "apply": (
            *("ok", "gap", "late", "epoch", "unknown", "damaged"),
            *("fenced", "asserting"),
        ),
        "beat": ("ok", "gap", "epoch", "unknown", "damaged", "fenced", "asserting"),
        "look": ("ok", "later", "unknown", "damaged"),
        "fence": ("ok", "behind", "heard", "epoch", "fenced", "unknown"),
        "reap": ("ok", "unknown", "damaged"),
    }.items()
    for answer in answers
)
CLUSTER_ERRORS: Final = (
    "timeout", "connection", "readonly", "memory", "moving", "auth", "permission",
    "loading", "other",
)  # fmt: skip
CLUSTER_QUESTIONS: Final = ("answered", "slow", "away")
PARTITION_MODES: Final = ("beginning", "asserting", "following")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNow:
    """The publishing of this host's sessions at the moment of a scrape."""

    host: str
    state: str  # following, beginning, away, replaced or refused
    since: int  # since when it is in this state, Unix milliseconds
    detail: str  # why it does not follow; empty if it does
    is_up: bool = gauge(
        "liveness_cluster_up", "1 if the newest call to Redis succeeded, else 0."
    )
    lag_records: int = gauge(
        "liveness_cluster_lag_records", "Records that Redis does not have yet."
    )
    lag_s: float = gauge(
        "liveness_cluster_lag_seconds",
        "Age of the oldest change that Redis does not have.",
    )
    partitions: Values = gauge(  # by PARTITION_MODES
        "liveness_cluster_partitions",
        "Partitions by what this host does in them; all should be following.",
        "mode",
    )
    lease_age_s: float = gauge(
        "liveness_cluster_lease_age_seconds",
        "Time since the last answer of the partition that has waited the longest.",
    )
    lease_s: float = gauge(
        "liveness_cluster_lease_seconds",
        "Silence after which the other hosts declare this one lost.",
    )
    users: int = gauge("liveness_cluster_users", "Users online on any host.")
    calls: Mapping[tuple[str, str], int] = counter(  # by CLUSTER_CALLS
        "liveness_cluster_calls",
        "Calls to Redis that were answered.",
        "function",
        "answer",
    )
    errors: Values = counter(  # by CLUSTER_ERRORS
        "liveness_cluster_errors", "Calls to Redis that failed.", "kind"
    )
    lists: int = counter(
        "liveness_cluster_lists",
        "Times that a partition began to list all sessions of this host anew.",
    )
    audit_mismatches: int = counter(
        "liveness_cluster_audit_mismatches",
        "Times that Redis had other sessions of this host than its log. Must stay 0.",
    )
    fences: int = counter(
        "liveness_cluster_fences",
        "Hosts that this one declared lost, once for each partition.",
    )
    sessions_reaped: int = counter(
        "liveness_cluster_sessions_reaped",
        "Sessions of lost hosts, and outdated ones, that this host ended.",
    )
    questions: Values = counter(  # by CLUSTER_QUESTIONS
        "liveness_cluster_questions",
        "Questions about users of all hosts, by how they were answered.",
        "answer",
    )

    def as_map(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "state": self.state,
            "since": self.since,
            "detail": self.detail,
            "users": self.users,
            "lag_records": self.lag_records,
            "lag_s": round(self.lag_s, 3),
            "partitions": dict(self.partitions),
        }
