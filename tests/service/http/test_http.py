"""The pages of both HTTP listeners, access to them, and refusals; time is virtual."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from liveness.config.settings import HttpSettings
from liveness.metrics.counts import DOORS, HttpRefusal
from liveness.service.http.bearer import Token
from tests.service.http.doors import Doors
from tests.service.rig import running

PAGES = ["/metrics", "/healthz", "/readyz"]
# What Prometheus sends: OpenMetrics first.
OPENMETRICS = (
    "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
)
WORDS = "correct-horse/battery+staple=="
BEARER = {"authorization": f"Bearer {WORDS}"}


def families(text: bytes) -> dict[str, Metric]:
    parsed = text_string_to_metric_families(text.decode())
    return {family.name: family for family in parsed}


# --- metrics and health ------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
async def test_metrics_come_as_text_or_as_openmetrics_as_the_scraper_likes(
    doors: Doors, door: str
) -> None:
    answer = await doors.get("/metrics", door)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    text = families(answer.body).values()
    answer = await doors.get("/metrics", door, accept=OPENMETRICS)
    assert answer.headers["content-type"].startswith("application/openmetrics-text;")
    assert answer.body.endswith(b"# EOF\n")
    parsed: Iterable[Metric] = openmetrics.text_string_to_metric_families(  # type: ignore[no-untyped-call]
        answer.body.decode()
    )
    by_name, in_text = (
        # The suffix belongs to the name in one format and to the sample in the other.
        {family.name.removesuffix("_info") for family in found}
        for found in (parsed, text)
    )
    assert by_name == in_text


@pytest.mark.parametrize("door", DOORS)
async def test_a_sidecar_that_runs_is_healthy_and_ready(
    doors: Doors, door: str
) -> None:
    for path, word in (("/healthz", "healthy"), ("/readyz", "ready")):
        answer = await doors.get(path, door)
        assert answer.status == 200
        assert json.loads(answer.body) == {word: True, "why": []}


# --- hosts -------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:9874", "LocalHost:1", "192.0.2.7", "[2001:DB8::1]", "localhost."],
)
async def test_addresses_and_our_own_name_are_answered(doors: Doors, host: str) -> None:
    assert (await doors.get("/healthz", host=host)).status == 200


async def test_names_of_the_settings_are_answered(
    tmp_path: Path, jumping: MockClock
) -> None:
    http = HttpSettings(hosts="Gateway-1.Example, other.example")
    async with running(tmp_path, http=http) as rig:
        hosts = (
            "gateway-1.example:80",
            "OTHER.example",
            "localhost",
            "x.other.example",
        )
        found = [(await Doors(rig).get("/healthz", host=host)).status for host in hosts]
    assert found == [200, 200, 200, 421]


async def test_the_admin_socket_asks_for_no_name(doors: Doors) -> None:
    assert (await doors.get("/healthz", "admin", host="whatever")).status == 200


# --- paths and the token ----------------------------------------------------------


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
    doors = Doors(doors.rig, Token(WORDS))
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
