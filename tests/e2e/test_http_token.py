"""A sidecar whose TCP door is closed by a token: who is let in, and what is told."""

import http.client
import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.e2e.conftest import Start
from tests.e2e.sidecar import SOON_S, Sidecar, eventually

WORDS = "correct-horse/battery+staple=="
BEARER = {"authorization": f"Bearer {WORDS}"}
WRONG = {"authorization": "Bearer another-token-of-the-same-length"}
HTML = {"accept": "text/html"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
OPEN = ["/metrics", "/healthz", "/readyz", "/sign-in", "/page/style.css"]
CLOSED = ["/", "/v1/timers", "/v1/timers/newest?key=k", "/page/index.html", "/nothing"]
CLOSED += ["/v1/wheel", "/v1/users", "/v1/users/alice", "/page/live.js"]
# Who is let in would read these without end, and is told that there is no such query.
ENDLESS = ["/v1/feed?let=in", "/v1/live?let=in"]
CLOSED += ENDLESS


def token_file(folder: Path, secret: str = WORDS) -> Path:
    file = folder / "token"
    file.write_text(f"{secret}\n")
    file.chmod(0o640)
    return file


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One for the whole file, with a token."""
    folder = tmp_path_factory.mktemp("s")
    with Sidecar(folder, http_token_file=token_file(folder)) as running:
        yield running.start()


def sign_in(sidecar: Sidecar, token: str = WORDS) -> http.client.HTTPResponse:
    body = urlencode({"token": token}).encode()
    return sidecar.ask("http", "POST", "/sign-in", body, **FORM)[0]


def cookie_of(response: http.client.HTTPResponse) -> dict[str, str]:
    assert (response.status, response.headers["location"]) == (303, "/")
    return {"cookie": response.headers["set-cookie"].partition(";")[0]}


@pytest.mark.parametrize("path", OPEN)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_a_scraper_and_a_supervisor_read_is_open(
    closed: Sidecar, path: str, method: str
) -> None:
    for headers in ({}, WRONG, BEARER):
        assert closed.ask("http", method, path, None, **headers)[0].status == 200


@pytest.mark.parametrize("path", CLOSED)
def test_all_else_is_for_who_has_the_token(closed: Sidecar, path: str) -> None:
    response, body = closed.ask("http", "GET", path)
    assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
    assert 'send "Authorization: Bearer TOKEN"' in json.loads(body)["error"]
    open_to_admin = closed.ask("admin", "GET", path)[0].status
    assert open_to_admin == {"/nothing": 404, **dict.fromkeys(ENDLESS, 400)}.get(
        path, 200
    )
    assert closed.ask("http", "GET", path, None, **BEARER)[0].status == open_to_admin


@pytest.mark.parametrize("path", CLOSED)
def test_the_token_opens_nothing_that_changes_something(
    closed: Sidecar, path: str
) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        response, _ = closed.ask("http", method, path, b"{}", **BEARER)
        assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")
    body = json.dumps({"gateway": "g", "key": "k"}).encode()
    response, _ = closed.ask("http", "POST", "/v1/timers/cancel", body, **BEARER)
    assert response.status == 405


def test_a_browser_signs_in_and_out(closed: Sidecar) -> None:
    response, page = closed.ask("http", "GET", "/v1/timers", None, **HTML)
    assert response.status == 401
    assert b'<form method="post" action="/sign-in">' in page
    cookie = cookie_of(sign_in(closed))
    assert WORDS not in str(cookie)
    response, page = closed.ask("http", "GET", "/", None, **cookie, **HTML)
    assert response.status == 200
    for link in re.findall(rb'href="(/[^"]*)"', page):
        assert closed.ask("http", "GET", link.decode(), None, **cookie)[0].status == 200
    assert b'<form method="post" action="/sign-out">' in page
    response, _ = closed.ask("http", "POST", "/sign-out", b"", **cookie, **FORM)
    assert response.status == 303
    assert 'liveness=""' in response.headers["set-cookie"]


def test_a_form_of_another_site_is_refused(closed: Sidecar) -> None:
    body = urlencode({"token": WORDS}).encode()
    origin = {"origin": "http://evil.example"}
    response, _ = closed.ask("http", "POST", "/sign-in", body, **FORM, **origin)
    assert (response.status, response.headers["set-cookie"]) == (403, None)


def test_wrong_tokens_are_bounded_and_counted_and_the_right_one_is_let_in(
    closed: Sidecar,
) -> None:
    def tries() -> float:
        labels = {"door": "http", "why": "tries"}
        return closed.metric("liveness_http_refused_total", **labels)

    before = tries()

    def is_bounded() -> bool:
        response, _ = closed.ask("http", "GET", "/", None, **WRONG)
        assert response.status in (401, 429)
        return response.status == 429 and response.headers["retry-after"] == "1"

    eventually(is_bounded)
    assert tries() == before + 1
    assert closed.ask("http", "GET", "/", None, **BEARER)[0].status == 200
    assert (
        closed.ask("http", "GET", "/", None, **cookie_of(sign_in(closed)))[0].status
        == 200
    )


def test_a_new_token_ends_the_cookies_of_the_old_one_and_a_restart_does_not(
    start: Start, tmp_path: Path
) -> None:
    sidecar = start(http_token_file=token_file(tmp_path))
    cookie = cookie_of(sign_in(sidecar))
    sidecar.stop()
    sidecar.start()
    assert sidecar.ask("http", "GET", "/", None, **cookie)[0].status == 200
    sidecar.stop()
    token_file(tmp_path, "another-token-of-good-length")
    sidecar.start()
    assert sidecar.ask("http", "GET", "/", None, **cookie)[0].status == 401
    assert sidecar.ask("http", "GET", "/", None, **BEARER)[0].status == 401


def test_the_token_is_never_said(start: Start, tmp_path: Path) -> None:
    file = token_file(tmp_path)
    sidecar = start(http_token_file=file, logging_level="debug")
    sidecar.ask("http", "GET", "/", None, **BEARER)
    sidecar.ask("http", "GET", "/", None, **WRONG)
    sign_in(sidecar)
    sidecar.line("a wrong token was refused")
    assert sidecar.line("starting")["http.token_file"] == str(file)
    _, metrics = sidecar.ask("http", "GET", "/metrics")
    assert sidecar.stop() == 0
    for said in (str(sidecar.lines), metrics.decode()):
        assert WORDS not in said
        assert "another-token" not in said


# --- the start ------------------------------------------------------------------------


class OnEveryAddress(Sidecar):
    """The same, with its TCP door on all addresses of the host."""

    def command(self) -> list[str]:
        return [word.replace("127.0.0.1", "0.0.0.0") for word in super().command()]


def test_beyond_loopback_it_starts_with_a_token_only(tmp_path: Path) -> None:
    with OnEveryAddress(tmp_path) as sidecar:
        code, line = sidecar.refused_start()
        assert code != 0
        assert line == (
            "liveness: http.address is '0.0.0.0:0': an address other than loopback "
            "needs a token; write one to a file and name that by http.token_file, or "
            "use 127.0.0.1, [::1] or localhost"
        )
        sidecar.start(http_token_file=token_file(tmp_path))
        port = int(sidecar.line("ready")["http"].rsplit(":", 1)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOON_S)
        with closing(connection):
            connection.request("GET", "/")
            assert connection.getresponse().status == 401


def test_without_a_token_there_is_no_sign_in(start: Start) -> None:
    sidecar = start()
    assert sidecar.ask("http", "GET", "/sign-in")[0].status == 404
    assert sidecar.ask("http", "POST", "/sign-in", b"token=x", **FORM)[0].status == 405
    response, page = sidecar.ask("http", "GET", "/", None, **BEARER)
    assert response.status == 200
    assert b"sign-out" not in page


def test_a_proxy_may_be_asked_by_a_name_of_the_settings(
    start: Start, tmp_path: Path
) -> None:
    settings = {"http_hosts": "liveness.example"}
    sidecar = start(http_token_file=token_file(tmp_path), **settings)
    body = urlencode({"token": WORDS}).encode()
    host, port = sidecar.line("ready")["http"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), SOON_S) as sock:
        sock.sendall(
            b"POST /sign-in HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            b"origin: https://liveness.example\r\ncontent-length: %d\r\n"
            b"content-type: application/x-www-form-urlencoded\r\n\r\n"
            % len(body)
            + body
        )
        answer = b"".join(iter(lambda: sock.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 303")
