"""Virtual time, and the servers of the partitions with their faults.

A failover restores a partition as a replica had it: by DUMP, taken earlier, and RESTORE,
with another clock.
"""

import os
from collections import deque
from dataclasses import dataclass
from itertools import count
from math import inf
from random import Random
from typing import Any, Final

from liveness.cluster.format import (
    HostState,
    StoredHost,
    StreamEntry,
    entry_of,
    host_of,
    keys_of,
    sessions_of,
)
from liveness.core.records import ONLINE
from liveness.service.outlets.cluster.session_changes import Call
from tests.helpers.redis_connection import RedisRefusal
from tests.helpers.virtual_functions import virtual_functions
from tests.simulation.cluster.noticed import notice, notice_failover
from tests.simulation.cluster.plan import MOST_PARTITIONS, Plan
from tests.simulation.cluster.redis import server_of
from tests.simulation.scales import by_scale
from tests.simulation.situations import reached

KEYS: Final = [keys_of("lv", number) for number in range(MOST_PARTITIONS)]
START_S: Final = 1_700_000_000.0
TIMEOUT_S: Final = 2.0  # of a call
# In an `apply`: arguments in front of the users; the last of them says how many follow.
APPLY_HEAD: Final = 10
BEATS: Final = ("begin", "assert", "apply", "beat")  # by which a host is heard
ENDING_BYTES: Final = 6  # of a value that ends a session
LEAST_SKEW_S: Final = 0.1  # by which a clock of Redis is wrong
MOST_SKEW_S: Final = 40_000.0
MOST_COPIES: Final = 8  # of a partition's state, for a failover
COPIED: Final = 0.02  # after which share of the calls such a copy is made
REAPED: Final = ("host_lost", "resync")  # why a reap ends sessions
DAMAGES: Final = (
    *("user", "user", "stranger", "users", "meta", "stream", "look", "owner"),
)


@dataclass(slots=True)
class Flight:
    """A call under way."""

    partition: int
    call: Call
    sent: float
    until: float  # when its answer comes, or its timeout
    has_run: bool = False
    is_slow: bool = False  # or lost, by the network
    is_half: bool = False  # its answer is cut
    answer: list[Any] | None = None  # None: it has none


class World:
    """What all hosts share."""

    def __init__(self, random: Random, plan: Plan) -> None:
        self.random, self.plan = random, plan
        self.faults = dict(plan.faults)
        self.partitions = range(plan.partitions)
        library = virtual_functions()
        self.prefix = library[1]
        self.redis = server_of(os.getpid())
        load = ("FUNCTION", "LOAD", "REPLACE", library[0])
        self.redis.many(("FLUSHALL",), load)
        self.now = START_S
        self.skew_s = [self._skew() for _ in self.partitions]
        self.down_until = [0.0 for _ in self.partitions]  # nothing is answered until
        self.full_until = [0.0 for _ in self.partitions]  # out of memory until then
        # When the clock of a partition's server was set.
        self.clock_sets = [list[float]() for _ in self.partitions]
        self.late: list[tuple[int, Call]] = []  # calls that still arrive, some time
        # Sessions, by partition, incarnation and number: in which order Redis took them.
        self.taken: dict[tuple[int, int, int], int] = {}
        self._numbers = count(1)
        self.faults_found: list[str] = []
        # When each partition last heard a host; what it lost of that is not known.
        self._heard = [dict[bytes, float]() for _ in self.partitions]
        self.damaged = set[str]()  # kinds of damage that were done
        # What a replica had, the newest last.
        self._copies = [
            deque[list[bytes | None]](maxlen=MOST_COPIES) for _ in self.partitions
        ]

    # --- calls ----------------------------------------------------------------

    def run(self, partition: int, call: Call, *, is_old: bool = False) -> Any:
        """Make a call on Redis now; None: it is out of memory, and refused it."""
        words = ("FCALL", self.prefix + call.function, 3, *KEYS[partition], *call.args)
        clock = ("SET", "now", round((self.now + self.skew_s[partition]) * 1e6))
        said = call.args[2 if call.function == "fence" else 0]
        name = said if isinstance(said, bytes) else str(said).encode()
        look = ("HMGET", KEYS[partition].meta, "v", b"h" + name)
        limit = ("CONFIG", "SET", "maxmemory")
        most_bytes = 1 if self.now < self.full_until[partition] else 0  # 0: no limit
        try:
            _, before, _, answer, _ = self.redis.many(
                clock, look, (*limit, most_bytes), words, (*limit, 0)
            )
        except RedisRefusal as error:
            if not str(error).startswith("OOM"):
                raise
            reached("cluster: Redis refuses a call as it is out of memory")
            return None
        if call.function in ("apply", "assert") and answer[0] == b"ok":
            self._note_taken(partition, call)
        if call.function == "fence" and answer[0] == b"ok":
            self._check_fenced(partition, name)
        elif call.function in BEATS and answer[0] in (b"ok", b"keep", b"reset"):
            self._heard[partition][name] = self.now
        host = host_of(before[1]) if before[1] else None
        notice(call, answer, host, knows=before[0] is not None, is_old=is_old)
        is_reap = call.function == "reap" and answer[0] == b"ok"
        if is_reap and answer[4] != int(before[0]):  # the newest entry is its own
            self._check_reaped(partition)
        has_replica = {"failover", "old"} & self.faults.keys()
        if has_replica and self.random.random() < COPIED:
            self.replicate(partition)
        return answer

    def _note_taken(self, partition: int, call: Call) -> None:
        changes = int(call.args[APPLY_HEAD - 1])
        for value in call.args[APPLY_HEAD + changes : APPLY_HEAD + 2 * changes]:
            if isinstance(value, bytes) and len(value) > ENDING_BYTES:
                session = next(sessions_of(value))
                key = partition, session.incarnation, session.session
                self.taken.pop(key, None)
                if call.function == "apply":  # in a list the order says nothing
                    self.taken[key] = next(self._numbers)

    def send(self, partition: int, call: Call, *, is_cut: bool) -> Flight:
        """Begin a call: it runs now or later, or never, and is answered or not."""
        random, now = self.random, self.now
        flight = Flight(partition, call, now, now + 0.001)
        # With a short lease a host is lost by a few of them.
        is_slow = self.plan.lease_s < 8 * TIMEOUT_S
        if is_cut or now < self.down_until[partition]:
            flight.has_run, flight.is_slow = True, is_slow
            flight.until += random.choice((0, TIMEOUT_S))
            return flight
        if random.random() < self.faults.get("lag", 0.05):
            flight.until += random.random() * TIMEOUT_S
            flight.is_slow = is_slow
        flight.is_half = random.random() < self.faults.get("half", 0)
        if random.random() < self.faults.get("net", 0):
            kind = random.choice(("request", "reply", "late", "twice"))
            if kind in ("late", "twice"):
                self.late.append((partition, call))
            if kind != "twice":
                flight.until = now + TIMEOUT_S
                flight.has_run = flight.is_slow = True
            if kind == "reply":
                self.run(partition, call)
        if not flight.has_run and random.random() < 0.5:
            self._land(flight)
        return flight

    def answer_to(self, flight: Flight) -> list[Any] | None:
        """The answer to a call, once its time has come; None: there is none."""
        if not flight.has_run and self.now >= self.down_until[flight.partition]:
            self._land(flight)
        return flight.answer

    def _land(self, flight: Flight) -> None:
        flight.has_run = True
        answer = self.run(flight.partition, flight.call)
        if answer and flight.is_half:
            del answer[self.random.randrange(len(answer)) :]
        flight.answer = answer

    def _check_fenced(self, partition: int, name: bytes) -> None:
        """It was not heard for a lease, whatever a clock says."""
        silent_s = self.now - self._heard[partition].get(name, -inf)
        if silent_s < self.plan.lease_s - 1e-3:
            self.faults_found.append(f"{name!r} is fenced after {silent_s:.1f} s")

    def _check_reaped(self, partition: int) -> None:
        """Sessions of a host that asserts them now must wait for it."""
        hosts = self.hosts(partition)
        for entry in self.stream(partition)[-1:]:
            for record in entry.records:
                ended = record.lost or record.place
                host = hosts.get(ended.host)
                # Otherwise the reap ended no newest session: this is not its entry.
                is_end = record.kind != ONLINE and ended.reason in REAPED
                if is_end and host and host.state is HostState.ASSERTING:
                    self.faults_found.append(f"a flap of {record}")

    # --- state ----------------------------------------------------------------

    def meta(self, partition: int) -> dict[bytes, bytes]:
        """The hash of a partition."""
        return pairs(self.redis("HGETALL", KEYS[partition].meta))

    def hosts(self, partition: int) -> dict[str, StoredHost]:
        """The hosts that a partition knows."""
        return {
            field[1:].decode(): host_of(value)
            for field, value in self.meta(partition).items()
            if field.startswith(b"h")
        }

    def stream(self, partition: int) -> list[StreamEntry]:
        """All entries of a partition."""
        rows = self.redis("XRANGE", KEYS[partition].stream, "-", "+")
        return [entry_of(partition, name, pairs(fields)) for name, fields in rows]

    # --- faults of a server -----------------------------------------------------

    def _skew(self) -> float:
        """By how much the clock of a server is wrong."""
        random = self.random
        if not {"skew", "step"} & self.faults.keys() or random.random() < 0.2:
            return 0.0
        skew_s = by_scale(random, LEAST_SKEW_S, MOST_SKEW_S)
        return random.choice((-1, 1)) * skew_s

    def replicate(self, partition: int) -> None:
        """A replica has everything up to now."""
        dumps = self.redis.many(*(("DUMP", key) for key in KEYS[partition]))
        self._copies[partition].append(dumps)

    def fail_over(self, partition: int, *, back: int = 1) -> None:
        """A replica takes over, with the last copy, or an earlier one; the rest is lost."""
        self._heard[partition].clear()
        before, copies = self.hosts(partition), self._copies[partition]
        for _ in range(min(back, len(copies)) - 1):
            copies.pop()
        had = zip(KEYS[partition], copies[-1], strict=True) if copies else ()
        restores = [("RESTORE", key, 0, dump) for key, dump in had if dump]
        self.redis.many(("DEL", *KEYS[partition]), *restores)
        if "skew" in self.faults:
            self.set_clock(partition)
        notice_failover(before, self.hosts(partition))

    def empty(self, partition: int) -> None:
        """It restarts with nothing, as its replica."""
        self.redis("DEL", *KEYS[partition])
        self._copies[partition].clear()

    def set_clock(self, partition: int, skew_s: float | None = None) -> None:
        """Its clock is set."""
        before = self.skew_s[partition]
        self.skew_s[partition] = self._skew() if skew_s is None else skew_s
        self.clock_sets[partition].append(self.now)
        leases = (self.skew_s[partition] - before) / self.plan.lease_s
        if leases > 1:
            reached("cluster: the clock of Redis jumps ahead by more than a lease")
        elif leases < -1:
            reached("cluster: the clock of Redis jumps back by more than a lease")

    def damage(self, partition: int) -> None:
        """Somebody deletes keys or users, or adds one."""
        keys, kind = KEYS[partition], self.random.choice(DAMAGES)
        owners = sorted(it for it in self.meta(partition) if it.startswith(b"i"))
        users = sorted(self.redis("HKEYS", keys.users))
        version, counted = self.redis("HMGET", keys.meta, "v", "n")
        if version is not None and counted != b"%b %d" % (version, len(users)):
            return  # not noticed yet: only the number of users is compared
        match kind:
            case "user" if users:
                self.redis("HDEL", keys.users, self.random.choice(users))
            case "stranger":
                self.redis("HSET", keys.users, "stranger", "nonsense")
            case "users" | "meta" | "stream":
                self.redis("DEL", getattr(keys, kind))
            case "look":
                self.redis("HDEL", keys.meta, "l")
            case "owner" if owners:
                self.redis("HDEL", keys.meta, self.random.choice(owners))
        self.damaged.add(kind)


def pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    """A hash, or the fields of a stream's entry, as RESP has them."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
