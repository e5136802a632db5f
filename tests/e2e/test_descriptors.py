"""A sidecar that may open no further file: who is there goes on, who comes waits."""

import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from liveness.service.accepting import PAUSE_S
from liveness.service.logs import SAY_AGAIN_S
from tests.e2e.client import Client
from tests.e2e.conftest import Start
from tests.e2e.sidecar import SOON_S, Sidecar, eventually

REFUSED = (
    "no connection can be accepted now; those that are there go on, the others wait: "
    "raise the limit of open files, or end some"
)
SOCKETS = ("gateway", "admin", "http")
CROWD = 30


def open_files(sidecar: Sidecar) -> int:
    return len([*Path(f"/proc/{sidecar.pid}/fd").iterdir()])


def cpu_s(sidecar: Sidecar) -> float:
    fields = Path(f"/proc/{sidecar.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def allow_files(sidecar: Sidecar, files: int) -> None:
    _, most = resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE, (files, most))


@contextmanager
def few_files(sidecar: Sidecar, more: int) -> Iterator[None]:
    """For a while it may open so many more files."""
    before, _ = resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE)
    allow_files(sidecar, open_files(sidecar) + more)
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
        families = {it.name: it for it in text_string_to_metric_families(text)}
        (sample,) = [
            it
            for it in families["liveness_accepts_put_off"].samples
            if it.labels == {"socket": socket}
        ]
        return sample.value


def goes_on(gateway: Client, watcher: Client, uid: str) -> None:
    """Checks that a link is read, its events decided, and others told."""
    gateway.send("login", uid)
    gateway.settle()
    assert gateway.where(uid)[0][0] == uid
    gateway.send("logout", uid)
    gateway.settle()
    assert [(one["kind"], one["uid"]) for one in watcher.take(2)] == [
        ("online", uid),
        ("offline", uid),
    ]


def comers(sidecar: Sidecar, door: str) -> list[socket.socket]:
    """More who connect at once than there are descriptors for."""
    if door == "http":
        host, port = sidecar.line("ready")["http"].rsplit(":", 1)
        return [socket.create_connection((host, int(port))) for _ in range(CROWD)]
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(CROWD)]
    for one in crowd:
        one.connect(str(sidecar.admin if door == "admin" else sidecar.socket))
    return crowd


@pytest.mark.parametrize("door", SOCKETS)
def test_without_a_descriptor_links_go_on_and_who_comes_waits_until_others_leave(
    start: Start, door: str
) -> None:
    sidecar = start()
    gateway, watcher = sidecar.gateway("g", kinds=["timer"]), sidecar.watcher()
    gateway.send("after", "key", 0.1)  # timers have their files open by then
    assert gateway.take(1)[0]["key"] == "key"
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
        gateway.send("after", "another", 0.1)
        assert gateway.take(1)[0]["key"] == "another"
        watcher.take(1)
        assert scraper.get("/readyz")[0] == 200
        tries, used = scraper.put_off(door), cpu_s(sidecar) - cpu
        took = perf_counter() - began
        assert tries <= took / PAUSE_S + 1
        assert used <= took / 2
        said = [one for one in sidecar.lines if one["event"] == REFUSED]
        assert len(said) <= 1 + took // SAY_AGAIN_S
        # The rest of them is let in as soon as some have gone.
        for one in crowd:
            one.close()
        if door == "gateway":
            goes_on(sidecar.gateway("later"), watcher, "v")
        else:
            assert sidecar.get("/healthz", admin=door == "admin")[0] == 200
    goes_on(gateway, watcher, "w")
    assert sidecar.stop() == 0


def test_who_waits_for_a_descriptor_is_served_once_the_limit_rises(
    start: Start,
) -> None:
    sidecar = start()
    gateway, watcher = sidecar.gateway("g"), sidecar.watcher()
    with few_files(sidecar, 2):
        crowd = [sidecar.connect() for _ in range(CROWD)]
        sidecar.line(REFUSED, socket="gateway")
        for number, one in enumerate(crowd):
            one.say_hello(f"g{number}")
        goes_on(gateway, watcher, "u")
    for number, one in enumerate(crowd):
        one.expect("welcome")
        goes_on(one, watcher, f"u{number}")


def test_who_reads_the_disk_without_a_descriptor_waits_and_loses_nothing(
    start: Start,
) -> None:
    # So few records are in memory that this one has to be read from the file.
    sidecar = start(limits_tail=1_000)
    gateway = sidecar.gateway("g")
    for part in range(5):
        gateway.send("login", [f"u{part}-{n}" for n in range(1_000)])
        gateway.settle()
    watcher, other = sidecar.connect(), sidecar.watcher("other")
    with few_files(sidecar, 0):
        watcher.say_hello("w", role="watcher", scope="all", after=0)
        gateway.send("list")
        sidecar.line("the log cannot be read; it is tried again")
        sidecar.line("a list is put off")
        other.send("ping", 1)
        assert other.expect("pong") == [1]
    watcher.expect("welcome")
    assert [one["seq"] for one in watcher.take(5_000)] == [*range(1, 5_001)]
    listed = gateway.expect("list")
    rows = len(listed[0])
    while len(listed) == 1:
        listed = gateway.expect("list")
        rows += len(listed[0])
    assert (rows, listed[1]) == (5_000, 5_000)


def test_a_list_that_waits_for_a_descriptor_holds_up_nothing_else_of_its_link(
    start: Start,
) -> None:
    sidecar = start()
    gateway, other = sidecar.gateway("g"), sidecar.gateway("other")
    gateway.send("login", "u")
    gateway.send("after", "early", 0.1)  # timers have their files open by then
    assert gateway.take(1)[0]["key"] == "early"
    with few_files(sidecar, 0):
        gateway.send("list")
        sidecar.line("a list is put off")
        gateway.settle()
        assert gateway.where("u")[0][0] == "u"
        gateway.send("after", "key", 0.1)
        assert gateway.take(1)[0]["key"] == "key"
        other.send("login", "u")
        assert gateway.take(1)[0]["kind"] == "moved"
    assert gateway.expect("list")[0] == []


def test_a_timer_that_comes_due_without_a_descriptor_fires(start: Start) -> None:
    sidecar = start()
    gateway = sidecar.gateway("g")
    gateway.send("after", "key", 1.0)
    gateway.settle()
    with few_files(sidecar, 0):
        (fired,) = gateway.take(1)
        assert fired["key"] == "key"
        gateway.send("done", "key", None, {"seq": fired["seq"]})
        gateway.settle()


def test_a_stop_without_a_descriptor_ends_as_any(start: Start) -> None:
    sidecar = start()
    gateway = sidecar.gateway("g")
    gateway.send("login", "u")
    gateway.settle()
    with few_files(sidecar, 0):
        crowd = [sidecar.connect() for _ in range(CROWD)]
        sidecar.line(REFUSED, socket="gateway")
        for one in crowd:
            one.close()
        assert sidecar.stop() == 0
        sidecar.start()
    assert sidecar.line("ready")["users"] == 1
