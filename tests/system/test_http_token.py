"""A sidecar whose TCP door is closed by a token: its file, its start, its cookies, its log."""

import http.client
import re
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

from tests.system.conftest import Start
from tests.system.sidecar import SOON_S, Sidecar

WORDS = "correct-horse/battery+staple=="
BEARER = {"authorization": f"Bearer {WORDS}"}
WRONG = {"authorization": "Bearer another-token-of-the-same-length"}
HTML = {"accept": "text/html"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


def token_file(folder: Path, secret: str = WORDS) -> Path:
    file = folder / "token"
    file.write_text(f"{secret}\n")
    file.chmod(0o640)
    return file


def sign_in(sidecar: Sidecar) -> dict[str, str]:
    """The header with the cookie that a browser gets."""
    body = urlencode({"token": WORDS}).encode()
    response, _ = sidecar.ask("http", "POST", "/sign-in", body, **FORM)
    assert (response.status, response.headers["location"]) == (303, "/")
    cookie = {"cookie": response.headers["set-cookie"].partition(";")[0]}
    assert WORDS not in str(cookie)
    return cookie


def test_a_browser_signs_in_and_out_until_the_token_is_another(
    start: Start, tmp_path: Path
) -> None:
    sidecar = start(http_token_file=token_file(tmp_path))
    response, page = sidecar.ask("http", "GET", "/v1/timers", None, **HTML)
    assert response.status == 401
    assert b'<form method="post" action="/sign-in">' in page
    cookie = sign_in(sidecar)
    response, page = sidecar.ask("http", "GET", "/", None, **cookie, **HTML)
    assert response.status == 200
    for link in re.findall(rb'href="(/[^"]*)"', page):
        response, _ = sidecar.ask("http", "GET", link.decode(), None, **cookie)
        assert response.status == 200
    assert b'<form method="post" action="/sign-out">' in page
    response, _ = sidecar.ask("http", "POST", "/sign-out", b"", **cookie, **FORM)
    assert response.status == 303
    assert 'liveness=""' in response.headers["set-cookie"]
    # A restart ends no cookie, and a new token all of the old one.
    for token, status in ((WORDS, 200), ("another-token-of-good-length", 401)):
        sidecar.stop()
        token_file(tmp_path, token)
        sidecar.start()
        assert sidecar.ask("http", "GET", "/", None, **cookie)[0].status == status
        assert sidecar.ask("http", "GET", "/", None, **BEARER)[0].status == status


def test_the_token_is_never_said(start: Start, tmp_path: Path) -> None:
    file = token_file(tmp_path)
    sidecar = start(http_token_file=file, logging_level="debug")
    assert sidecar.ask("http", "GET", "/", None, **BEARER)[0].status == 200
    assert sidecar.ask("http", "GET", "/", None, **WRONG)[0].status == 401
    sign_in(sidecar)
    sidecar.line("a wrong token was refused")
    assert sidecar.line("starting")["has_token"] is True
    _, metrics = sidecar.ask("http", "GET", "/metrics")
    assert sidecar.stop() == 0
    for said in (str(sidecar.lines), metrics.decode()):
        assert WORDS not in said
        assert "another-token" not in said


def test_beyond_loopback_a_sidecar_starts_with_a_token(tmp_path: Path) -> None:
    # Without one: the row "address for everyone without a token" of the mistakes.
    with Sidecar(tmp_path) as sidecar:
        sidecar.http = "0.0.0.0:0"
        sidecar.start(http_token_file=token_file(tmp_path))
        port = int(sidecar.line("ready")["http"].rsplit(":", 1)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOON_S)
        with closing(connection):
            connection.request("GET", "/")
            assert connection.getresponse().status == 401
