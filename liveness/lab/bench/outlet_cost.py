"""The scenario `outlets`: how fast they send, and that a dead one slows nothing down.

Each sends the records of a log that was written beforehand, by a real sidecar; nothing
else happens meanwhile. Dead outlets are compared with none, over the load of transitions.
"""

import importlib.util
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from liveness.console.progress import Stage
from liveness.lab.bench import BenchOptions
from liveness.lab.bench.floors import DECIDED_MS
from liveness.lab.bench.kafka_cost import kafka
from liveness.lab.bench.program import Window, temporary_folder
from liveness.lab.bench.sidecar_process import SidecarProcess, linked_sidecar
from liveness.lab.bench.systems import LONG_S
from liveness.lab.bench.transitions import TransitionCosts, TransitionLoad
from liveness.lab.bench.webhook_receiver import REFUSED, WebhookReceiver
from liveness.lab.common.figures import Figure
from liveness.lab.common.load import LoadError, LoadGateway, LoadUsers

# The floors, for this many users or more.
PROMISED_USERS: Final = 100_000
WEBHOOK_PER_S: Final = 20_000.0
KAFKA_PER_S: Final = 100_000.0
# What dead outlets may add to the CPU of a keepalive: as much as two runs differ.
DEAD_RATIO: Final = 1.1

LONGEST_S: Final = 10.0
AWAITED_S: Final = 120.0
POLL_S: Final = 0.005
# A secret of the bench, which guards nothing.
SECRET: Final = "whsec_" + "YmVuY2gg" * 4


def missing_for_outlets() -> str:
    """What is not installed, and what to do; "" if nothing is missing."""
    for module, extra in (
        ("standardwebhooks", "webhooks"),
        ("confluent_kafka", "kafka"),
    ):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: pip install 'liveness-sidecar[sidecar,{extra}]'"
    return ""


def outlets(options: BenchOptions, stage: Stage) -> list[Figure]:
    """How fast outlets send, what a record costs, and what dead outlets cost."""
    with temporary_folder(options.folder) as folder:
        stage("a log is written", None)
        records = _write_log(folder, options.users)
        per_s = KAFKA_PER_S if _is_promised(options) else None
        figures = [
            *_webhook(options, folder, records, stage),
            *kafka(options, folder, records, stage, least_per_s=per_s),
        ]
    return [*figures, *_dead(options, stage)]


def _is_promised(options: BenchOptions) -> bool:
    return options.users >= PROMISED_USERS


def _write_log(folder: Path, count: int) -> int:
    """Log users in and out, twice; return how many records that made."""
    users = LoadUsers(count)
    logins, logouts = users.logins(range(count)), users.logouts(range(count))
    with SidecarProcess(folder, timeout_s=LONG_S) as sidecar:
        sidecar.start()
        with LoadGateway(sidecar.socket) as gateway:
            for frames in (logins, logouts) * 2:
                gateway.send(frames)
                gateway.ping()
        sidecar.stop()
    return 4 * count


# --- how fast -------------------------------------------------------------------------


def _webhook(
    options: BenchOptions, folder: Path, records: int, stage: Stage
) -> Iterator[Figure]:
    stage("a webhook", None)
    with WebhookReceiver() as receiver:
        settings = (
            f'[webhooks.bench]\nurl = "{receiver.url}"\nsecret = "{SECRET}"\n'
            'begin = "oldest"\n'
        )
        with SidecarProcess(folder, timeout_s=LONG_S, settings=settings) as sidecar:
            sidecar.start()
            with Window(sidecar) as window:
                receiver.may_answer.set()
                _wait_for(records, lambda: receiver.events, sidecar)
    per_s, cost_ns = records / window.took_s, window.server_ns(records)
    least = WEBHOOK_PER_S if _is_promised(options) else None
    yield Figure("outlets", "webhook: records a second", per_s, "", least=least)
    yield Figure("outlets", "webhook: server CPU a record", cost_ns, "ns")


def _wait_for(records: int, count: Callable[[], int], sidecar: SidecarProcess) -> None:
    """Wait until so many records have arrived.

    Raises:
        LoadError: They did not, within two minutes.
    """
    until = time.perf_counter() + AWAITED_S
    while (found := count()) < records:
        sidecar.check()
        if time.perf_counter() > until:
            raise LoadError(f"{records - found} records of {records} did not arrive")
        time.sleep(POLL_S)


# --- dead outlets ---------------------------------------------------------------------

NONE: Final = "none"
DEAD: Final = "dead"  # refused, and without an answer
REFUSING: Final = "refusing"  # its receiver refuses each record for good
KINDS: Final = (NONE, DEAD, REFUSING)


def _dead(options: BenchOptions, stage: Stage) -> Iterator[Figure]:
    """The runs alternate; the best of each kind counts, and the median of the ratios."""
    load = TransitionLoad(min(options.seconds, LONGEST_S))
    runs: dict[str, list[TransitionCosts]] = {kind: [] for kind in KINDS}
    for number in range(1, options.rounds + 1):
        for kind in KINDS:
            stage(f"outlets: {kind}, run {number}", None)
            with (
                _outlets_of(kind) as settings,
                linked_sidecar(options.folder, timeout_s=LONG_S, settings=settings) as (
                    sidecar,
                    gateway,
                ),
            ):
                load.begin(gateway)
                runs[kind].append(load.run(sidecar, gateway))
    is_promised = _is_promised(options)
    for kind in KINDS:
        best = TransitionCosts(*map(min, zip(*runs[kind], strict=True)))
        most_ms = DECIDED_MS if is_promised and kind != NONE else None
        rows: list[tuple[str, float, str, float | None]] = [
            ("CPU a transition", best.transition_ns, "ns", None),
            ("CPU a keepalive", best.keepalive_ns, "ns", None),
            ("decided p99", best.decided_ms, "ms", most_ms),
            ("delivered p99", best.delivered_ms, "ms", None),
        ]
        if kind == DEAD:
            pairs = [*zip(runs[NONE], runs[kind], strict=True)]
            most = DEAD_RATIO if is_promised else None
            rows += [
                (
                    f"CPU a {what}, median of the ratios to none",
                    median(
                        getattr(it, name) / getattr(base, name) for base, it in pairs
                    ),
                    "x",
                    limit,
                )
                for what, name, limit in (
                    # It includes what librdkafka does to connect again.
                    ("transition", "transition_ns", None),
                    ("keepalive", "keepalive_ns", most),
                )
            ]
        for name, value, unit, limit in rows:
            yield Figure("outlets", f"{kind}: {name}", value, unit, limit)


@contextmanager
def _outlets_of(kind: str) -> Iterator[str]:
    """The settings of outlets."""
    if kind == NONE:
        yield ""
        return
    with ExitStack() as stack:
        if kind == REFUSING:
            refusing = stack.enter_context(WebhookReceiver(answer=REFUSED))
            refusing.may_answer.set()
            yield f'[webhooks.refusing]\nurl = "{refusing.url}"\nsecret = "{SECRET}"\n'
            return
        silent = stack.enter_context(WebhookReceiver(answer=b""))
        silent.may_answer.set()
        # Bound and not listening: connections are refused.
        closed = stack.enter_context(socket.socket())
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        yield (
            f'[webhooks.silent]\nurl = "{silent.url}"\nsecret = "{SECRET}"\n'
            f'[webhooks.closed]\nurl = "http://127.0.0.1:{port}/"\n'
            f'secret = "{SECRET}"\n'
            f'[kafka.closed]\nbrokers = "127.0.0.1:{port}"\ntopic = "users"\n'
        )
