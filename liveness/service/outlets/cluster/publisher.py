"""Publishes the sessions of this host: reads the log, and makes the calls to Redis.

Nothing here may delay the sidecar: it reads the log as any reader does, from memory or, far
behind, from disk, and keeps a bounded number of changes. While Redis is away, the log keeps
them.
"""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import SystemRandom
from typing import Any, Final, Literal, TypeAlias

import structlog
import trio

from liveness.cluster.connection import CallError, Redis
from liveness.cluster.format import configuration_of
from liveness.cluster.questions import ClusterQuestions
from liveness.config.settings import Config
from liveness.core.cursors import ReadPosition
from liveness.core.records import SESSION_KINDS, Gap, Logged, Subscription
from liveness.metrics.families import zeros
from liveness.metrics.now import (
    CLUSTER_CALLS,
    CLUSTER_ERRORS,
    CLUSTER_QUESTIONS,
    PARTITION_MODES,
    ClusterNow,
)
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.outlets.cluster.host import ClusterHost
from liveness.service.outlets.cluster.host_state import HostIdentity, nonce_of
from liveness.service.outlets.cluster.partition import MALFORMED, Mode, Partition
from liveness.service.outlets.cluster.session_changes import Call, make_lists
from liveness.service.outlets.common.outlet_log import LogAccess
from liveness.service.storage.log_tail import TailReader

# Records of the log read at a time.
READ_RECORDS: Final = 500
# With more changes than this, a call waits for a pass of the event loop of its own: to pack
# them takes a millisecond.
LARGE_CALL: Final = 50
# The pause before a list that the disk refused is tried again, and a read of the log.
LIST_RETRY_S: Final = 5.0
READ_RETRY_S: Final = 1.0
# Partitions that list their sessions at a time: hosts that all do, as after Redis was
# emptied, leave it time for other calls; and each list waits in memory.
LISTS_AT_ONCE: Final = 4

# How often the state is compared with what was logged.
WATCH_S: Final = 1.0

State: TypeAlias = Literal["beginning", "following", "away", "replaced", "refused"]
SESSIONS: Final = Subscription(None, frozenset(SESSION_KINDS))

_log = structlog.get_logger("cluster")


class Publisher:
    """Publishes the log of one sidecar, whose settings name a cluster."""

    def __init__(self, config: Config, access: LogAccess) -> None:
        self.name = "cluster"
        settings, separator = config.cluster, config.presence.device_separator
        partitions = settings.partitions
        self._clock = clock = access.clock
        self._log_writer = log_writer = access.log_writer
        random = SystemRandom()
        self._identity = HostIdentity(
            name=settings.host_name,
            log=log_writer.store.log,
            nonce=nonce_of(clock.wall_ms(), random),
            epoch=clock.wall_ms(),
            configuration=configuration_of(partitions, separator),
            lease_s=settings.lease_s,
            linger_s=settings.linger_s,
            keep_s=settings.keep_s,
            random=random,
            on_fenced=self._log_fenced,
            may_keep=not log_writer.store.had_two_names,
        )
        self.host = host = ClusterHost(
            self._identity, partitions=partitions, separator=separator
        )
        self.redis = Redis(settings, must_keep=True)
        self.questions = ClusterQuestions(
            self.redis, partitions=partitions, separator=separator
        )
        self._feed = access.feed
        self._position = ReadPosition(SESSIONS, 0)
        self._reader = TailReader(log_writer, self._feed, self._position, is_guest=True)
        self._turnstile = access.turnstile
        self._why_failed = ""
        self._newest_error: CallError | None = None
        self._began_at, self._began_seq = clock.mono(), log_writer.durable_seq
        self._shown: tuple[State, int] = ("beginning", clock.state_ms())  # since when
        self._wants_records, self._wants_list = Notifier(), Notifier()
        self._wakes = [Notifier() for _ in host.partitions]
        self._log_throttled = LogThrottle(REPEAT_LOG_S, clock=clock.mono)

    async def run(self) -> None:
        self._why_failed = ""
        now = self._clock.mono()
        for part in self.host.partitions:  # an earlier run may have ended amid its work
            part.failed(now)
            if part.mode is Mode.ASSERTING:
                part.begin_anew(now)
        self._feed.follow(self._reader, self._wants_records.notify)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.redis.run)
                nursery.start_soon(self._log_changes)
                nursery.start_soon(self._read_log)
                nursery.start_soon(self._make_lists)
                for part in self.host.partitions:
                    nursery.start_soon(self._publish, part)
        finally:
            self._feed.unfollow(self._reader)

    def failed(self, why: str) -> None:
        self._why_failed = why

    # --- tasks ----------------------------------------------------------------

    async def _publish(self, part: Partition) -> None:
        wake, identity = self._wakes[part.number], self._identity
        while True:
            if part.queued > LARGE_CALL or part.mode is Mode.ASSERTING:
                await self._turnstile.wait()
            identity.newest = self._log_writer.durable_seq
            now = self._clock.mono()
            call = part.next_call(now, round(now * 1000))
            if call is None:
                with trio.move_on_after(max(0.0, part.next_at() - now)):
                    await wake.wait()
                continue
            before = part.mode
            try:
                answer = await self.redis.call(call.function, part.number, call.args)
            except CallError as error:
                part.failed(self._clock.mono())
                self._count_error(error)
            else:
                self._take(part, call, answer)
            self._wants_records.notify()
            if part.mode is not before or call.function == "begin":
                self._wants_list.notify()

    def _take(self, part: Partition, call: Call, answer: Sequence[Any]) -> None:
        identity = self._identity
        was_stopped = identity.is_stopped
        word = part.answered(answer, self._clock.mono())
        if word == MALFORMED:
            what = (
                f"Redis answered {answer!r:.80} to {call.function} in partition "
                f"{part.number}: another program wrote to its keys; correct "
                "cluster.prefix, or delete them"
            )
            self._count_error(CallError("other", what))
        else:
            identity.calls[call.function, word] += 1
        if identity.is_stopped and not was_stopped:
            for wake in self._wakes:  # all partitions must stop
                wake.notify()

    def _count_error(self, error: CallError) -> None:
        self._identity.errors[error.kind] += 1
        self._newest_error = error

    async def _read_log(self) -> None:
        """Give the partitions the records of the log that they have room for."""
        host, reader = self.host, self._reader
        while True:
            self._identity.newest = self._log_writer.durable_seq
            start = host.read_from()
            if start is None:
                await self._wants_records.wait()
                continue
            self._position.seq = start
            wall_ms = self._clock.wall_ms()
            try:
                entries = await reader.take(READ_RECORDS, wall_ms=wall_ms)
            except (OSError, sqlite3.Error) as error:
                self._log_disk("the log cannot be read for the other hosts", error)
                await trio.sleep(READ_RETRY_S)
                continue
            await self._turnstile.wait()
            now, records = self._clock.mono(), list[Logged]()
            for entry in entries:
                if isinstance(entry.record, Gap):
                    host.lose_records(start, entry.record.seq)
                else:
                    records.append(entry.record)
            host.distribute(
                *(start, records, reader.position, now),
                decided_ms=self._log_writer.decided_ms,
            )
            for part, wake in zip(host.partitions, self._wakes, strict=True):
                if part.queued:
                    wake.notify()

    async def _make_lists(self) -> None:
        host = self.host
        while True:
            listed, offset_ms = self._next_lists(), self._clock.mono_offset_ms()
            if not listed:
                await self._wants_list.wait()
                continue
            try:
                lists = await in_thread(
                    partial(
                        make_lists,
                        self._log_writer.store,
                        partial(host.session_of, offset_ms=offset_ms),
                        [part.number for part in listed],
                    )
                )
            except (OSError, sqlite3.Error) as error:
                self._log_disk("the sessions of this host cannot be listed", error)
                await trio.sleep(LIST_RETRY_S)
                continue
            for part in listed:
                if part.wants_list:
                    part.give_list(lists[part.number])
                    self._wakes[part.number].notify()
            self._wants_records.notify()

    def _next_lists(self) -> list[Partition]:
        asserting = [it for it in self.host.partitions if it.mode is Mode.ASSERTING]
        wanting = [part for part in asserting if part.wants_list]
        turns_left = LISTS_AT_ONCE - (len(asserting) - len(wanting))
        return wanting[: max(0, turns_left)]

    # --- how it goes ------------------------------------------------------------

    @property
    def _state(self) -> State:
        identity = self._identity
        if identity.is_stopped:
            return "replaced"
        if self._why_failed or identity.why_refused:
            return "refused"
        if self._lease_age_s > identity.contact_gap_s:
            return "away"
        return "following" if self.host.is_following else "beginning"

    @property
    def _lease_age_s(self) -> float:
        """Seconds since the answer of the partition that has waited the longest."""
        oldest = min(part.answered_at for part in self.host.partitions)
        return self._clock.mono() - max(oldest, self._began_at)

    @property
    def _lag_records(self) -> int:
        """Records of the log that one partition, the furthest behind, does not have."""
        return max(map(self._lag_records_of, self.host.partitions))

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
    def _detail(self) -> str:
        """Why it does not follow, or not as it should; empty if all is well."""
        identity = self._identity
        match self._state:
            case "replaced":
                return (
                    f"another process publishes as host {identity.name!r}; give each "
                    "host a name of its own (cluster.host), or stop the other one"
                )
            case "refused":
                return self._why_failed or (
                    f"the other hosts have {identity.why_refused!r} (schema, partitions, device separator, "
                    f"when it began) and this one {identity.configuration!r}; use the "
                    "same settings, or another cluster.prefix"
                )
            case "away":
                error = self.redis.error or self._newest_error
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
        host, identity, state = self.host, self._identity, self._state
        if state != self._shown[0]:
            self._shown = state, self._clock.state_ms()
        modes = Counter(part.mode.name.lower() for part in host.partitions)
        return ClusterNow(
            host=identity.name,
            state=state,
            since=self._shown[1] + self._clock.wall_ahead_ms(),
            detail=self._detail,
            is_up=self.redis.error is None,
            lag_records=self._lag_records,
            lag_s=max(map(self._lag_s_of, host.partitions)),
            partitions={**zeros(PARTITION_MODES), **modes},
            lease_age_s=self._lease_age_s,
            lease_s=identity.lease_s,
            users=host.users,
            calls={**zeros(CLUSTER_CALLS), **identity.calls},
            errors={**zeros(CLUSTER_ERRORS), **identity.errors},
            audit_mismatches=identity.audit_mismatches,
            fences=identity.calls["fence", "ok"],
            sessions_reaped=identity.sessions_reaped,
            questions={**zeros(CLUSTER_QUESTIONS), **self.questions.answers},
        )

    async def _log_changes(self) -> None:
        logged = "beginning", ""
        while True:
            await trio.sleep(WATCH_S)
            state, detail = self._state, self._detail
            shown = state, detail if state == "following" else ""
            if shown == logged or state == "beginning":
                continue
            log = _log.bind(host=self._identity.name, lag_records=self._lag_records)
            if state == "following" and detail:
                log.warning("another lease", message=detail)
            elif state == "following":
                log.info("following", users=self.host.users)
            elif state == "away":
                log.warning(
                    "away: other hosts see nothing of this one until it answers; the "
                    "users and gateways of this host go on",
                    error=detail,
                )
            else:
                log.error(state, message=detail)
            logged = shown

    def _log_disk(self, what: str, error: Exception) -> None:
        message = f"{what}; trying again"
        self._log_throttled(_log.error, message, key=message, error=str(error))

    def _log_fenced(self, host: bytes, partition: int) -> None:
        """Log a lost host once, though each of its partitions finds it lost."""
        self._log_throttled(
            _log.warning,
            "a host was lost: its users go offline, unless they are on another one",
            key=host,
            lost=host.decode(errors="replace"),
            partition=partition,
        )
