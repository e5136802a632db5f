"""What is counted where it happens, outside the core.

Counting adds to an `int`, and observing a duration costs a bisection.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from liveness.errors import Code
from liveness.metrics.families import Histogram, counter, histogram, zeros

SOCKETS: Final = ("gateway", "http", "admin")
DOORS: Final = ("http", "admin")
# The files that are watched for removal (`service.file_watch`).
FILES: Final = ("gateway", "admin", "state")
# Limits that `limits_met` counts: those that refuse or delay something. A full window
# and a deleted old record concern only their reader.
LIMITS: Final = (
    "limits.hello_s", "limits.max_frame_bytes", "limits.max_unfinished_bytes",
    "limits.max_batch", "limits.max_where_rows", "limits.max_replies", "limits.max_reply_bytes",
    "limits.max_unread_bytes", "limits.max_spool_bytes", "limits.unread_s",
    "limits.max_refused", "limits.max_links", "limits.max_handshakes",
    "limits.max_gateways", "limits.max_names", "limits.max_gateway_users",
    "limits.max_users", "limits.pause_firing", "limits.pause_reading",
    "limits.max_settling", "timers.max_live", "timers.max_pending", "http.max_streams",
    "http.max_backlog", "cluster.max_questions", "cluster.max_link_questions",
)  # fmt: skip
LATENESS_STAGES: Final = ("decided", "durable", "sent")
# Finest around the promises: 50 ms decided, 100 ms delivered.
LATENESS_S: Final = (
    0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60,
)  # fmt: skip
COMMIT_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)


class HttpRefusal(StrEnum):
    """Why an HTTP listener refused a connection or a request."""

    CONNECTIONS = "connections"  # all are in use
    SLOW = "slow"  # the request did not arrive, or its answer was not read, in time
    MALFORMED = "malformed"  # not HTTP/1
    HEAD = "head"  # too large
    BODY = "body"  # too large
    ACCESS = "access"  # the user has no access
    HOST = "host"  # missing, or not a name of this sidecar
    METHOD = "method"  # it would change something
    TOKEN = "token"  # missing or wrong


@dataclass(slots=True)
class Counts:
    """What is counted outside the core: one object for all parts of a sidecar."""

    lateness: dict[str, Histogram] = histogram(
        "liveness_offline_lateness_seconds",
        "From a silent user's deadline to each stage of its offline.",
        "stage",
        default_factory=lambda: {
            stage: Histogram(LATENESS_S) for stage in LATENESS_STAGES
        },
    )
    accepts_put_off: Counter[str] = counter(
        "liveness_accepts_put_off",
        "Failed tries to accept a connection, for lack of a descriptor or memory.",
        "socket",
        default_factory=lambda: zeros(SOCKETS),
    )
    http_refused: Counter[tuple[str, str]] = counter(
        "liveness_http_refused",
        "HTTP connections and requests refused.",
        "door",
        "why",
        default_factory=lambda: zeros(
            (door, why.value) for door in DOORS for why in HttpRefusal
        ),
    )
    notices_sent: int = counter(
        "liveness_notices_sent", "Records sent on links.", default=0
    )
    notices_acked: int = counter(
        "liveness_notices_acked", "Records acknowledged.", default=0
    )
    refused: Counter[str] = counter(
        "liveness_frames_refused",
        "Frames and links refused.",
        "code",
        default_factory=lambda: zeros(code.value for code in Code),
    )
    limits_met: Counter[str] = counter(
        "liveness_limits_met",
        "How often a limit was met.",
        "limit",
        default_factory=lambda: zeros(LIMITS),
    )
    files_lost: Counter[str] = counter(
        "liveness_files_lost",
        "Times that a socket's file or a file of the state was removed or replaced.",
        "file",
        default_factory=lambda: zeros(FILES),
    )
    commits: Histogram = histogram(
        "liveness_log_commit_seconds",
        "Time a commit of the log takes.",
        default_factory=lambda: Histogram(COMMIT_S),
    )
    timer_lateness: Histogram = histogram(
        "liveness_timer_lateness_seconds",
        "From a timer's due moment to its firing.",
        default_factory=lambda: Histogram(LATENESS_S),
    )
