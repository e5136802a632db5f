"""The scenario `kafka`: what an outlet to Kafka costs the sidecar, and how fast it is.

A sidecar whose log is full starts with an outlet that begins at the oldest record. Its CPU
is compared with that of a start with an outlet that has nothing to send: so it is the cost
of all that a record takes, from the disk to the acknowledgement, in all threads.
"""

import importlib.util
import time
from contextlib import closing
from typing import Final, NamedTuple

from liveness.bench import BenchOptions
from liveness.bench.figures import Figure
from liveness.bench.load import LoadError, LoadGateway, LoadUsers
from liveness.bench.program import temporary_folder
from liveness.bench.sidecar_process import SidecarProcess, fresh_sidecar
from liveness.bench.systems import LONG_S
from liveness.console.progress import Stage

# The floors, for this many users or more.
PROMISED_USERS: Final = 100_000
RECORDS_PER_S: Final = 100_000.0
CPU_NS: Final = 10_000.0  # a whole core at that rate

ROUNDS: Final = 2  # in which all users log in and out: four records of each
SETTLE_S: Final = 2.0  # until the work of a start is over
POLL_S: Final = 0.02
AWAITED_S: Final = 300.0  # far longer than anything takes
# An outlet, and the one before it that has nothing to send.
SENDS: Final = "oldest"
IDLES: Final = "newest"


def missing_for_kafka() -> str:
    """What is not installed, and what to do; "" if nothing is missing."""
    if importlib.util.find_spec("confluent_kafka") is None:
        return "confluent-kafka is not installed: pip install 'liveness[kafka]'"
    return ""


class _Drain(NamedTuple):
    """Of one drain of the log: records a second, and nanoseconds of CPU a record."""

    rate: float
    cpu_ns: float


def kafka(options: BenchOptions, stage: Stage) -> list[Figure]:
    """What it takes to send the records of a log to Kafka."""
    # Imported here: the other scenarios run without the package.
    from liveness.bench.kafka_mock import KafkaMock

    with (
        temporary_folder(options.folder) as own,
        KafkaMock(own) as cluster,
        fresh_sidecar(options.folder, timeout_s=LONG_S) as sidecar,
    ):
        cluster.start()
        stage("users log in and out", None)
        records = _fill(sidecar, options.users)
        runs = []
        for number in range(1, options.rounds + 1):
            stage(f"the log is sent to Kafka, run {number}", None)
            runs.append(_drain(sidecar, cluster.brokers, f"run-{number}", records))
            cluster.check()
    is_promised = options.users >= PROMISED_USERS
    rate, cpu_ns = max(run.rate for run in runs), min(run.cpu_ns for run in runs)
    return [
        Figure(
            "kafka", "records a second", rate, "/s",
            least=RECORDS_PER_S if is_promised else None,
        ),
        Figure(
            "kafka", "server CPU a record", cpu_ns, "ns",
            most=CPU_NS if is_promised else None,
        ),
    ]  # fmt: skip


def _fill(sidecar: SidecarProcess, count: int) -> int:
    """Fill the log; return how many records it has."""
    users = LoadUsers(count)
    logins, logouts = users.logins(range(count)), users.logouts(range(count))
    sidecar.start()
    with LoadGateway(sidecar.socket) as gateway:
        for _ in range(ROUNDS):
            gateway.send(logins)
            gateway.send(logouts)
        gateway.ping()
    sidecar.stop()
    return 2 * ROUNDS * count


def _drain(sidecar: SidecarProcess, brokers: str, name: str, records: int) -> _Drain:
    """Send the whole log to a topic, after a start with nothing to send."""
    from liveness.bench.kafka_mock import TopicCount

    _configure(sidecar, brokers, name, IDLES)
    sidecar.start()
    time.sleep(SETTLE_S)
    idle_s = sidecar.cpu_s()
    sidecar.stop()
    _configure(sidecar, brokers, name, SENDS)
    with closing(TopicCount(brokers, name)) as count:
        sidecar.start()
        began, before = time.perf_counter(), count.read()
        while (now := count.read()) < records:
            sidecar.check()
            if time.perf_counter() > began + AWAITED_S:
                raise LoadError(f"of {records:,} records, {now:,} reached the topic")
            time.sleep(POLL_S)
        took_s = time.perf_counter() - began
        time.sleep(max(0.0, SETTLE_S - took_s))
        cpu_s = sidecar.cpu_s() - idle_s
        sidecar.stop()
    return _Drain((records - before) / took_s, cpu_s / records * 1e9)


def _configure(sidecar: SidecarProcess, brokers: str, name: str, begin: str) -> None:
    """Give the sidecar one outlet, that is new to it, to the topic of this name."""
    (sidecar.folder / "settings.toml").write_text(
        f'[kafka.{name}-{begin}]\nbrokers = "{brokers}"\ntopic = "{name}"\n'
        f'begin = "{begin}"\n'
    )
