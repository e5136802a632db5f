"""A sidecar whose TCP door is closed by a token: its file, its start, its log."""

import http.client
from contextlib import closing
from pathlib import Path

from tests.system.conftest import Start
from tests.system.sidecar import SOON_S, Sidecar

WORDS = "correct-horse/battery+staple=="
BEARER = {"authorization": f"Bearer {WORDS}"}
WRONG = {"authorization": "Bearer another-token-of-the-same-length"}


def token_file(folder: Path, secret: str = WORDS) -> Path:
    file = folder / "token"
    file.write_text(f"{secret}\n")
    file.chmod(0o640)
    return file


def test_the_token_is_never_said(start: Start, tmp_path: Path) -> None:
    file = token_file(tmp_path)
    sidecar = start(http_token_file=file, logging_level="debug")
    assert sidecar.ask("http", "GET", "/", None, **BEARER)[0].status == 200
    assert sidecar.ask("http", "GET", "/", None, **WRONG)[0].status == 401
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
