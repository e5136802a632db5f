"""What an outlet to Kafka costs the sidecar, and how fast it is.

A sidecar with a full log starts with an outlet that begins at the oldest record. Its CPU,
less that of a start with an outlet that has nothing to send, is the cost of the records from
the disk to the acknowledgement, in all threads.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from liveness.console.progress import Stage
from liveness.lab.bench import BenchOptions
from liveness.lab.bench.program import temporary_folder
from liveness.lab.bench.sidecar_process import SidecarProcess
from liveness.lab.bench.systems import LONG_S
from liveness.lab.common.figures import Figure
from liveness.lab.common.load import LoadError

SETTLE_S: Final = 2.0  # until the work of a start is over
POLL_S: Final = 0.02
AWAITED_S: Final = 300.0  # far longer than anything takes
# An outlet, and the one before it that has nothing to send.
SENDS: Final = "oldest"
IDLES: Final = "newest"


class _Drain(NamedTuple):
    """The cost of sending the whole log: records a second, and ns of CPU a record."""

    rate: float
    cpu_ns: float


def kafka(
    options: BenchOptions,
    folder: Path,
    records: int,
    stage: Stage,
    *,
    least_per_s: float | None,
) -> Iterator[Figure]:
    """What it takes to send the records of a log to Kafka.

    Args:
        options: The parameters of the run.
        folder: The folder of a stopped sidecar that wrote the log.
        records: How many there are.
        stage: Shows the progress.
        least_per_s: The floor.
    """
    # Imported here: the other scenarios run without the package.
    from liveness.lab.bench.kafka_mock import KafkaMock

    with temporary_folder(options.folder) as own, KafkaMock(own) as cluster:
        cluster.start()
        runs = []
        for number in range(1, options.rounds + 1):
            stage(f"the log is sent to Kafka, run {number}", None)
            runs.append(_drain(folder, cluster.brokers, f"run-{number}", records))
            cluster.check()
    rate, cpu_ns = max(run.rate for run in runs), min(run.cpu_ns for run in runs)
    yield Figure("outlets", "Kafka: records a second", rate, "", least=least_per_s)
    most_ns = None if least_per_s is None else 1e9 / least_per_s
    yield Figure("outlets", "Kafka: server CPU a record", cpu_ns, "ns", most_ns)


def _drain(folder: Path, brokers: str, topic: str, records: int) -> _Drain:
    """Send the whole log to a topic, after a start with nothing to send."""
    from liveness.lab.bench.kafka_mock import TopicCount

    with _sidecar(folder, brokers, topic, IDLES) as sidecar:
        sidecar.start()
        time.sleep(SETTLE_S)
        idle_s = sidecar.cpu_s()
        sidecar.stop()
    with (
        _sidecar(folder, brokers, topic, SENDS) as sidecar,
        closing(TopicCount(brokers, topic)) as count,
    ):
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


def _sidecar(folder: Path, brokers: str, topic: str, begin: str) -> SidecarProcess:
    """A sidecar with one outlet to this topic, new to its database."""
    settings = (
        f'[kafka.{topic}-{begin}]\nbrokers = "{brokers}"\ntopic = "{topic}"\n'
        f'begin = "{begin}"\n'
    )
    return SidecarProcess(folder, timeout_s=LONG_S, settings=settings)
