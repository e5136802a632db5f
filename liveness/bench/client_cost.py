"""The client library in gateways of their own: the cost of its calls, and its share."""

import json
import select
import signal
import subprocess
from collections.abc import Iterator
from typing import Any, Final

from liveness.bench import BenchOptions, process
from liveness.bench.figures import Figure
from liveness.bench.load import LoadError
from liveness.bench.process import PYTHON
from liveness.bench.sidecar_process import Server, server
from liveness.console.progress import Stage, passing

CALL_NS: Final = 400.0
LIBRARY_PERCENT: Final = 2.0

# What is promised is of so many; with a million it would be minutes for the same.
MOST_USERS: Final = 100_000
LOOPS: Final = ("asyncio", "trio")
WINDOW_S: Final = 10.0
LOOK_S: Final = 0.5
TIMEOUT_S: Final = 3_600.0  # nobody falls silent here
CALLS: Final = ("keepalive", "message", "login", "logout")


def client(options: BenchOptions, stage: Stage) -> list[Figure]:
    """What the client library costs a gateway."""
    window_s = min(options.seconds, WINDOW_S)
    figures: list[Figure] = []
    with server(options.folder, timeout_s=TIMEOUT_S) as sidecar:
        sidecar.start()
        for face in (*LOOPS, "threads"):
            users = min(options.users, MOST_USERS)
            costs = _costs(sidecar, face, users, window_s, stage)
            figures += _calls(face, costs)
            if face in LOOPS:
                figures += _shares(face, costs, window_s)
        sidecar.check()
    return figures


def _costs(
    sidecar: Server, face: str, users: int, window_s: float, stage: Stage
) -> dict[str, float]:
    """Let a gateway measure, and tell of it while it does."""
    arguments = [str(sidecar.socket), face, str(users), str(window_s)]
    with process.child(
        *PYTHON, "liveness.bench.chat", *arguments, env={}, stdout=subprocess.PIPE
    ) as gateway:
        for line in _lines(gateway, sidecar):
            told: dict[str, Any] = json.loads(line)
            if "costs" in told:
                costs: dict[str, float] = told["costs"]
                return costs
            seconds = told.get("seconds")
            stage(f"{face}: {told['stage']}", passing(seconds) if seconds else None)
        code = gateway.wait()
    how = "hung" if code == -signal.SIGALRM else f"ended with code {code}"
    raise LoadError(f"a gateway process ({face}) {how}")


def _lines(gateway: subprocess.Popen[bytes], sidecar: Server) -> Iterator[bytes]:
    """What it says; once the server has ended, waiting for more is no use."""
    assert gateway.stdout is not None
    while True:
        if select.select([gateway.stdout], [], [], LOOK_S)[0]:
            line = gateway.stdout.readline()
            if not line:
                return
            yield line
        else:
            sidecar.check()


def _calls(face: str, costs: dict[str, float]) -> Iterator[Figure]:
    for name in CALLS:
        most = CALL_NS if face in LOOPS else None
        yield Figure("client", f"{face}: {name}", costs[name], "ns", most)


def _shares(face: str, costs: dict[str, float], window_s: float) -> Iterator[Figure]:
    with_it, without = (100 * costs[one] / window_s for one in ("with", "without"))
    library = with_it - without
    yield Figure("client", f"{face}: library CPU", library, "%", LIBRARY_PERCENT)
    yield Figure("client", f"{face}: gateway CPU with it", with_it, "%")
    yield Figure("client", f"{face}: gateway CPU without", without, "%")
