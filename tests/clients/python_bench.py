"""The bench program of `proto/clients`, for the Python client: `--sidecar PATH`, and numbers.

It prints a line of JSON: events reported, and the CPU and wall seconds that they took.
"""

import json
import resource
import sys
from argparse import ArgumentParser

import trio

import liveness


async def run(path: str, users: int, rounds: int) -> None:
    """Logs the users in, and then reports a keepalive of each, round after round."""
    async with liveness.connect(path, name="bench-python") as sidecar:
        conns = [
            (f"user-{number + 1:07}", sidecar.new_conn()) for number in range(users)
        ]
        for uid, conn in conns:
            sidecar.login(uid, conn=conn)
        await sidecar.flush()
        began, wall = _cpu_s(), trio.current_time()
        for _ in range(rounds):
            for uid, conn in conns:
                sidecar.keepalive(uid, conn=conn)
            await sidecar.flush()
        spent = {"cpu_s": _cpu_s() - began, "wall_s": trio.current_time() - wall}
    print(json.dumps({"events": users * rounds, **spent}))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Runs it as the command line asks."""
    parser = ArgumentParser()
    parser.add_argument("--sidecar", required=True)
    parser.add_argument("--users", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args(sys.argv[1:])
    trio.run(run, options.sidecar, options.users, options.rounds)


if __name__ == "__main__":
    main()
