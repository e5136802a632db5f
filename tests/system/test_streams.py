"""Streams of a running sidecar over real connections: resumed, left, and cut."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest

from tests.system.conftest import Start
from tests.system.sidecar import SOON_S, Sidecar, eventually

CROWD = 1_000


@contextmanager
def streaming(
    sidecar: Sidecar, path: str, headers: dict[str, str] | None = None
) -> Iterator[HTTPResponse]:
    """An answer that goes on; its connection is closed at the end of the block."""
    host, port = sidecar.line("ready")["http"].rsplit(":", 1)
    connection = HTTPConnection(host, int(port), timeout=SOON_S)
    with closing(connection):
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield response


def events(response: HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    """Each event as (id, name, data), until the answer ends."""
    fields = {"id": ""}
    for line in iter(response.readline, b""):
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            yield fields["id"], fields["event"], json.loads(fields.pop("data"))


def streams_are(sidecar: Sidecar, stream: str, count: int) -> bool:
    return sidecar.metric("liveness_streams", stream=stream) == count


@pytest.mark.parametrize("kills", [False, True])
def test_a_feed_goes_on_over_a_restart_without_a_gap(start: Start, kills: bool) -> None:
    sidecar = start()
    gateway = sidecar.gateway("gw")
    with streaming(sidecar, "/v1/feed") as response:
        received = events(response)
        last, name, begin = next(received)
        assert (name, begin["seq"], begin["new"]) == ("log", 0, False)
        gateway.apply("login", ["a", "b", "c"])
        for uid in "abc":
            last, _, record = next(received)
            assert record["uid"] == uid
        if kills:
            sidecar.kill()
        else:
            sidecar.stop()
            _, name, data = next(received)
            assert (name, "the sidecar stops" in data["why"]) == ("end", True)
            assert next(received, None) is None
    sidecar.start()
    sidecar.gateway("gw").send("login", "d")
    with streaming(sidecar, "/v1/feed", {"Last-Event-ID": last}) as response:
        received = events(response)
        assert next(received)[2] == {"log": begin["log"], "seq": 3, "new": False}
        assert next(received)[2]["uid"] == "d"


def test_a_client_that_goes_leaves_its_place(sidecar: Sidecar) -> None:
    for path, stream in (("/v1/feed", "feed"), ("/v1/live", "live")):
        with streaming(sidecar, path) as response:
            next(events(response))
            assert streams_are(sidecar, stream, 1)
        eventually(partial(streams_are, sidecar, stream, 0))


def test_a_client_that_reads_nothing_is_cut_off_and_the_others_are_not(
    start: Start,
) -> None:
    sidecar = start(http_request_s=1)
    gateway = sidecar.gateway("gw", ack=False, kinds=["offline"])
    with (
        streaming(sidecar, "/v1/feed?after=0"),
        streaming(sidecar, "/v1/feed?after=0&uid=the+last") as other,
    ):
        received = events(other)
        assert next(received)[1] == "log"

        def is_cut() -> bool:
            # More than sockets hold: it is written to until it takes no more.
            number = int(sidecar.metric("liveness_log_seq"))
            crowd = [f"{'long' * 50}-{number}-{n}" for n in range(CROWD)]
            gateway.send("login", crowd)
            gateway.apply("logout", crowd)
            labels = {"door": "http", "why": "slow"}
            return sidecar.metric("liveness_http_refused_total", **labels) == 1

        eventually(is_cut)
        eventually(partial(streams_are, sidecar, "feed", 1))
        gateway.apply("login", "the last")
        assert next(received)[2]["uid"] == "the last"
