"""Virtual time, and the servers of the partitions with what befalls them.

The functions read the key `now` in place of their server's clock. A failover restores a
partition as a replica had it: by DUMP, taken earlier, and RESTORE, with another clock.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from liveness.cluster.format import (
    HostState,
    StoredHost,
    entry_of,
    host_of,
    keys_of,
    sessions_of,
)
from liveness.cluster.functions import Functions, functions
from liveness.core.records import ONLINE
from liveness.outlets.cluster.session_changes import Call
from tests.simulation.cluster.redis import Connection, RedisError

PARTITIONS: Final = 2
PREFIX: Final = "lv"
KEYS: Final = [keys_of(PREFIX, number) for number in range(PARTITIONS)]
START_S: Final = 1_700_000_000.0
TIMEOUT_S: Final = 2.0  # of a call
# In an `apply`: arguments in front of the users; the last of them says how many follow.
APPLY_HEAD: Final = 10
ENDING_BYTES: Final = 6  # of a value that ends a session
# By how much the clock of a new master may be off, in seconds.
SKEWS: Final = (0, 0, -0.2, 2, -20, 40, -100, -3_600, 3_600)
DAMAGES: Final = ("user", "user", "stranger", "users", "meta", "stream")


def virtual_functions() -> Functions:
    """The library, with the clock of the simulation."""
    return functions("return tonumber(call('GET', 'now'))")


@dataclass(slots=True)
class Flight:
    """A call under way."""

    partition: int
    call: Call
    sent: float
    until: float  # when its answer comes, or its timeout
    has_run: bool = False
    answer: list[Any] | None = None  # None: it has none


class World:
    """What all hosts share.

    Args:
        redis: A connection to a server; what is on it is deleted.
        library: The functions, which are loaded.
        seed: Of all that is drawn.
        faults: Which may happen, and how often in comparison.
    """

    def __init__(
        self,
        redis: Connection,
        library: Functions,
        seed: int,
        faults: Mapping[str, float],
    ) -> None:
        self.redis, self.random, self.faults = redis, Random(seed), dict(faults)
        self._prefix = library.prefix
        self.now = START_S
        self.skew_s = [0.0] * PARTITIONS
        self.down_until = [0.0] * PARTITIONS  # nothing is answered until then
        self.full_until = [0.0] * PARTITIONS  # out of memory until then
        self.late: list[tuple[int, Call]] = []  # calls that still arrive, some time
        # Sessions, by partition, incarnation and number: in which order Redis took them.
        self.taken: dict[tuple[int, int, int], int] = {}
        self._count = 0
        self.faults_found: list[str] = []
        # Users of a partition that certainly are online since a moment.
        self.online_since: Callable[[int, float], set[str]] = lambda *_: set()
        self.counts = Counter[str]()
        self._replicas: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        redis("FLUSHDB")

    @property
    def now_ms(self) -> int:
        """Milliseconds of its clock, which is right."""
        return round(self.now * 1000)

    def redis_us(self, partition: int) -> int:
        """The clock of a partition's server, in microseconds."""
        return round((self.now + self.skew_s[partition]) * 1e6)

    # --- calls ----------------------------------------------------------------

    def run(self, partition: int, call: Call) -> list[Any] | None:
        """Make a call on Redis now; None: it is out of memory, and refused it."""
        words = ("FCALL", self._prefix + call.function, 3, *KEYS[partition], *call.args)
        clock = ("SET", "now", self.redis_us(partition))
        before = self.redis("HGET", KEYS[partition].meta, "v")
        if self.now < self.full_until[partition]:
            limit = ("CONFIG", "SET", "maxmemory")
            try:
                replies = self.redis.many(clock, (*limit, 1), words, (*limit, 0))
            except RedisError as error:
                if not str(error).startswith("OOM"):
                    raise
                self.counts["out of memory"] += 1
                return None
            answer = replies[2]
        else:
            _, answer = self.redis.many(clock, words)
        self.counts[f"{call.function} {_text(answer[0])}"] += 1
        if call.function in ("apply", "assert") and answer[0] == b"ok":
            self._note_taken(partition, call)
        is_reap = call.function == "reap" and answer[0] == b"ok"
        if is_reap and answer[4] != int(before):  # the newest entry is its own
            self._check_reaped(partition)
        return answer  # type: ignore[no-any-return]  # what RESP has

    def _note_taken(self, partition: int, call: Call) -> None:
        count = call.args[APPLY_HEAD - 1]
        assert isinstance(count, int)
        for value in call.args[APPLY_HEAD + count : APPLY_HEAD + 2 * count]:
            if isinstance(value, bytes) and len(value) > ENDING_BYTES:
                session = next(sessions_of(value))
                key = partition, session.incarnation, session.session
                self._count += 1
                self.taken.pop(key, None)
                if call.function == "apply":  # in a list the order says nothing
                    self.taken[key] = self._count

    def send(self, partition: int, call: Call, *, is_cut: bool) -> Flight:
        """Begin a call: it runs now or later, or never, and is answered or not."""
        random, now = self.random, self.now
        flight = Flight(partition, call, now, now + 0.001)
        if is_cut or now < self.down_until[partition]:
            flight.has_run = True
            flight.until += random.choice((0, TIMEOUT_S))
            return flight
        if random.random() < 0.2:
            flight.until += random.random() * TIMEOUT_S
        if random.random() < self.faults.get("net", 0):
            kind = random.choice(("request", "reply", "late", "twice"))
            self.counts[f"net {kind}"] += 1
            if kind in ("late", "twice"):
                self.late.append((partition, call))
            if kind != "twice":
                flight.until = now + TIMEOUT_S
                flight.has_run = True
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
        flight.answer = self.run(flight.partition, flight.call)

    def deliver_late(self) -> None:
        """Run one of the calls that were late, or are repeated."""
        if not self.late:
            return
        number = self.random.randrange(len(self.late))
        partition, _ = self.late[number]
        if self.now >= self.down_until[partition]:
            _, call = self.late.pop(number)
            self.counts["late"] += 1
            self.run(partition, call)

    def _check_reaped(self, partition: int) -> None:
        """Sessions of a host that asserts them now must wait for it."""
        newest = self.redis("XREVRANGE", KEYS[partition].stream, "+", "-", "COUNT", 1)
        hosts = self.hosts(partition)
        for entry_id, fields in newest:
            for record in entry_of(partition, entry_id, pairs(fields)).records:
                ended = record.lost or record.place
                host = hosts.get(ended.host)
                if ended.reason not in ("host_lost", "resync") or record.kind == ONLINE:
                    continue  # the reap ended no newest session: not its entry
                if host and host.state is HostState.ASSERTING:
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

    # --- what befalls a server --------------------------------------------------

    def replicate(self, partition: int) -> None:
        """A replica has everything up to now."""
        dumps = self.redis.many(*(("DUMP", key) for key in KEYS[partition]))
        self._replicas[partition] = dumps

    def fail_over(self, partition: int) -> None:
        """The replica takes over: what came after it last heard is lost."""
        self.counts["failover"] += 1
        self.redis("DEL", *KEYS[partition])
        dumps = zip(KEYS[partition], self._replicas[partition], strict=False)
        for key, dump in dumps:
            if dump:
                self.redis("RESTORE", key, 0, dump)
        if self.faults.get("skew"):
            self.skew_s[partition] = self.random.choice(SKEWS)

    def empty(self, partition: int) -> None:
        """It restarts with nothing, as its replica."""
        self.counts["emptied"] += 1
        self.redis("DEL", *KEYS[partition])
        self._replicas[partition] = []

    def step(self, partition: int) -> None:
        """Its clock is set."""
        self.counts["step"] += 1
        self.skew_s[partition] = self.random.choice(SKEWS)

    def damage(self, partition: int) -> None:
        """Somebody deletes keys or users, or adds one."""
        keys, kind = KEYS[partition], self.random.choice(DAMAGES)
        users = sorted(self.redis("HKEYS", keys.users))
        match kind:
            case "user" if users:
                self.redis("HDEL", keys.users, self.random.choice(users))
            case "stranger":
                self.redis("HSET", keys.users, "stranger", "nonsense")
            case "users" if users:
                self.redis("DEL", keys.users)
            case "meta":
                self.redis("DEL", keys.meta)
            case "stream":
                self.redis("DEL", keys.stream)
            case _:  # there is no user
                pass
        self.counts[f"damage {kind}"] += 1


def pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    """A hash, or the fields of a stream's entry, as RESP has them."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)
