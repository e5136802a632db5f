"""`liveness explain` and `gateways` against an `admin.sock` played by a test."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.helpers.admin_server import Admin

USER = "/v1/users/ada"
WHERE = "/v1/cluster/where"
ADA = {"told": "ada is online", "online": True, "records": []}
NEVER = {"told": "never heard of", "online": False, "records": []}
SESSION = {"uid": "ada/desk", "host": "a\x1b", "gateway": "gw", "since": None}


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    return ["--socket", str(tmp_path / "gateway.sock")]


def answer(found: object, status: int = 200) -> tuple[int, bytes]:
    return status, json.dumps(found).encode()


@pytest.mark.parametrize(("found", "code"), [(ADA, 0), (NEVER, 1)])
def test_a_user_is_explained_in_a_sentence(
    admin: Admin, command: Command, place: list[str], found: dict[str, Any], code: int
) -> None:
    admin.pages |= {USER: answer(found), WHERE: (404, b"{}")}
    assert command("explain", "ada", *place) == (code, f"{found['told']}\n", "")


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (answer({"users": []}), "offline"),
        (
            answer({"users": [SESSION] * 6}),
            "online " + r"on a\x1b through gw (ada/desk); " * 5 + "and 1 more",
        ),
        (answer({"error": "Redis is away"}, 503), "not known now: Redis is away"),
        ((200, b"ok"), "not known now: "),
    ],
)
def test_where_there_is_a_cluster_a_second_line_is_about_all_hosts(
    admin: Admin,
    command: Command,
    place: list[str],
    view: tuple[int, bytes],
    told: str,
) -> None:
    admin.pages |= {USER: answer(ADA), WHERE: view}
    _, shown, _ = command("explain", "ada", *place)
    assert shown.startswith(f"ada is online\non all hosts: {told}")


def test_as_json_it_is_all_that_is_known(
    admin: Admin, command: Command, place: list[str]
) -> None:
    admin.pages |= {USER: answer(NEVER), WHERE: answer({"users": [SESSION]})}
    code, shown, _ = command("explain", "ada", "--json", *place)
    assert code == 0, "it is online on another host"
    assert json.loads(shown)["cluster"] == {"online": True, "hosts": [SESSION]}


LINKED = {
    "name": "gw-1", "linked": True, "users": 3, "mutes": 2, "ping": 1.5, "pid": 7,
    "unix_user": 1_000, "unacked": 4,
}  # fmt: skip
AWAY = {"name": "gw\x1b", "linked": False, "seq": 9, "used": 0}


def test_each_gateway_is_a_line(
    admin: Admin, command: Command, place: list[str]
) -> None:
    page = "/v1/gateways?role=gateway&limit=100"
    admin.pages[page] = answer({"gateways": [LINKED, AWAY], "next": None})
    code, shown, _ = command("gateways", "list", *place)
    assert code == 0
    first, second = shown.splitlines()
    assert first == (
        "linked  gw-1  3 users  mute 2 times (ping 1.5 s)  pid 7, unix_user 1000, "
        "4 unacked"
    )
    assert second.startswith(r"away    gw\x1b  seq 9  last linked ")


def test_a_gateway_that_was_forgotten_is_shown(
    admin: Admin, command: Command, place: list[str]
) -> None:
    admin.pages["/v1/gateways/forget"] = answer(AWAY)
    code, shown, _ = command("gateways", "forget", "gw", *place)
    assert (code, shown[:4]) == (0, "away")
    assert admin.asked[0][1] == b'{"role": "gateway", "name": "gw"}'
