"""The OpenAPI document is a contract: it has exactly the routes, and the answers' shapes."""

import json
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from trio.testing import MockClock

import liveness
from tests.documents import ROOT
from tests.service.asgi import ask
from tests.service.rig import Rig, running
from tests.service.test_doors import TOKEN, routes

DOCUMENT: Final[dict[str, Any]] = json.loads((ROOT / "docs/openapi.json").read_text())
METHODS: Final = {"get", "post"}
# Answered with JSON at once, and with something in them.
ASKED: Final = [
    "/healthz",
    "/readyz",
    "/v1/users/ada",
    "/v1/users/nobody?limit=3",
    "/v1/gateways",
    "/v1/gateways?role=watcher",
    "/v1/guard",
    "/v1/timers",
    "/v1/timers/newest?key=order",
    "/v1/wheel",
    "/v1/openapi.json",
]


def test_it_is_of_this_version() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT["info"]["version"] == liveness.__version__


async def test_it_has_every_route_and_no_other(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        rig.sidecar.token = TOKEN
        served = {
            (path.replace(":path}", "}"), method.lower())
            for door in ("http", "admin")
            for path, methods in routes(rig, door)
            for method in methods - {"HEAD"}
        }
    assert served == {
        (path, method)
        for path, operations in DOCUMENT["paths"].items()
        for method in operations.keys() & METHODS
    }


def test_every_reference_leads_to_something() -> None:
    def look(part: object) -> None:
        if isinstance(part, dict):
            if "$ref" in part:
                found: Any = DOCUMENT
                for name in part["$ref"].removeprefix("#/").split("/"):
                    found = found[name]
            for inner in part.values():
                look(inner)
        elif isinstance(part, list):
            for inner in part:
                look(inner)

    look(DOCUMENT)


def schema_of(path: str, status: int) -> dict[str, Any]:
    response = DOCUMENT["paths"][path]["get"]["responses"][str(status)]
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].split("/")[-1]]
    schema = response["content"]["application/json"]["schema"]
    return {**schema, "components": DOCUMENT["components"]}


def is_shaped(path: str, status: int, body: bytes) -> None:
    schema = schema_of(path, status)
    jsonschema.Draft202012Validator(schema).validate(json.loads(body))


async def with_something(rig: Rig) -> None:
    gateway = await rig.gateway("gw-1")
    await gateway.send(["login", "ada", {"conn": 4}])
    await gateway.send(["after", "order", 60, {"payload": "p", "ext": "e"}])
    await gateway.settle()


@pytest.mark.parametrize("asked", ASKED)
async def test_an_answer_is_shaped_as_it_says(
    asked: str, tmp_path: Path, jumping: MockClock
) -> None:
    path = asked.partition("?")[0]
    if path.startswith("/v1/users/"):
        path = "/v1/users/{uid}"
    async with running(tmp_path) as rig:
        await with_something(rig)
        gate = rig.sidecar._gate("http", lambda _: None)
        answer = await ask(gate, "GET", asked)
        assert answer.status == 200
        is_shaped(path, 200, answer.body)
        wrong = await ask(gate, "GET", f"{asked.partition('?')[0]}?nonsense=1")
        if wrong.status != 200:
            is_shaped(path, wrong.status, wrong.body)
        else:
            assert path in {"/healthz", "/readyz", "/v1/guard", "/v1/openapi.json"}
