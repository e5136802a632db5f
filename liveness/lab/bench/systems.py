"""The systems that are compared: each is a process, driven with bytes encoded beforehand."""

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias

from liveness.lab.bench import BenchOptions
from liveness.lab.bench.machine import available_bytes
from liveness.lab.bench.sidecars import linked_sidecar, running_redis, watched
from liveness.lab.common.figures import OURS
from liveness.lab.common.load import (
    BATCH,
    LoadGateway,
    LoadUsers,
    Notices,
    cut,
    now,
    uid,
)
from liveness.lab.common.processes import PYTHON, Program, missing_program
from liveness.lab.common.redis_link import RedisLink, command

# The timeout of all users that do not fall silent: longer than any run. A longer one would
# cost no system less.
LONG_S: Final = 3_600
# Users that log in at a time.
LOGINS_AT_ONCE: Final = 100_000
# Memory per user, of system and load together: more than any system needed.
USER_BYTES: Final = 1_000

SETEX: Final = "redis"
VALKEY: Final = "valkey"  # left out where it is not installed
# The systems that the sidecar is compared with. docs/performance.md has these texts too.
COMPARED_SYSTEMS: Final = {
    SETEX: "redis-server, a key with a TTL for each user",
    "zset": "redis-server, a sorted set of deadlines, swept every second",
    VALKEY: "valkey-server, a key with a TTL for each user, if it is installed",
    "asyncio": "a process with a timer for each user",
}

EXPIRED: Final = "__keyevent@0__:expired"
ONLINE: Final = "online"  # the sorted set
# The pause between two searches of the sorted set for due users, and the most users that a
# search returns.
SWEEP_S: Final = 1.0
SWEEP_AT_ONCE: Final = 1_000


@dataclass(eq=False)
class GatewaySystem:
    """A server that speaks the wire protocol, and a gateway. Users are numbered from 0."""

    program: Program
    gateway: LoadGateway
    users: LoadUsers

    def log_in(self, numbers: range) -> None:
        """Bring users online with a long timeout; return once that is durable."""
        for part in cut(numbers, LOGINS_AT_ONCE):
            self.gateway.send(self.users.logins(part, timeout=LONG_S))
        self.gateway.ping()

    def requests(self, numbers: Sequence[int], size: int) -> bytes:
        if size == 1:
            return b"".join(map(self.users.single, numbers))
        starts = range(0, len(numbers), size)
        return b"".join(self.users.batch(numbers[at : at + size]) for at in starts)

    def write(self, data: bytes) -> None:
        self.gateway.send(data)
        self.gateway.ping()

    def fall_silent(self, number: int, timeout_s: int) -> None:
        self.gateway.send(self.users.single(number, "login", timeout=timeout_s))

    def wait_for_offlines(self, count: int, *, until: float) -> Sequence[Notices]:
        self.gateway.wait_for(count, until=until)
        return self.gateway.notices


@dataclass(eq=False)
class Setex:
    """A key for each user that expires unless it is set again; Redis then notifies.

    Replies are read once all commands are written. Offlines arrive on a link of their own,
    which is read when all have fallen silent and the first of them is due.
    """

    program: Program
    link: RedisLink
    offlines: RedisLink

    def log_in(self, numbers: range) -> None:
        """Send one activity of each: Redis has no separate login."""
        for part in cut(numbers, LOGINS_AT_ONCE):
            self.write(self.requests(part, BATCH) or self.requests(part, 1))

    def requests(self, numbers: Sequence[int], size: int) -> bytes:
        if size > 1:
            return b""  # no command sets several keys with an expiry
        return b"".join(self._activity([number], LONG_S) for number in numbers)

    def write(self, data: bytes) -> None:
        self.link.send(data)
        self.link.skip(data.count(b"*"))  # each command has exactly one

    def fall_silent(self, number: int, timeout_s: int) -> None:
        self.write(self._activity([number], timeout_s))

    def wait_for_offlines(self, count: int, *, until: float) -> Sequence[Notices]:
        found = list[Notices]()
        while len(found) < count and (left_s := until - time.perf_counter()) > 0:
            try:
                _, _, name = self.offlines.reply(left_s)
            except TimeoutError:
                break
            found.append(_silent([name]))
        return found

    def _activity(self, numbers: Sequence[int], timeout_s: int) -> bytes:
        (number,) = numbers
        return command("SETEX", uid(number), timeout_s, "gw-1")


class Zset(Setex):
    def requests(self, numbers: Sequence[int], size: int) -> bytes:
        parts = [numbers[at : at + size] for at in range(0, len(numbers), size)]
        return b"".join(self._activity(part, LONG_S) for part in parts)

    def wait_for_offlines(self, count: int, *, until: float) -> Sequence[Notices]:
        found, notices = 0, list[Notices]()
        while found < count and time.perf_counter() < until:
            due_s = f"{now().wall_ms / 1000:.6f}"
            search = ("ZRANGEBYSCORE", ONLINE, "-inf", due_s, "LIMIT", 0, SWEEP_AT_ONCE)
            if names := self.link(*search):
                self.link("ZREM", ONLINE, *names)
                notices.append(_silent(names))
                found += len(names)
            if len(names) < SWEEP_AT_ONCE:
                time.sleep(SWEEP_S)
        return notices

    def _activity(self, numbers: Sequence[int], timeout_s: int) -> bytes:
        due_s = now().wall_ms / 1000 + timeout_s
        # Distinct deadlines, as in practice, within one command too.
        pairs = (
            (f"{due_s + place * 1e-6:.6f}", uid(number))
            for place, number in enumerate(numbers)
        )
        return command("ZADD", ONLINE, *chain.from_iterable(pairs))


System: TypeAlias = GatewaySystem | Setex


def _silent(names: Sequence[bytes]) -> Notices:
    mono, wall_ms = now()
    return Notices(
        mono,
        [{"uid": name.decode(), "reason": "silence", "at": wall_ms} for name in names],
    )


# --- the systems of a run ---------------------------------------------------------------


def plan(options: BenchOptions) -> tuple[list[tuple[int, str]], list[str]]:
    """The runs in order, as users and system; and the ones left out, with the reasons."""
    left_out = dict.fromkeys(options.without, "by --without")
    if not shutil.which(_program(VALKEY)):
        left_out.setdefault(VALKEY, f"{_program(VALKEY)} is not installed")
    most = available_bytes() // USER_BYTES
    names = [name for name in (OURS, *COMPARED_SYSTEMS) if name not in left_out]
    runs = list[tuple[int, str]]()
    for users in sorted(set(options.sizes)):
        if users <= most:
            runs += [(users, name) for name in names]
        else:
            left_out[f"{users:,} users"] = f"there is memory for {most:,}"
    return runs, [f"{what}: {why}" for what, why in left_out.items()]


def missing_system(options: BenchOptions) -> str:
    for name in (SETEX, "zset"):
        if name not in options.without and (problem := missing_program(_program(name))):
            return f"{problem}, or leave it out with --without {name}"
    return ""


def _program(name: str) -> str:
    return "valkey-server" if name == VALKEY else "redis-server"


@contextmanager
def opened(name: str, folder: Path | None, users: int) -> Iterator[System]:
    if name == OURS:
        # With slots of a second, so that each activity moves its user to another one.
        with linked_sidecar(folder, timeout_s=LONG_S, slots=LONG_S) as (sidecar, link):
            yield GatewaySystem(sidecar, link, LoadUsers(users))
        return
    if name == "asyncio":
        with watched(folder, asyncio_server) as server:
            server.start()
            with LoadGateway(server.log.with_name("socket")) as link:
                yield GatewaySystem(server, link, LoadUsers(users))
        return
    words = ["--port", "0", "--notify-keyspace-events", "Ex"]
    with (
        running_redis(folder, *words, program=_program(name)) as (server, path),
        RedisLink(path) as commands,
        RedisLink(path) as offlines,
    ):
        offlines("SUBSCRIBE", EXPIRED)
        yield (Zset if name == "zset" else Setex)(server, commands, offlines)


def asyncio_server(folder: Path) -> Program:
    module, path = "liveness.lab.bench.asyncio_timers", str(folder / "socket")
    command, ready = [*PYTHON, module, path], re.compile("serving")
    return Program(name="asyncio", command=command, log=folder / "log", ready=ready)
