"""A sidecar that may open no further file: links go on, newcomers wait."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from time import perf_counter

from liveness.service.common.logs import REPEAT_LOG_S
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

REFUSED = (
    "no connection can be accepted now; open ones go on, new ones wait: "
    "raise the limit of open files, or end some connections"
)
CROWD = 30
LASTING_S = 0.2  # a file that is read is closed by then


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


def goes_on(gateway: Client, watcher: Client, uid: str) -> None:
    """Checks that a link is read, its events decided, and others told."""
    gateway.apply("login", uid)
    assert gateway.where(uid)[0][0] == uid
    gateway.apply("logout", uid)
    kinds = [(record["kind"], record["uid"]) for record in watcher.take(2)]
    assert kinds == [("online", uid), ("offline", uid)]


def test_without_a_descriptor_links_go_on_and_newcomers_wait_until_others_leave(
    start: Start,
) -> None:
    sidecar = start()
    gateway, watcher = sidecar.gateway("g", kinds=["timer"]), sidecar.watcher()
    fire(gateway, "key")  # timers have their files open by then
    watcher.take(1)
    with few_files(sidecar, 5):
        began = perf_counter()
        crowd = [sidecar.connect() for _ in range(CROWD)]
        line = sidecar.line(REFUSED, socket="gateway")
        assert line["level"] == "warning"
        assert line["error"] == "Too many open files"
        goes_on(gateway, watcher, "u")
        fire(gateway, "another")
        watcher.take(1)
        said = [line for line in sidecar.lines if line["event"] == REFUSED]
        assert len(said) <= 1 + (perf_counter() - began) // REPEAT_LOG_S
        # The rest of them is let in as soon as some have gone.
        for link in crowd:
            link.close()
        goes_on(sidecar.gateway("later"), watcher, "v")
    goes_on(gateway, watcher, "w")
