"""All that there is behind the two doors: what changes something is behind one alone."""

import os
from pathlib import Path
from urllib.parse import unquote

import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route
from trio.testing import MockClock

from liveness.metrics import DOORS
from liveness.service.http import build_pages
from liveness.service.pacing import Turnstile
from liveness.service.signin import PAGE
from liveness.service.tokens import Token
from tests.service.asgi import ask
from tests.service.rig import Rig, running

READ = frozenset({"GET", "HEAD"})
SHOWN = {"/", "/metrics", "/healthz", "/readyz", "/v1/timers", "/v1/timers/newest"}
SHOWN |= {"/v1/gateways", "/v1/guard", "/v1/wheel", "/v1/live", "/v1/feed", "/v1/users"}
SHOWN |= {"/v1/users/{uid:path}", "/v1/openapi.json"}
CHANGES = {"/v1/timers/cancel", "/v1/timers/cancel-damaged", "/v1/timers/retry"}
CHANGES |= {"/v1/gateways/forget", "/v1/guard/release"}
SIGN_IN = {"/sign-in", "/sign-out"}
TOKEN = Token("correct-horse/battery+staple==")


def methods(route: BaseRoute) -> tuple[str, frozenset[str]]:
    assert isinstance(route, Route)
    assert route.methods is not None, "it takes any method"
    return route.path, frozenset(route.methods)


def routes(rig: Rig, door: str) -> set[tuple[str, frozenset[str]]]:
    """Every page of a door, with what can be done there."""
    pages = rig.sidecar._gate(door, lambda _: None)._pages
    assert isinstance(pages, Starlette)
    return {methods(route) for route in pages.routes}


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_what_changes_something_is_on_the_admin_socket_alone(
    tmp_path: Path, jumping: MockClock, token: Token | None
) -> None:
    async with running(tmp_path) as rig:
        rig.sidecar.token = token
        shown = {(path, READ) for path in {*SHOWN, "/page/{name}"}}
        changes = {(path, frozenset({"POST"})) for path in CHANGES}
        sign_in = {(path, frozenset({"POST"})) for path in SIGN_IN}
        sign_in.add(("/sign-in", READ))
        assert routes(rig, "admin") == shown | changes
        assert routes(rig, "http") == (shown | sign_in if token else shown)


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_nothing_but_reading_passes_the_tcp_door_whatever_is_behind_it(
    tmp_path: Path, jumping: MockClock, token: Token | None
) -> None:
    async with running(tmp_path) as rig:
        rig.sidecar.token = token
        gate = rig.sidecar._gate("http", lambda _: None)
        for door in DOORS:
            for path, _ in routes(rig, door):
                for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT"):
                    if (method, path) in {("POST", one) for one in SIGN_IN}:
                        continue
                    answer = await ask(gate, method, path)
                    assert (method, path, answer.status) == (method, path, 405)


# --- files ----------------------------------------------------------------------------


def pages() -> Starlette:
    return build_pages(
        CollectorRegistry(),
        [],
        why_ill=list,
        why_not_ready=list,
        has_sign_out=False,
        turnstile=Turnstile(),
    )


@pytest.mark.parametrize(
    ("name", "content"), [(path.name, path.read_bytes()) for path in PAGE.iterdir()]
)
async def test_a_file_of_the_folder_is_served_as_it_is(
    name: str, content: bytes
) -> None:
    answer = await ask(pages(), "GET", f"/page/{name}")
    assert (answer.status, answer.body) == (200, content)


@pytest.mark.parametrize(
    "target",
    [
        "/page",
        "/page/",
        "/page/.",
        "/page/..",
        "/page/../http.py",
        "/page/../page/../http.py",
        "/page/../../../pyproject.toml",
        "/page/%2e%2e/http.py",
        "/page/%2e%2e%2fhttp.py",
        "/page/..%2fhttp.py",
        "/page/%252e%252e/http.py",
        "/page/..\\http.py",
        "/page/..%5chttp.py",
        "/page//etc/passwd",
        "/page///etc/passwd",
        "/page/%2fetc/passwd",
        "/page/\\etc\\passwd",
        "/page/C:/windows/win.ini",
        "/page/index.html/../../http.py",
        "/page/style.css%00.html",
        "/page/%00",
        "/page/" + "x" * 5_000,
        "/page/" + "../" * 50 + "etc/passwd",
        "/pages/index.html",
        "//page/index.html",
        "/etc/passwd",
        "http://localhost/page/index.html",
    ],
)
async def test_nothing_but_the_files_of_the_folder_is_served(target: str) -> None:
    # A server gives the path unquoted, as it came but for that.
    answer = await ask(pages(), "GET", unquote(target))
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
    monkeypatch.setattr("liveness.service.http.PAGE", folder)
    door = pages()
    for name in ("file", "folder/secret", "folder", "pipe", "inside"):
        assert (await ask(door, "GET", f"/page/{name}")).status == 404, name
    assert (await ask(door, "GET", "/page/own")).body == b"ours"
