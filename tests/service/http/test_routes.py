"""All that there is behind the two doors, and who gets it; time is virtual."""

import json
import os
from pathlib import Path

import jsonschema
import pytest
import trio
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Route
from trio.testing import MockClock

from liveness.config.settings import HttpSettings
from liveness.metrics.counts import DOORS, HttpRefusal
from liveness.service.http.bearer import Token
from liveness.service.http.http_server import with_page
from tests.service.http.asgi import ask, reading
from tests.service.http.doors import DOCUMENT, Doors, validate
from tests.service.rig import Rig

READ, POST = frozenset({"GET", "HEAD"}), frozenset({"POST"})
# By POST, for their long bodies; they change nothing.
QUESTIONS = {"/v1/where", "/v1/cluster/where"}
WORDS = "correct-horse/battery+staple=="
TOKEN = Token(WORDS)
BEARER = {"authorization": f"Bearer {WORDS}"}
PAGES = ["/metrics", "/healthz", "/readyz"]


def routes(rig: Rig, door: str) -> set[tuple[str, frozenset[str]]]:
    """Every page of a door, with what can be done there."""
    pages = rig.door(door)._pages
    assert isinstance(pages, Starlette)
    found = set()
    for route in pages.routes:
        assert isinstance(route, Route)
        assert route.methods is not None, "it takes any method"
        found.add((route.path.replace(":path}", "}"), frozenset(route.methods)))
    return found


def documented(method: str) -> set[str]:
    paths = DOCUMENT["paths"]
    return {path for path, operations in paths.items() if method in operations}


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_what_changes_something_is_on_the_admin_socket_alone(
    rig: Rig, token: Token | None
) -> None:
    """And the OpenAPI document has every route and no other."""
    rig.sidecar.http.token = token
    shown = {(path, READ) for path in documented("get")}
    shown |= {(path, POST) for path in QUESTIONS}
    changes = {(path, POST) for path in documented("post")}
    assert routes(rig, "admin") == shown | changes
    assert routes(rig, "http") == shown


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_nothing_but_reading_passes_the_tcp_door(
    rig: Rig, token: Token | None
) -> None:
    rig.sidecar.http.token = token
    allowed = {("POST", path) for path in QUESTIONS}
    for path in {path for door in DOORS for path, _ in routes(rig, door)}:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT"):
            if (method, path) not in allowed:
                answer = await ask(rig.door(), method, path)
                assert (method, path, answer.status) == (method, path, 405)


@pytest.mark.parametrize(
    "target",
    [
        "/page",
        "/page/..",
        "/page/../http.py",
        "/page/%2e%2e%2fhttp.py",
        "/page/%252e%252e/http.py",
        "/page//etc/passwd",
        "/page/style.css%00.html",
        "/page/" + "x" * 5_000,
    ],
)
async def test_nothing_but_the_files_of_the_folder_is_served(target: str) -> None:
    answer = await ask(with_page([]), "GET", target)
    assert answer.status == 404
    assert b"root:" not in answer.body
    assert b"import" not in answer.body


async def test_nothing_but_files_is_served_and_no_link_leads_out_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, outside = tmp_path / "page", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    for name in ("index.html", "own"):
        (folder / name).write_text("ours")
    (folder / "file").symlink_to(outside / "secret")
    (folder / "folder").symlink_to(outside)
    (folder / "inside").symlink_to("own")
    os.mkfifo(folder / "pipe")
    monkeypatch.setattr("liveness.service.http.http_server.PAGE", folder)
    door = with_page([])
    for name in ("file", "folder/secret", "folder", "pipe", "inside"):
        assert (await ask(door, "GET", f"/page/{name}")).status == 404, name
    assert (await ask(door, "GET", "/page/own")).body == b"ours"


def test_every_schema_in_the_document_is_one_and_every_example_matches_its_own() -> (
    None
):
    examples = 0

    def look(part: object) -> None:
        nonlocal examples
        if isinstance(part, dict):
            if "schema" in part:
                jsonschema.Draft202012Validator.check_schema(part["schema"])
                if "example" in part:
                    validate(part["example"], part["schema"])
                    examples += 1
            part = [*part.values()]
        if isinstance(part, list):
            for inner in part:
                look(inner)

    look(DOCUMENT)
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    assert examples


@pytest.mark.parametrize("target", ["/v1/wheel", "/v1/openapi.json"])
async def test_pages_without_a_test_of_their_own_answer_as_documented(
    doors: Doors, target: str
) -> None:
    await doors.rig.gateway_of(["u"])
    assert (await doors.get(target)).status == 200  # validated by `doors`


@pytest.mark.parametrize("door", ["http", "admin"])
async def test_without_a_cluster_its_pages_say_so(rig: Rig, door: str) -> None:
    answer = await ask(rig.door(door), "POST", "/v1/cluster/where")
    assert answer.status == 404
    error = json.loads(answer.body)["error"]
    assert error.startswith("there is no cluster: this sidecar has neither cluster.url")


@pytest.mark.rig(timeout_s=5, tail=1_000)
async def test_each_event_of_a_stream_has_the_shape_that_the_document_says(
    rig: Rig, jumping: MockClock
) -> None:
    first, second = await rig.gateway("gw-1"), await rig.gateway("gw-2")
    await first.apply(["login", [f"u{n}" for n in range(1_000)]])
    await first.send(["login", ["ada", 7], {"conn": [1, 2]}])
    await first.send(["after", "order", 1, {"payload": "p", "ext": "e"}])
    await first.sync()
    rig.store.trimmer.trim(
        oldest_ms=2**62, most_bytes=0, idle_ms=0
    )  # the first thousand
    await second.apply(["login", "ada"])
    await first.send(["logout", 7])
    await trio.sleep(10)  # silence
    async with (
        reading(rig.door(), "/v1/feed?after=1") as feed,
        reading(rig.door(), "/v1/live") as live,
    ):
        events = {"/v1/feed": await feed.events(2), "/v1/live": await live.events(2)}
        rig.sidecar.streams.stop()
        events["/v1/feed"] += await feed.rest()
        events["/v1/live"] += await live.rest()
    for path, told in events.items():
        schemas = DOCUMENT["paths"][path]["get"]["x-events"]
        assert {event.name for event in told} == set(schemas)
        for event in told:
            validate(event.data, schemas[event.name])


# What Prometheus sends: OpenMetrics first.
OPENMETRICS = (
    "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
)


@pytest.mark.parametrize("door", DOORS)
async def test_metrics_come_as_text_or_as_openmetrics_as_the_scraper_likes(
    doors: Doors, door: str
) -> None:
    answer = await doors.get("/metrics", door)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    text = [*text_string_to_metric_families(answer.body.decode())]
    answer = await doors.get("/metrics", door, accept=OPENMETRICS)
    assert answer.headers["content-type"].startswith("application/openmetrics-text;")
    parsed = openmetrics.text_string_to_metric_families(answer.body.decode())  # type: ignore[no-untyped-call]  # of all its parsers only this has no types
    assert len([*parsed]) == len(text)


@pytest.mark.parametrize("door", DOORS)
async def test_a_sidecar_that_runs_is_healthy_and_ready(
    doors: Doors, door: str
) -> None:
    for path, word in (("/healthz", "healthy"), ("/readyz", "ready")):
        answer = await doors.get(path, door)
        assert answer.status == 200
        assert json.loads(answer.body) == {word: True, "why": []}


@pytest.mark.parametrize("host", ["evil.example:80", "127.0.0.1.evil", "x" * 99])
async def test_a_host_that_is_not_ours_gets_nothing_from_the_tcp_door(
    doors: Doors, host: str
) -> None:
    paths = [*PAGES, "/", "/v1/timers", "/page/style.css"]
    for path in paths:
        answer = await doors.get(path, host=host)
        assert answer.status == 421
        assert answer.error.startswith(f"Host is '{host.partition(':')[0][:70]}")
        assert answer.error.endswith("; use its address, or add the name to http.hosts")
    assert doors.refused == [HttpRefusal.HOST] * len(paths)


@pytest.mark.parametrize(
    "host", ["", "::1", "[evil]", "localhost:port", "user@localhost", "löcal"]
)
async def test_a_malformed_host_is_refused_with_what_to_do(
    doors: Doors, host: str
) -> None:
    answer = await doors.get("/metrics", host=host)
    assert (answer.status, doors.refused) == (400, [HttpRefusal.HOST])
    assert "no Host, or a malformed one; send the host of its URL" in answer.error


@pytest.mark.rig(http=HttpSettings(hosts="Gateway-1.Example, other.example"))
@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((ours, 200) for ours in ("127.0.0.1:9874", "192.0.2.7", "[2001:DB8::1]")),
        *((ours, 200) for ours in ("LocalHost:1", "localhost.")),
        *((named, 200) for named in ("gateway-1.example:80", "OTHER.example")),
        ("x.other.example", 421),
    ],
)
async def test_addresses_our_own_name_and_those_of_the_settings_are_answered(
    doors: Doors, host: str, status: int
) -> None:
    assert (await doors.get("/healthz", host=host)).status == status


async def test_the_admin_socket_asks_for_no_name(doors: Doors) -> None:
    assert (await doors.get("/healthz", "admin", host="whatever")).status == 200


@pytest.mark.parametrize("path", ["/metric", "/metrics/", "//metrics"])
async def test_a_path_without_a_page_is_not_found(doors: Doors, path: str) -> None:
    answer = await doors.get(path)
    assert answer.status == 404
    assert "docs/http-api.md lists all pages" in answer.error


async def test_a_page_that_changes_something_cannot_be_read(doors: Doors) -> None:
    answer = await doors.get("/v1/timers/cancel", "admin")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert answer.error.startswith("GET is not for this page; docs/http-api.md has")


# If these were accepted, their stream would never end; there is no such query.
ENDLESS = ["/v1/feed?let=in", "/v1/live?let=in"]
CLOSED = ["/", "/v1/timers", "/v1/users/alice", "/page/live.js", "/nothing", *ENDLESS]


async def test_all_but_health_and_metrics_is_for_who_has_the_token(
    doors: Doors,
) -> None:
    doors = Doors(doors.rig, TOKEN)
    for path in CLOSED:
        answer = await doors.get(path)
        assert (path, answer.status) == (path, 401)
        status = 404 if path == "/nothing" else 400 if path in ENDLESS else 200
        for door, headers in (("admin", {}), ("http", BEARER)):
            assert (await doors.get(path, door, **headers)).status == status
        answer = await doors.ask("http", "POST", path, b"{}", **BEARER)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    for path in PAGES:
        assert (await doors.get(path)).status == 200
