"""A gateway process that measures what the client library costs it.

    python -m liveness.lab.bench.client_gateway SOCKET BACKEND USERS SECONDS

BACKEND is asyncio, trio, or threads for the library without an event loop. It prints lines
of JSON: each stage as it begins, and finally the costs.
"""

import json
import math
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Final, TypeAlias

import anyio

import liveness

CALLS: Final = ("login", "keepalive", "message", "logout")
ROUNDS: Final = 3
READ_AT_ONCE: Final = 100
SENDS_EVERY_S: Final = 12.5
TICK_S: Final = 0.01
# Without the offlines that the logouts cause: they would be read during the next window.
KINDS: Final = ("moved",)
# Far longer than any pause between two lines, which may take minutes with a million users.
HUNG_S: Final = 300

Call: TypeAlias = Callable[..., None]
Connection: TypeAlias = tuple[str, int]
Costs: TypeAlias = dict[str, float]


def main(path: str, backend: str, users: str, seconds: str) -> None:
    """Measures the library with one backend, and prints the costs."""
    random.seed(0)
    uids, window_s = [f"user-{n:07}" for n in range(int(users))], float(seconds)
    if backend == "threads":
        costs = _threads(path, uids)
    else:
        costs = anyio.run(_loop, path, backend, uids, window_s, backend=backend)
    _print(costs=costs)


def _threads(path: str, uids: Sequence[str]) -> Costs:
    """Nanoseconds of each call."""
    costs: Costs = {}
    with liveness.connect_sync(
        path, name="bench-threads", kinds=KINDS, strict=True
    ) as sidecar:
        sidecar.connected()
        for _ in _rounds(sidecar, uids, costs):
            sidecar.flush()
        _check(sidecar.stats())
    return costs


async def _loop(path: str, backend: str, uids: Sequence[str], window_s: float) -> Costs:
    """The same, and the CPU seconds of a gateway with and without the library."""
    costs: Costs = {}
    _print(stage="users chat, without the library", seconds=window_s)
    users = _shuffled([(uid, conn) for conn, uid in enumerate(uids)])
    began_s = time.process_time()
    await _chat(users, [_do_nothing], window_s)
    costs["without"] = time.process_time() - began_s
    async with liveness.connect(
        path, name=f"bench-{backend}", kinds=KINDS, strict=True
    ) as sidecar:
        await sidecar.connected()
        for _ in _rounds(sidecar, uids, costs):
            await sidecar.flush()
        users = [(uid, sidecar.new_conn()) for uid in uids]
        for uid, conn in users:
            sidecar.login(uid, conn=conn)
        await sidecar.flush()
        _print(stage="users chat, with the library", seconds=window_s)
        calls = [sidecar.keepalive, sidecar.message]
        users = _shuffled(users)
        began_s = time.process_time()
        await _chat(users, calls, window_s)
        await sidecar.flush()  # the last reports count too
        costs["with"] = time.process_time() - began_s
        _check(sidecar.stats())
    return costs


def _rounds(
    sidecar: liveness.Sidecar | liveness.SyncSidecar, uids: Sequence[str], costs: Costs
) -> Iterator[None]:
    """Times each call for all users in random order; the best of the rounds counts.

    The caller has to flush the reports each time that this yields.
    """
    for number in range(1, ROUNDS + 1):
        _print(stage=f"everyone logs in, sends and logs out, {number} of {ROUNDS}")
        users = [(uid, sidecar.new_conn()) for uid in uids]
        for name in CALLS:
            took_ns = _timed(getattr(sidecar, name), _shuffled(users))
            costs[name] = min(took_ns, costs.get(name, math.inf))
            yield


def _timed(call: Call, users: Sequence[Connection]) -> float:
    """Nanoseconds of one call, with its share of the loop around it.

    A gateway has just read the user's line when it makes the call. So uid and conn are
    brought into the processor's cache first; the library's data about them is not.
    """
    took_ns = 0
    for start in range(0, len(users), READ_AT_ONCE):
        batch = users[start : start + READ_AT_ONCE]
        for _uid, _conn in batch:
            pass  # loads them into the cache
        began = time.perf_counter_ns()
        for uid, conn in batch:
            call(uid, conn=conn)
        took_ns += time.perf_counter_ns() - began
    return took_ns / len(users)


async def _chat(
    users: Sequence[Connection], calls: Sequence[Call], seconds: float
) -> None:
    """Makes one call for each user every 12.5 s, alternating between *calls*."""
    rate = len(users) / SENDS_EVERY_S
    pairs = zip(cycle(calls), cycle(users))
    began, done = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - began) < seconds:
        due = int(passed_s * rate)
        for call, (uid, conn) in islice(pairs, due - done):
            call(uid, conn=conn)
        done = due
        await anyio.sleep(TICK_S)


def _do_nothing(_uid: str, /, *, conn: int) -> None:
    """Stands in for the library: only the call itself costs."""


def _shuffled(users: Sequence[Connection]) -> list[Connection]:
    return random.sample(users, len(users))


def _check(stats: liveness.Stats) -> None:
    """Raises if the link broke, or reports were ignored or refused: costs are wrong."""
    if stats.links != 1 or stats.ignored or stats.refused:
        raise SystemExit(f"the costs are wrong: reports were lost or refused: {stats}")


def _print(**message: object) -> None:
    """Prints a line for the bench; the alarm ends this process if the next never comes."""
    signal.alarm(HUNG_S)
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
