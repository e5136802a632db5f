"""The client library in gateway processes: what each call costs, and its share of CPU."""

import json
import select
import signal
import subprocess
from collections.abc import Iterator
from typing import Any, Final

from liveness.console.progress import Stage, time_share
from liveness.lab.bench import BenchOptions
from liveness.lab.bench.program import PYTHON, child
from liveness.lab.bench.sidecar_process import SidecarProcess, fresh_sidecar
from liveness.lab.common.figures import Figure
from liveness.lab.common.load import LoadError

CALL_NS: Final = 400.0
LIBRARY_PERCENT: Final = 2.0

# The users that the floors are promised for. A million would take minutes, with the same
# result.
MOST_USERS: Final = 100_000
LOOPS: Final = ("asyncio", "trio")
WINDOW_S: Final = 10.0
CHECK_EVERY_S: Final = 0.5
TIMEOUT_S: Final = 3_600.0  # no user falls silent here
CALLS: Final = ("keepalive", "message", "login", "logout")


def client(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Measures the client library with asyncio, with trio, and without an event loop."""
    window_s, users = min(options.seconds, WINDOW_S), min(options.users, MOST_USERS)
    figures: list[Figure] = []
    with fresh_sidecar(options.folder, timeout_s=TIMEOUT_S) as sidecar:
        sidecar.start()
        for backend in (*LOOPS, "threads"):
            costs = _costs(sidecar, backend, users, window_s, stage)
            figures += _figures(backend, costs, window_s)
        sidecar.check()
    return figures


def _costs(
    sidecar: SidecarProcess, backend: str, users: int, window_s: float, stage: Stage
) -> dict[str, float]:
    """Runs a gateway that measures itself, and shows its progress."""
    words = [*PYTHON, "liveness.lab.bench.client_gateway", str(sidecar.socket)]
    words += [backend, str(users), str(window_s)]
    with child(*words, env={}, stdout=subprocess.PIPE) as gateway:
        for line in _lines(gateway, sidecar):
            message: dict[str, Any] = json.loads(line)
            if "costs" in message:
                costs: dict[str, float] = message["costs"]
                return costs
            seconds = message.get("seconds")
            share = time_share(seconds) if seconds else None
            stage(f"{backend}: {message['stage']}", share)
        code = gateway.wait()
    how = "hung" if code == -signal.SIGALRM else f"ended with code {code}"
    raise LoadError(f"a gateway process ({backend}) {how}")


def _lines(
    gateway: subprocess.Popen[bytes], sidecar: SidecarProcess
) -> Iterator[bytes]:
    """The output of the gateway; raises if the sidecar ends meanwhile."""
    assert gateway.stdout is not None
    while True:
        if select.select([gateway.stdout], [], [], CHECK_EVERY_S)[0]:
            line = gateway.stdout.readline()
            if not line:
                return
            yield line
        else:
            sidecar.check()


def _figures(
    backend: str, costs: dict[str, float], window_s: float
) -> Iterator[Figure]:
    has_loop = backend in LOOPS
    for name in CALLS:
        most = CALL_NS if has_loop else None
        yield Figure("client", f"{backend}: {name}", costs[name], "ns", most)
    if has_loop:
        with_it, without = (100 * costs[key] / window_s for key in ("with", "without"))
        for name, percent, most in (
            ("library CPU", with_it - without, LIBRARY_PERCENT),
            ("gateway CPU with it", with_it, None),
            ("gateway CPU without", without, None),
        ):
            yield Figure("client", f"{backend}: {name}", percent, "%", most)
