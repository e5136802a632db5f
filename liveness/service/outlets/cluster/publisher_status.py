"""The status of publishing, for the metrics, the summary and the log."""

from collections import Counter
from typing import Final, Literal, TypeAlias

import structlog
import trio

from liveness.cluster.connection import CallError, Redis
from liveness.cluster.questions import ClusterQuestions
from liveness.metrics.cluster_now import (
    CLUSTER_CALLS,
    CLUSTER_ERRORS,
    CLUSTER_QUESTIONS,
    PARTITION_MODES,
    ClusterNow,
)
from liveness.metrics.families import with_zeros
from liveness.service.common.clock import Clock
from liveness.service.outlets.cluster.host import ClusterHost
from liveness.service.outlets.cluster.partition import Mode, Partition
from liveness.service.storage.log_writer import LogWriter

State: TypeAlias = Literal["beginning", "following", "away", "replaced", "refused"]

# How often the state is compared with what was logged.
WATCH_S: Final = 1.0

_log = structlog.get_logger("cluster")


class ClusterStatus:
    """The state of a host's publishing; the arguments are those of `Publisher`."""

    def __init__(
        self,
        host: ClusterHost,
        redis: Redis,
        questions: ClusterQuestions,
        log_writer: LogWriter,
        clock: Clock,
    ) -> None:
        self.why_failed = ""
        self.newest_error: CallError | None = None
        self._host = host
        self._redis = redis
        self._questions = questions
        self._log_writer = log_writer
        self._clock = clock
        self._began_at, self._began_seq = clock.mono(), log_writer.durable_seq
        self._shown: tuple[State, int] = ("beginning", clock.state_ms())  # since when

    @property
    def state(self) -> State:
        identity = self._host.identity
        if identity.is_stopped:
            return "replaced"
        if self.why_failed or identity.why_refused:
            return "refused"
        if self._lease_age_s > identity.contact_gap_s:
            return "away"
        return "following" if self._host.is_following else "beginning"

    @property
    def _lease_age_s(self) -> float:
        """Seconds since the answer of the partition that has waited the longest."""
        oldest = min(part.answered_at for part in self._host.partitions)
        return self._clock.mono() - max(oldest, self._began_at)

    @property
    def _lag_records(self) -> int:
        """Records of the log that one partition, the furthest behind, does not have."""
        return max(map(self._lag_records_of, self._host.partitions))

    def _lag_records_of(self, part: Partition) -> int:
        newest = self._log_writer.durable_seq
        if part.mode is Mode.FOLLOWING:
            return part.queued + newest - part.read_to
        return newest - max(part.last, self._began_seq)

    def _lag_s_of(self, part: Partition) -> float:
        """The age of the oldest change; if it does not follow, the time since it did."""
        if part.mode is not Mode.FOLLOWING:
            return self._clock.mono() - max(part.followed_at, self._began_at)
        if part.oldest_at is None:
            return 0.0
        return max(0.0, self._clock.mono() - part.oldest_at / 1000)

    @property
    def detail(self) -> str:
        """Why it does not follow, or not as it should; empty if all is well."""
        identity = self._host.identity
        match self.state:
            case "replaced":
                return (
                    f"another process publishes as host {identity.name!r}; give each "
                    "host a name of its own (cluster.host), or stop the other one"
                )
            case "refused":
                return self.why_failed or (
                    f"the other hosts have {identity.why_refused!r} (schema, partitions, device separator, "
                    f"when it began) and this one {identity.configuration!r}; use the "
                    "same settings, or another cluster.prefix"
                )
            case "away":
                error = self._redis.error or self.newest_error
                return error.advice if error else "no answer"
            case "following" if identity.other_lease_s:
                return (
                    f"another host has cluster.lease_s {identity.other_lease_s:g} and "
                    f"this one {identity.lease_s:g}: the one with the longer lease may "
                    "be taken for lost; use the same on all hosts, and restart them"
                )
            case _:
                return ""

    def now(self) -> ClusterNow:
        host, identity, state = self._host, self._host.identity, self.state
        if state != self._shown[0]:
            self._shown = state, self._clock.state_ms()
        modes = Counter(part.mode.name.lower() for part in host.partitions)
        calls = with_zeros(CLUSTER_CALLS, identity.calls)
        return ClusterNow(
            host=identity.name,
            state=state,
            since=self._shown[1] + self._clock.wall_ahead_ms(),
            detail=self.detail,
            is_up=self._redis.error is None and self._redis.is_connected,
            lag_records=self._lag_records,
            lag_s=max(map(self._lag_s_of, host.partitions)),
            partitions=with_zeros(PARTITION_MODES, modes),
            lease_age_s=self._lease_age_s,
            lease_s=identity.lease_s,
            users=host.users,
            calls=calls,
            errors=with_zeros(CLUSTER_ERRORS, identity.errors),
            lists=calls["begin", "reset"],
            audit_mismatches=identity.audit_mismatches,
            fences=calls["fence", "ok"],
            sessions_reaped=identity.sessions_reaped,
            questions=with_zeros(CLUSTER_QUESTIONS, self._questions.answers),
        )

    async def log_changes(self) -> None:
        logged, warned = "beginning", ""
        while True:
            await trio.sleep(WATCH_S)
            state, detail = self.state, self.detail
            log = _log.bind(
                host=self._host.identity.name, lag_records=self._lag_records
            )
            if state == "following" and detail != warned:
                warned = detail
                if warned:
                    log.warning("another lease", message=warned)
            if state in (logged, "beginning"):
                continue
            if state == "following":
                log.info("following", users=self._host.users)
            elif state == "away":
                log.warning(
                    "away: other hosts see nothing of this one until it answers; the "
                    "users and gateways of this host go on",
                    error=detail,
                )
            else:
                log.error(state, message=detail)
            logged = state
