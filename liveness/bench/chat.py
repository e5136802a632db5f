"""A gateway process with the client library in it: what that costs, from inside.

    python -m liveness.bench.chat SOCKET FACE USERS SECONDS

FACE is asyncio, trio, or threads for the one without an event loop. In lines of JSON on
stdout it says what it is about to do, and at last what it found.
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
SPEAKS_EVERY_S: Final = 12.5
TICK_S: Final = 0.01
# What the logouts here bring about would be read amid the next measurement.
KINDS: Final = ("moved",)
# Between two lines it takes seconds, with a million users minutes.
HUNG_S: Final = 300

Reports: TypeAlias = Callable[..., None]
Connection: TypeAlias = tuple[str, int]
Costs: TypeAlias = dict[str, float]


def main(path: str, face: str, users: str, seconds: str) -> None:
    """Measures with one face of the library, and prints it."""
    random.seed(0)
    uids, window_s = [f"user-{n:07}" for n in range(int(users))], float(seconds)
    if face == "threads":
        costs = _threads(path, uids)
    else:
        costs = anyio.run(_loop, path, face, uids, window_s, backend=face)
    _say(costs=costs)


def _threads(path: str, uids: Sequence[str]) -> Costs:
    """Nanoseconds that each call takes."""
    costs: Costs = {}
    with liveness.connect_sync(path, name="bench-threads", kinds=KINDS) as sidecar:
        sidecar.connected()
        for _ in _rounds(sidecar, uids, costs):
            sidecar.flush()
        _check(sidecar.stats())
    return costs


async def _loop(path: str, face: str, uids: Sequence[str], window_s: float) -> Costs:
    """The same, and the CPU seconds of a gateway without and with the library."""
    costs: Costs = {}
    _say(stage="users chat, without the library", seconds=window_s)
    nobody = _shuffled([(uid, conn) for conn, uid in enumerate(uids)])
    began_s = time.process_time()
    await _chat(nobody, [_nothing], window_s)
    costs["without"] = time.process_time() - began_s
    async with liveness.connect(path, name=f"bench-{face}", kinds=KINDS) as sidecar:
        await sidecar.connected()
        for _ in _rounds(sidecar, uids, costs):
            await sidecar.flush()
        users = [(uid, sidecar.new_conn()) for uid in uids]
        for uid, conn in users:
            sidecar.login(uid, conn=conn)
        await sidecar.flush()
        _say(stage="users chat, with the library", seconds=window_s)
        calls = [sidecar.keepalive, sidecar.message]
        users = _shuffled(users)
        began_s = time.process_time()
        await _chat(users, calls, window_s)
        await sidecar.flush()  # what was said last is to be paid for too
        costs["with"] = time.process_time() - began_s
        _check(sidecar.stats())
    return costs


def _rounds(
    sidecar: liveness.Sidecar | liveness.SyncSidecar, uids: Sequence[str], costs: Costs
) -> Iterator[None]:
    """Times each call for everyone in random order; the best of some rounds counts.

    What was reported has to be flushed whenever this yields.
    """
    for number in range(1, ROUNDS + 1):
        _say(stage=f"everyone logs in, speaks and logs out, {number} of {ROUNDS}")
        users = [(uid, sidecar.new_conn()) for uid in uids]
        for name in CALLS:
            took_ns = _timed(getattr(sidecar, name), _shuffled(users))
            costs[name] = min(took_ns, costs.get(name, math.inf))
            yield


def _timed(call: Reports, users: Sequence[Connection]) -> float:
    """Nanoseconds of one call, its place in a loop included.

    A gateway has just read the line of the user it reports, so that uid and conn are in
    the processor's cache; what the library knows of them is not.
    """
    took_ns = 0
    for start in range(0, len(users), READ_AT_ONCE):
        batch = users[start : start + READ_AT_ONCE]
        for _uid, _conn in batch:
            pass  # fetches them
        began = time.perf_counter_ns()
        for uid, conn in batch:
            call(uid, conn=conn)
        took_ns += time.perf_counter_ns() - began
    return took_ns / len(users)


async def _chat(
    users: Sequence[Connection], calls: Sequence[Reports], seconds: float
) -> None:
    """Lets users speak, each every 12.5 s and by one of *calls* after the other."""
    rate = len(users) / SPEAKS_EVERY_S
    signs = zip(cycle(calls), cycle(users))
    began, done = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - began) < seconds:
        due = int(passed_s * rate)
        for call, (uid, conn) in islice(signs, due - done):
            call(uid, conn=conn)
        done = due
        await anyio.sleep(TICK_S)


def _nothing(_uid: str, /, *, conn: int) -> None:
    """What a call costs that does nothing."""


def _shuffled(users: Sequence[Connection]) -> list[Connection]:
    return random.sample(users, len(users))


def _check(stats: liveness.Stats) -> None:
    """Raise if anything was for nothing: it would have cost too little, or too much."""
    if stats.links != 1 or stats.ignored or stats.refused:
        raise SystemExit(f"not as it should be: {stats}")


def _say(**what: object) -> None:
    """Tell the bench; it would wait for ever for a process that hangs."""
    signal.alarm(HUNG_S)
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
