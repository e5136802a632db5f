"""The functions on a real Redis, whose clock a test sets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import pytest

from liveness.cluster.format import (
    Place,
    field_of,
    host_of,
    keys_of,
    place_bytes,
    session_bytes,
    sessions_of,
)
from tests.helpers.redis_connection import RedisRefusal
from tests.helpers.redis_servers import RedisServer, redis_server
from tests.helpers.virtual_functions import virtual_functions

START_S: Final = 1_700_000_000
LEASE_S: Final = 30
KEEP_S: Final = 3_600
NONCE: Final = 7
KEYS: Final = keys_of("lv", 0)
ADA: Final = field_of("ada")


@dataclass
class Partition:
    """A partition, and Redis' clock."""

    redis: RedisServer
    now: float = START_S
    step_s: float = 0.0  # by which Redis' clock was set
    tokens: Iterator[int] = field(default_factory=count)

    def call(self, function: str, args: Sequence[str | int | bytes]) -> Any:
        self.redis("SET", "now", round((self.now + self.step_s) * 1e6))
        name = virtual_functions()[1] + function
        return self.redis("FCALL", name, 3, *KEYS, *args)

    def meta(self, name: str) -> Any:
        return self.redis("HGET", KEYS.meta, name)

    def hosts_of_ada(self) -> list[int]:
        """Incarnations, which are the numbers of the hosts: the newest session first."""
        stored = self.redis("HGET", KEYS.users, ADA) or b""
        return [session.incarnation for session in sessions_of(stored)]

    def look(self) -> list[Any]:
        """A host looks for others; ten times in a lease."""
        quiet_us, every_us = 1_000_000 * LEASE_S // 2, 1_000_000 * LEASE_S // 10
        args: list[str | int | bytes] = ["x", quiet_us, every_us]
        args.append(1_000_000 * KEEP_S)
        answer: list[Any] = self.call("look", args)
        return answer

    def stream(self) -> list[int]:
        """The versions that readers still find."""
        return [
            int(name[:-2]) for name, _ in self.redis("XRANGE", KEYS.stream, "-", "+")
        ]


class Host:
    """A host of the partition, with a clock of its own, which goes right."""

    def __init__(self, partition: Partition, name: str) -> None:
        self.partition, self.name = partition, name
        self.epoch = self.incarnation = self.last = 0
        self.is_clock_compared = False
        self.ahead_s = 0.0  # its error about Redis' clock

    def begin(self, *, keep: int = 0, take: int = 1, log: str = "log") -> Any:
        self.epoch += 1
        args: list[str | int | bytes] = [self.name, self.epoch, NONCE, log]
        args += [1_000, "1 1 -", 1_000_000 * LEASE_S, keep, take]
        args.append(next(self.partition.tokens))
        answer = self.partition.call("begin", args)
        if answer[0] == b"reset":
            self.incarnation, self.last = answer[2], 0
        return answer[0].decode()

    def list(self, *sessions: tuple[bytes, int, float]) -> str:
        """All its sessions: user, number, and for how long they have been."""
        return self._change("assert", *sessions)

    def follow(self) -> "Host":
        assert (self.begin(), self.list()) == ("reset", "ok")
        return self

    def login(self, session: int, age_s: float = 0.0, user: bytes = ADA) -> str:
        began = self.partition.now - age_s
        word = self._change("apply", (user, session, age_s))
        if word == "late":
            self.ahead_s, self.is_clock_compared = self.partition.step_s, True
            age_s = self.partition.now - began
            word = self._change("apply", (user, session, age_s))
        return word

    def beat(self) -> str:
        return self._change("beat")

    def words_of_beat(self, seen_us: int) -> Sequence[str | int | bytes]:
        """It takes the clock of the partition to have been at *seen_us*."""
        who = (self.name, self.epoch, NONCE, self.incarnation)
        return [*who, self.last, self.last, seen_us, next(self.partition.tokens), "", 0]

    def _change(self, function: str, *sessions: tuple[bytes, int, float]) -> str:
        part = self.partition
        clock = round((part.now + self.ahead_s) * 1000)
        sent_clock: str | int = "" if self.is_clock_compared else clock
        self.is_clock_compared = False
        values, bodies = list[bytes](), list[bytes]()
        for user, session, age_s in sessions:
            since = clock - round(1000 * age_s)
            values.append(session_bytes(self.incarnation, session, since, b"g", b""))
            place = Place(user.decode(), self.name, "g", session, since, "login")
            bodies.append(place_bytes(place))
        last = self.last + 1
        args: list[str | int | bytes] = [self.name, self.epoch, NONCE]
        args += [self.incarnation, self.last, last, 0, next(part.tokens)]
        args.append(sent_clock)
        args += [len(sessions), *(user for user, *_ in sessions), *values, *bodies]
        answer = part.call(function, args)
        if answer[0] == b"ok":
            self.last = last
        return str(answer[0].decode())


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        running("FUNCTION", "LOAD", virtual_functions()[0])
        yield running


@pytest.fixture
def partition(server: RedisServer) -> Partition:
    server("FLUSHALL")
    return Partition(server)


@pytest.fixture
def hosts(partition: Partition) -> tuple[Host, Host]:
    """Hosts 1 and 2."""
    return Host(partition, "a").follow(), Host(partition, "b").follow()


@pytest.mark.parametrize("step_s", [-3_600.0, -0.3, 0.0, 0.3, 3_600.0])
def test_the_session_that_redis_takes_last_is_the_newest_though_its_clock_jumps(
    partition: Partition, hosts: tuple[Host, Host], step_s: float
) -> None:
    first, second = hosts
    first.login(1)
    partition.now += 0.1
    partition.step_s = step_s  # a failover to a server with another clock
    second.login(2, age_s=0.02)
    assert partition.hosts_of_ada() == [2, 1]
    partition.now += 0.1
    first.ahead_s = step_s  # it has learned that by now
    first.login(3, age_s=0.02)
    partition.now += 0.1
    second.login(4, age_s=0.02)
    assert partition.hosts_of_ada() == [2, 1]


@pytest.mark.parametrize("ahead_s", [-1.0, -0.2, 0.2, 1.0])
def test_a_host_that_knows_the_clock_of_redis_badly_has_the_newest_session_too(
    partition: Partition, hosts: tuple[Host, Host], ahead_s: float
) -> None:
    first, second = hosts
    first.ahead_s = ahead_s
    for session in range(1, 9, 2):
        partition.now += 0.05
        first.login(session)
        assert partition.hosts_of_ada()[0] == 1
        partition.now += 0.05
        second.login(session + 1)
        assert partition.hosts_of_ada() == [2, 1]


def test_a_list_by_a_clock_that_is_behind_is_asked_for_again(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    first, second = hosts
    first.login(1, age_s=100.0)
    second.begin()
    second.ahead_s = -3_600.0  # as Redis' clock was when it began
    assert second.list((ADA, 2, 1.0)) == "late"
    second.ahead_s, second.is_clock_compared = 0.0, True
    assert second.list((ADA, 2, 1.0)) == "ok"
    assert partition.hosts_of_ada() == [second.incarnation, first.incarnation]


def look_for(partition: Partition, seconds: float) -> None:
    """Let hosts look on for so long."""
    until = partition.now + seconds
    while partition.now < until:
        partition.now += LEASE_S / 10
        partition.look()


def test_the_last_look_is_not_ahead_though_the_clock_of_redis_was_set_back(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    partition.look()
    partition.step_s = -3_600.0
    answer = partition.call("beat", hosts[0].words_of_beat(0))
    assert answer[7] > 3_500e6  # microseconds since the last look: the next one is due


def test_a_host_that_begins_after_the_clock_of_redis_was_set_back_has_the_others_clock(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    hosts[0].login(1)
    partition.step_s = -3_600.0
    partition.now += LEASE_S / 2
    partition.call("beat", hosts[0].words_of_beat(round(partition.now * 1e6)))
    conf, lease_us = "1 1 -", 1_000_000 * LEASE_S
    answer = partition.call("begin", ["c", 1, 1, "log", 0, conf, lease_us, 0, 0, 1])
    assert abs(partition.now * 1e6 - answer[3]) < 1e6


@pytest.mark.parametrize("function", ["look", "reap"])
def test_a_partition_that_has_lost_whose_its_sessions_are_begins_anew(
    partition: Partition, hosts: tuple[Host, Host], function: str
) -> None:
    hosts[1].login(1)
    partition.redis("HDEL", KEYS.meta, "i2")  # by another program
    partition.now += LEASE_S
    args: list[str | int | bytes] = [0, 100, 0, 1]
    answer = partition.look() if function == "look" else partition.call("reap", args)
    assert answer == [b"damaged"]
    assert hosts[1].beat() == "unknown"


def test_a_session_of_an_earlier_list_whose_host_was_deleted_is_damage(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    host = hosts[1]
    host.login(1)
    partition.redis("HDEL", KEYS.meta, "i2")  # by another program
    assert (host.begin(log="new"), host.list()) == ("reset", "ok")
    assert partition.look()[1] == 1  # to be reaped
    assert partition.call("reap", [0, 100, 0, 1]) == [b"damaged"]
    assert host.beat() == "unknown"


@pytest.mark.parametrize("step_s", [-1e9, -3_600.0, 3_600.0, 1e9])
def test_a_clock_that_jumps_trims_nothing_that_is_new(
    partition: Partition, hosts: tuple[Host, Host], step_s: float
) -> None:
    partition.redis("CONFIG", "SET", "stream-node-max-entries", 1)
    look_for(partition, KEEP_S)
    hosts[0].login(1)
    hosts[1].login(2)
    look_for(partition, KEEP_S / 4)
    kept = partition.stream()
    partition.step_s = step_s
    look_for(partition, KEEP_S / 2)
    assert partition.stream()[-2:] == kept[-2:]
    look_for(partition, KEEP_S)
    hosts[0].login(3)
    assert len(partition.stream()) < len(kept) + 1


@pytest.mark.parametrize("value", ["", "cake"])
@pytest.mark.parametrize("met_by", ["apply", "reap"])
def test_a_value_without_sessions_is_damage_to_a_call_that_meets_it(
    partition: Partition, hosts: tuple[Host, Host], value: str, met_by: str
) -> None:
    first, second = hosts
    first.login(1)
    partition.redis("HSET", KEYS.users, ADA, value)
    with pytest.raises(RedisRefusal, match="no sessions of this schema"):
        partition.call("where", [ADA])
    if met_by == "apply":
        assert second.login(2) == "damaged"
    else:
        assert partition.call("reap", [0, 100, 0, 1]) == [b"damaged"]
    assert first.beat() == "unknown"


def test_a_lost_host_that_is_heard_while_it_is_reaped_is_no_damage(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    first, second = hosts
    for session, user in enumerate(("ada", "bob", "eve"), 1):
        second.login(session, user=field_of(user))
    beats = [host_of(partition.meta(f"h{name}")).beat for name in "ab"]
    fence: list[str | int | bytes] = ["a", beats[0], "b", second.epoch, beats[1]]
    assert partition.call("fence", fence) == [b"ok"]
    assert partition.call("reap", [0, 1, 0, 1])[2:4] == [1, 2]  # ended, and left
    assert (first.beat(), second.beat()) == ("ok", "fenced")


def test_what_a_host_has_to_reap_as_it_begins_is_found_at_once(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    host = hosts[1]
    for session, user in enumerate(("ada", "bob", "eve"), 1):
        host.login(session, user=field_of(user))
    partition.look()
    assert partition.look()[0] == b"later"
    assert (host.begin(log="new"), host.list()) == ("reset", "ok")
    assert partition.look()[:2] == [b"ok", 3]
    assert partition.call("reap", [0, 1, 0, 1])[2:4] == [1, 2]  # ended, and left
    assert partition.look()[0] == b"later"
    # Its process was restarted meanwhile.
    assert host.begin(keep=1, log="new") == "keep"
    assert partition.look()[:2] == [b"ok", 2]
