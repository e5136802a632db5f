"""A sidecar that may open no further file: links go on, newcomers wait."""

import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from itertools import count, islice
from pathlib import Path
from time import perf_counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from liveness.service.common.logs import REPEAT_LOG_S
from liveness.service.links.acceptor import PAUSE_S
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.sidecar import SOON_S, Sidecar, eventually

REFUSED = (
    "no connection can be accepted now; open ones go on, new ones wait: "
    "raise the limit of open files, or end some connections"
)
SOCKETS = ("gateway", "admin", "http")
CROWD = 30
LASTING_S = 0.2  # a file that is read is closed by then


def cpu_s(sidecar: Sidecar) -> float:
    fields = Path(f"/proc/{sidecar.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def allow_files(sidecar: Sidecar, files: int) -> None:
    _, most = resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE, (files, most))


def fire(gateway: Client, key: str) -> None:
    """Checks that a timer fires."""
    gateway.send("after", key, 0.1)
    assert gateway.take(1)[0]["key"] == key


@contextmanager
def few_files(sidecar: Sidecar, more: int) -> Iterator[None]:
    """For the block, it may open this many more files."""
    before, _ = resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE)
    lasting, until = sidecar.open_files, perf_counter() + LASTING_S
    while perf_counter() < until:
        lasting &= sidecar.open_files
    # The kernel gives the lowest number that is free, and none from the limit on.
    free = (number for number in count() if number not in lasting)
    allow_files(sidecar, next(islice(free, more, None)))
    try:
        yield
    finally:
        allow_files(sidecar, before)


class Scraper:
    """A connection to an HTTP door that stays, as that of a Prometheus does."""

    def __init__(self, sidecar: Sidecar) -> None:
        host, port = sidecar.line("ready")["http"].rsplit(":", 1)
        self.connection = HTTPConnection(host, int(port), timeout=SOON_S)
        self.get("/healthz")

    def get(self, path: str) -> tuple[int, str]:
        self.connection.request("GET", path)
        response = self.connection.getresponse()
        return response.status, response.read().decode()

    def close(self) -> None:
        self.connection.close()

    def put_off(self, socket: str) -> float:
        """How often a connection could not be accepted at this socket."""
        status, text = self.get("/metrics")
        assert status == 200
        (sample,) = [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "liveness_accepts_put_off_total"
            and sample.labels == {"socket": socket}
        ]
        return sample.value


def goes_on(gateway: Client, watcher: Client, uid: str) -> None:
    """Checks that a link is read, its events decided, and others told."""
    gateway.apply("login", uid)
    assert gateway.where(uid)[0][0] == uid
    gateway.apply("logout", uid)
    kinds = [(record["kind"], record["uid"]) for record in watcher.take(2)]
    assert kinds == [("online", uid), ("offline", uid)]


def comers(sidecar: Sidecar, door: str) -> list[socket.socket]:
    """More connections at once than there are descriptors for."""
    if door == "http":
        host, port = sidecar.line("ready")["http"].rsplit(":", 1)
        return [socket.create_connection((host, int(port))) for _ in range(CROWD)]
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(CROWD)]
    for sock in crowd:
        sock.connect(str(sidecar.admin if door == "admin" else sidecar.socket))
    return crowd


@pytest.mark.parametrize("door", SOCKETS)
def test_without_a_descriptor_links_go_on_and_newcomers_wait_until_others_leave(
    start: Start, door: str
) -> None:
    sidecar = start()
    gateway, watcher = sidecar.gateway("g", kinds=["timer"]), sidecar.watcher()
    fire(gateway, "key")  # timers have their files open by then
    watcher.take(1)
    with closing(Scraper(sidecar)) as scraper, few_files(sidecar, 5):
        began, cpu = perf_counter(), cpu_s(sidecar)
        crowd = comers(sidecar, door)
        line = sidecar.line(REFUSED, socket=door)
        assert line["level"] == "warning"
        assert line["error"] == "Too many open files"
        # It tries again, and not as fast as it can.
        eventually(lambda: scraper.put_off(door) >= 10)
        goes_on(gateway, watcher, "u")
        fire(gateway, "another")
        watcher.take(1)
        assert scraper.get("/readyz")[0] == 200
        tries, used = scraper.put_off(door), cpu_s(sidecar) - cpu
        took = perf_counter() - began
        assert tries <= took / PAUSE_S + 1
        assert used <= took / 2
        said = [line for line in sidecar.lines if line["event"] == REFUSED]
        assert len(said) <= 1 + took // REPEAT_LOG_S
        # The rest of them is let in as soon as some have gone.
        for sock in crowd:
            sock.close()
        if door == "gateway":
            goes_on(sidecar.gateway("later"), watcher, "v")
        else:
            assert sidecar.get("/healthz", admin=door == "admin")[0] == 200
    goes_on(gateway, watcher, "w")
    assert sidecar.stop() == 0


def test_links_that_wait_for_a_descriptor_are_served_once_the_limit_rises(
    start: Start,
) -> None:
    sidecar = start()
    gateway, watcher = sidecar.gateway("g"), sidecar.watcher()
    with few_files(sidecar, 2):
        crowd = [sidecar.connect() for _ in range(CROWD)]
        sidecar.line(REFUSED, socket="gateway")
        for number, link in enumerate(crowd):
            link.say_hello(f"g{number}")
        goes_on(gateway, watcher, "u")
    for number, link in enumerate(crowd):
        link.expect("welcome")
        goes_on(link, watcher, f"u{number}")


def test_what_is_read_from_disk_waits_for_a_descriptor_and_holds_up_nothing_else(
    start: Start,
) -> None:
    # So few records are in memory that this one has to be read from the file.
    sidecar = start(limits_tail=1_000)
    gateway = sidecar.gateway("g")
    for part in range(5):
        gateway.apply("login", [f"u{part}-{n}" for n in range(1_000)])
    fire(gateway, "early")  # timers have their files open by then
    watcher, other = sidecar.connect(), sidecar.gateway("other")
    with few_files(sidecar, 0):
        watcher.say_hello(
            "w", role="watcher", scope="all", after=0, log=gateway.log, kinds=["online"]
        )
        gateway.send("list")
        sidecar.line("the log cannot be read; it is tried again")
        sidecar.line("a list is put off")
        gateway.sync()
        assert gateway.where("u0-0")[0][0] == "u0-0"
        fire(gateway, "key")
        other.send("login", "u0-0")
        assert gateway.take(1)[0]["kind"] == "moved"
    watcher.expect("welcome")
    seqs = [record["seq"] for record in watcher.take(5_000)]
    assert seqs == [*range(1, 5_001)]
    rows, last = 0, list[int]()
    while not last:
        page, *last = gateway.expect("list")
        rows += len(page)
    assert rows == 4_999


def test_a_timer_that_comes_due_without_a_descriptor_fires(start: Start) -> None:
    sidecar = start()
    gateway = sidecar.gateway("g")
    gateway.apply("after", "key", 1.0)
    with few_files(sidecar, 0):
        (fired,) = gateway.take(1)
        assert fired["key"] == "key"
        gateway.apply("done", "key", None, {"seq": fired["seq"]})


def test_a_stop_without_a_descriptor_ends_as_any(start: Start) -> None:
    sidecar = start()
    gateway = sidecar.gateway("g")
    gateway.apply("login", "u")
    with few_files(sidecar, 0):
        crowd = [sidecar.connect() for _ in range(CROWD)]
        sidecar.line(REFUSED, socket="gateway")
        for link in crowd:
            link.close()
        assert sidecar.stop() == 0
        sidecar.start()
    assert sidecar.line("ready")["users"] == 1
