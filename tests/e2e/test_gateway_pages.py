"""What an operator sees of gateways and watchers, and that a name can be forgotten."""

import json
import os
from typing import Any
from urllib.parse import urlencode

import pytest

from liveness.cli import main
from tests.e2e.conftest import Start
from tests.e2e.sidecar import Sidecar, eventually

Name = dict[str, Any]


def listed(sidecar: Sidecar, door: str = "admin", **query: str) -> list[Name]:
    """The names of a listing that has no more."""
    response, body = sidecar.ask(door, "GET", f"/v1/gateways?{urlencode(query)}")
    assert response.status == 200, body
    page = json.loads(body)
    assert page["next"] is None
    gateways: list[Name] = page["gateways"]
    return gateways


def forget(sidecar: Sidecar, name: object, role: object = "gateway") -> tuple[int, Any]:
    """The answer to a name's being forgotten."""
    body = json.dumps({"role": role, "name": name}).encode()
    response, answer = sidecar.ask("admin", "POST", "/v1/gateways/forget", body)
    return response.status, json.loads(answer)


def is_away(sidecar: Sidecar, name: str) -> bool:
    return not any(one["linked"] for one in listed(sidecar) if one["name"] == name)


@pytest.mark.parametrize("door", ["http", "admin"])
def test_names_are_listed_with_what_is_known_of_them(start: Start, door: str) -> None:
    sidecar = start()
    here = sidecar.gateway("gw-1", timeout=7)
    here.send("login", ["a", "b"])
    here.settle()
    sidecar.gateway("gw-0").close()
    eventually(lambda: is_away(sidecar, "gw-0"))
    away, linked = listed(sidecar, door)
    assert away.pop("used") > 1_700_000_000_000
    assert away == {
        "name": "gw-0",
        "role": "gateway",
        "linked": False,
        "seq": 2,
        "users": 0,
    }
    assert linked.pop("used") > 1_700_000_000_000
    assert linked.pop("seq") in (0, 2)  # it follows what does not concern it
    assert linked == {
        "name": "gw-1", "role": "gateway", "linked": True, "users": 2,
        "unacked": 0, "timeout": 7.0, **own_ids(),
    }  # fmt: skip


def own_ids() -> Name:
    return {"pid": os.getpid(), "uid": os.getuid()}


def test_watchers_are_listed_apart_and_those_without_a_cursor_while_they_are_there(
    start: Start,
) -> None:
    sidecar = start()
    sidecar.watcher("kept", ack=True)
    passing = sidecar.watcher("passing")
    names = [(one["name"], "seq" in one) for one in listed(sidecar, role="watcher")]
    assert names == [("kept", True), ("passing", False)]
    assert listed(sidecar) == []
    passing.close()
    eventually(lambda: len(listed(sidecar, role="watcher")) == 1)


def test_a_listing_comes_in_pages(start: Start) -> None:
    sidecar = start()
    names = [f"gw-{number:02}" for number in range(25)]
    for name in reversed(names):
        sidecar.gateway(name)
    found: list[str] = []
    query = {"limit": "10"}
    while True:
        _, body = sidecar.ask("http", "GET", f"/v1/gateways?{urlencode(query)}")
        page = json.loads(body)
        assert len(page["gateways"]) <= 10
        found += [one["name"] for one in page["gateways"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert found == names


@pytest.mark.parametrize("query", ["role=other", "limit=0", "after=", "who=x", "role"])
def test_a_query_that_cannot_be_is_refused(sidecar: Sidecar, query: str) -> None:
    response, body = sidecar.ask("http", "GET", f"/v1/gateways?{query}")
    assert response.status == 400
    assert json.loads(body)["error"]


def test_a_name_is_forgotten_for_good_and_begins_anew(start: Start) -> None:
    sidecar = start()
    link = sidecar.gateway("gw-1", kinds=["online", "offline"])
    link.send("login", ["u"])
    link.settle()
    status, answer = forget(sidecar, "gw-1")
    assert status == 409
    assert "is connected" in answer["error"]
    link.close()
    eventually(lambda: is_away(sidecar, "gw-1"))
    status, answer = forget(sidecar, "gw-1")
    assert status == 409
    assert "1 users online" in answer["error"]
    other = sidecar.gateway("gw-2")
    other.send("login", ["u"], {"age": 0})
    other.send("logout", ["u"])
    other.settle()
    status, answer = forget(sidecar, "gw-1")
    assert (status, answer["name"], answer["users"]) == (200, "gw-1", 0)
    assert [one["name"] for one in listed(sidecar)] == ["gw-2"]
    assert sidecar.rows("select name from cursors") == [("gw-2",)]
    assert forget(sidecar, "gw-1")[0] == 404
    # Also over a crash; and what was decided before is told to nobody.
    sidecar.kill()
    sidecar.start()
    assert listed(sidecar, "http") == listed(sidecar)
    assert [one["name"] for one in listed(sidecar)] == ["gw-2"]
    again = sidecar.gateway("gw-1", kinds=["online", "offline", "moved"])
    again.settle()
    assert again.records == []


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"name": "x"}', b'{"role": "gateway", "name": ""}',
     b'{"role": "king", "name": "x"}', b'{"role": "gateway", "name": "x", "more": 1}'],
)  # fmt: skip
def test_what_names_nobody_is_refused(sidecar: Sidecar, body: bytes) -> None:
    response, answer = sidecar.ask("admin", "POST", "/v1/gateways/forget", body)
    assert response.status == 400
    assert json.loads(answer)["error"]


def test_nothing_is_forgotten_at_the_tcp_door(sidecar: Sidecar, name: str) -> None:
    sidecar.gateway(name).close()
    eventually(lambda: is_away(sidecar, name))
    body = json.dumps({"role": "gateway", "name": name}).encode()
    response, _ = sidecar.ask("http", "POST", "/v1/gateways/forget", body)
    assert response.status in (404, 405)
    assert name in [one["name"] for one in listed(sidecar)]


def test_the_command_lists_and_forgets(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    sidecar = start()
    place = ["--socket", str(sidecar.socket)]
    sidecar.gateway("gw-1")
    sidecar.gateway("gw-2").close()
    sidecar.watcher("eye", ack=True)
    eventually(lambda: is_away(sidecar, "gw-2"))
    assert main(["gateways", "list", *place]) == 0
    linked, away = capsys.readouterr().out.splitlines()
    assert linked.startswith("linked  gw-1  0 users  pid ")
    assert away.startswith("away    gw-2  0 users  seq 0  last here ")
    assert main(["gateways", "list", "--role", "watcher", "--json", *place]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "eye"
    assert main(["gateways", "forget", "gw-2", *place]) == 0
    assert capsys.readouterr().out == f"{away}\n"
    for name, told in (("gw-1", "is connected"), ("gw-2", "no gateway 'gw-2'")):
        assert main(["gateways", "forget", name, *place]) == 1
        assert told in capsys.readouterr().err
    assert main(["gateways", "list", *place]) == 0
    assert capsys.readouterr().out.splitlines() == [linked]
