"""The functions on a real Redis, whose clock a test sets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import pytest

from liveness.cluster.format import (
    Place,
    StoredSession,
    ending_bytes,
    entry_of,
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

    def sessions_of_ada(self) -> list[StoredSession]:
        """Her sessions, the newest first."""
        return [*sessions_of(self.redis("HGET", KEYS.users, ADA) or b"")]

    def hosts_of_ada(self) -> list[int]:
        """Incarnations, which are the numbers of the hosts: the newest session first."""
        return [session.incarnation for session in self.sessions_of_ada()]

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

    def __init__(self, partition: Partition, name: str, *, nonce: int = 7) -> None:
        self.partition, self.name, self.nonce = partition, name, nonce
        self.epoch = self.incarnation = self.last = 0
        self.delay_s = 0.0  # how long its calls are under way
        self.is_clock_compared = False
        self.ahead_s = 0.0  # its error about Redis' clock

    def begin(self, *, keep: int = 0, take: int = 1, log: str = "log") -> Any:
        self.epoch += 1
        args: list[str | int | bytes] = [self.name, self.epoch, self.nonce, log]
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

    def change(self, *sessions: tuple[bytes, int, float | None, bytes]) -> str:
        """Several in one call, with their devices."""
        return self._change("apply", *sessions)

    def logout(self, session: int) -> str:
        return self._change("apply", (ADA, session, None))

    def beat(self) -> str:
        return self._change("beat")

    def words_of_beat(self, seen_us: int) -> Sequence[str | int | bytes]:
        """It takes the clock of the partition to have been at *seen_us*."""
        who = (self.name, self.epoch, self.nonce, self.incarnation)
        return [*who, self.last, self.last, seen_us, next(self.partition.tokens), "", 0]

    def _change(
        self,
        function: str,
        *sessions: tuple[bytes, int, float | None]
        | tuple[bytes, int, float | None, bytes],
    ) -> str:
        part = self.partition
        clock = round((part.now + self.ahead_s) * 1000)
        sent_clock: str | int = "" if self.is_clock_compared else clock
        self.is_clock_compared = False
        part.now += self.delay_s
        values, bodies = list[bytes](), list[bytes]()
        for user, session, age_s, *devices in sessions:
            device = b"".join(devices)
            since = 0 if age_s is None else clock - round(1000 * age_s)
            values.append(
                ending_bytes(session)
                if age_s is None
                else session_bytes(self.incarnation, session, since, b"g", device)
            )
            name = user.decode()
            place = Place(
                *(name, self.name, "g", session, since, "login", device.decode())
            )
            bodies.append(place_bytes(place))
        last = self.last + 1
        args: list[str | int | bytes] = [self.name, self.epoch, self.nonce]
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


# --- the newest session -----------------------------------------------------------------


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


def test_a_session_is_not_the_newest_as_its_call_was_under_way_for_long(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    slow, other = hosts
    partition.now += 60
    other.login(1)
    slow.delay_s = 1.9
    assert slow.login(2, age_s=1.7) == "ok"
    assert partition.hosts_of_ada() == [2, 1]


def test_one_call_changes_many_devices_of_a_user(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    host, other = hosts
    other.login(1_000)
    devices = [(ADA, n, 0.0, b"/%d" % n) for n in range(500)]
    assert host.change(*devices) == "ok"
    ended = [(ADA, n, None, b"") for n in range(1, 500)]
    assert host.change(*ended, (ADA, 501, 0.0, b"/0")) == "ok"
    assert partition.hosts_of_ada() == [1, 2]
    newest, _ = partition.sessions_of_ada()
    assert (newest.session, newest.device) == (501, "/0")
    assert other.logout(1_000) == "ok"
    both = [(ADA, n, None, b"") for n in (0, 501)]
    assert host.change((ADA, 504, 0.0, b"/1"), (ADA, 504, None, b""), *both) == "ok"
    assert partition.hosts_of_ada() == []


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


def test_hash_and_records_have_sessions_in_the_order_in_which_they_began(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    first, second = hosts
    first.ahead_s = 0.5
    first.login(1)
    partition.now += 0.1
    second.login(2)
    newest, other = partition.sessions_of_ada()
    assert (newest.incarnation, newest.since) == (2, other.since + 1)
    *_, (name, flat) = partition.redis("XRANGE", KEYS.stream, "-", "+")
    (record,) = entry_of(0, name, dict(zip(flat[::2], flat[1::2], strict=True))).records
    assert (record.place.host, record.place.since) == ("b", newest.since)


def test_a_session_that_is_listed_anew_keeps_its_place(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    first, second = hosts
    first.ahead_s = 0.5
    first.login(1)
    second.login(2)
    before = partition.sessions_of_ada()
    for host, session in ((first, 1), (second, 2)):
        host.begin()
        host.list((ADA, session, 0.0))
    after = partition.sessions_of_ada()
    assert [it[1:] for it in after] == [it[1:] for it in before]
    assert partition.hosts_of_ada() == [second.incarnation, first.incarnation]


# --- what is kept of the stream -----------------------------------------------------------


def look_for(partition: Partition, seconds: float) -> None:
    """Let hosts look on for so long."""
    until = partition.now + seconds
    while partition.now < until:
        partition.now += LEASE_S / 10
        partition.look()


def test_a_partition_of_unknown_last_look_is_looked_at(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    partition.redis("HDEL", KEYS.meta, "l")  # by another program
    assert hosts[0].beat() == "ok"
    assert partition.look()[0] == b"ok"


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


# --- damage -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("DEL", KEYS.users),
        ("HDEL", KEYS.users, ADA),
        ("HSET", KEYS.users, "eve", "cake"),
        ("DEL", KEYS.meta),
        ("HDEL", KEYS.meta, "v", "conf"),
        ("HDEL", KEYS.meta, "hb"),
    ],
    ids=["users", "user", "stranger", "meta", "version", "host"],
)
def test_users_that_another_program_changed_are_listed_anew_by_all_hosts(
    partition: Partition, hosts: tuple[Host, Host], command: tuple[str, ...]
) -> None:
    first, second = hosts
    first.login(1)
    second.login(2, user=field_of("bob"))
    partition.redis(*command)
    assert {host.beat() for host in hosts} & {"damaged", "unknown"}
    for _ in range(3):
        for host, user, session in ((first, ADA, 1), (second, field_of("bob"), 2)):
            if host.beat() != "ok":
                assert host.begin() == "reset"
                assert host.list((user, session, 1.0)) == "ok"
    assert [host.beat() for host in hosts] == ["ok", "ok"]
    users = partition.redis("HKEYS", KEYS.users)
    assert sorted(users) == [ADA, field_of("bob")]
    sessions = [host_of(partition.meta(f"h{name}")).sessions for name in "ab"]
    assert sessions == [1, 1]


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


def test_what_an_earlier_release_writes_is_no_damage(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    first, second = hosts
    first.login(1)
    number = partition.meta("n")
    second.login(2, user=field_of("bob"))
    partition.redis("HSET", KEYS.meta, "n", number)  # it does not know that field
    assert first.beat() == "ok"
    partition.redis("HDEL", KEYS.users, ADA)
    assert second.beat() == "damaged"


# --- begin ----------------------------------------------------------------------------------


def test_a_process_is_replaced_by_an_earlier_one_only_if_its_beat_stands_still(
    partition: Partition,
) -> None:
    earlier, later = (Host(partition, "a", nonce=nonce) for nonce in (7, 8))
    later.follow()
    seen = host_of(partition.meta("ha")).beat
    partition.step_s = 3_600.0  # which looks as if it had been silent for long
    assert earlier.begin(take=0) == "replaced"
    later.beat()
    assert earlier.begin(take=seen) == "replaced"
    seen = host_of(partition.meta("ha")).beat
    earlier.epoch = later.epoch
    assert earlier.begin(take=seen) == "reset"


def test_a_host_that_begins_again_and_again_leaves_nothing_behind(
    partition: Partition,
) -> None:
    host = Host(partition, "a")
    for _ in range(5):
        host.begin()
    names = partition.redis("HKEYS", KEYS.meta)
    assert [name for name in names if name[:1] == b"i"] == [b"i1"]


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


def test_each_look_tells_the_lease_of_the_host_that_began_last(
    partition: Partition, hosts: tuple[Host, Host]
) -> None:
    looks = [partition.look() for _ in range(2)]
    assert [(word, lease) for word, *_, lease in looks] == [
        (b"ok", 1_000_000 * LEASE_S),
        (b"later", 1_000_000 * LEASE_S),
    ]
