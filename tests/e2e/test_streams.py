"""Streams of a running sidecar, over real connections: resumed, left, cut and ended."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.sidecar import SOON_S, Sidecar, eventually

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


def open_streams(sidecar: Sidecar, stream: str = "feed") -> float:
    return sidecar.metric("liveness_streams", stream=stream)


def is_left(sidecar: Sidecar, stream: str) -> bool:
    return open_streams(sidecar, stream) == 0


@pytest.mark.parametrize("kills", [False, True])
def test_a_feed_goes_on_over_a_restart_without_a_gap(start: Start, kills: bool) -> None:
    sidecar = start()
    gateway = sidecar.gateway("gw")
    with streaming(sidecar, "/v1/feed") as response:
        told = events(response)
        last, name, begin = next(told)
        assert (name, begin["seq"], begin["new"]) == ("log", 0, False)
        gateway.send("login", ["a", "b", "c"])
        gateway.settle()
        for uid in "abc":
            last, _, record = next(told)
            assert record["uid"] == uid
        if kills:
            sidecar.kill()
        else:
            sidecar.stop()
            _, name, data = next(told)
            assert (name, "the sidecar stops" in data["why"]) == ("end", True)
            assert next(told, None) is None
    sidecar.start()
    sidecar.gateway("gw").send("login", "d")
    with streaming(sidecar, "/v1/feed", {"Last-Event-ID": last}) as response:
        told = events(response)
        assert next(told)[2] == {"log": begin["log"], "seq": 3, "new": False}
        assert next(told)[2]["uid"] == "d"
    # As where the state was lost: it is another log, of which all is new.
    sidecar.stop()
    sidecar.database.rename(sidecar.folder / "lost")
    sidecar.timers.rename(sidecar.folder / "lost too")
    sidecar.start()
    with streaming(sidecar, "/v1/feed", {"Last-Event-ID": last}) as response:
        _, _, again = next(events(response))
        assert again["log"] != begin["log"]
        assert (again["seq"], again["new"]) == (0, True)


def test_who_goes_leaves_the_place(sidecar: Sidecar) -> None:
    for path, stream in (("/v1/feed", "feed"), ("/v1/live", "live")):
        with streaming(sidecar, path) as response:
            next(events(response))
            assert open_streams(sidecar, stream) == 1
        eventually(partial(is_left, sidecar, stream))


def test_who_reads_nothing_is_cut_off_and_the_others_are_not(start: Start) -> None:
    sidecar = start(http_request_s=1)
    gateway = sidecar.gateway("gw", ack=False, kinds=["offline"])
    with (
        streaming(sidecar, "/v1/feed?after=0"),
        streaming(sidecar, "/v1/feed?after=0&uid=the+last") as other,
    ):
        told = events(other)
        assert next(told)[1] == "log"

        def is_cut() -> bool:
            # More than sockets hold: it is written to until it takes no more.
            number = int(sidecar.metric("liveness_log_seq"))
            crowd = [f"{'long' * 50}-{number}-{n}" for n in range(CROWD)]
            gateway.send("login", crowd)
            gateway.send("logout", crowd)
            gateway.settle()
            return (
                sidecar.metric("liveness_http_refused_total", door="http", why="slow")
                == 1
            )

        eventually(is_cut)
        eventually(lambda: open_streams(sidecar) == 1)
        gateway.send("login", "the last")
        gateway.settle()
        assert next(told)[2]["uid"] == "the last"


def test_everyone_is_told_as_of_a_seq_from_which_the_feed_goes_on(
    sidecar: Sidecar, name: str
) -> None:
    gateway = sidecar.gateway(name)
    gateway.send("login", [f"{name}-{n}" for n in range(3 * CROWD)])
    gateway.settle()
    status, body = sidecar.get("/v1/users")
    assert status == 200
    *lines, last = map(json.loads, body.splitlines())
    mine = [line["uid"] for line in lines if line["gateway"] == name]
    assert mine == [f"{name}-{n}" for n in range(3 * CROWD)]
    assert last["users"] == len(lines)
    gateway.send("logout", mine[0])
    with streaming(sidecar, f"/v1/feed?after={last['seq']}") as response:
        told = events(response)
        assert next(told)[2]["seq"] == last["seq"]
        assert next(told)[2]["uid"] == mine[0]
    gateway.send("logout", mine[1:])
    gateway.settle()
