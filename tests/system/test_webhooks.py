"""Webhooks of a process that is killed."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from standardwebhooks import Webhook

from tests.system.sidecar import Sidecar, eventually

SECRET: Final = "whsec_bGl2ZW5lc3MgZXhhbXBsZSBzZWNyZXQgMDEyMw=="
USERS: Final = 4_000


def secret_in(folder: Path) -> Path:
    """A file with the secret."""
    path = folder / "webhook.secret"
    path.touch(0o600)
    path.write_text(SECRET)
    return path


class Request(NamedTuple):
    id: str
    body: bytes

    @property
    def seqs(self) -> list[int]:
        return [event["data"]["seq"] for event in json.loads(self.body)]


class Hook(ThreadingHTTPServer):
    """Accepts the first signed requests, and leaves later ones without an answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Request] = []
        self.accepts = 0  # how many to accept
        self.goes_on = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        Webhook(SECRET).verify(body, dict(self.headers))
        hook = self.server
        hook.requests.append(Request(self.headers["webhook-id"], body))
        if len(hook.requests) > hook.accepts:
            hook.goes_on.wait()
            self.close_connection = True
            return
        with suppress(BrokenPipeError):  # it was killed
            self.send_response(204)
            self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as hook:
        serving = threading.Thread(target=hook.serve_forever)
        serving.start()
        yield hook
        hook.goes_on.set()
        hook.shutdown()
        serving.join()


def test_a_kill_in_the_middle_of_a_request_loses_nothing(
    tmp_path: Path, hook: Hook
) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(
        f'[webhooks.mail]\nurl = "http://127.0.0.1:{hook.server_port}/"\n'
        f'secret_file = "{secret_in(tmp_path)}"\nbegin = "oldest"\n'
    )
    hook.accepts = 4
    with Sidecar(tmp_path, config=path) as sidecar:
        sidecar.start()
        gateway = sidecar.gateway("g")
        gateway.apply("login", [f"u{number}" for number in range(USERS)])
        eventually(lambda: len(hook.requests) == 5)
        sidecar.kill()
        hook.accepts = 100
        sidecar.start()
        eventually(lambda: hook.requests[-1].seqs[-1] == USERS)
    killed, again = hook.requests[4:6]
    assert again == killed
    accepted = hook.requests[:4] + hook.requests[5:]
    seqs = [seq for request in accepted for seq in request.seqs]
    assert seqs == [*range(1, USERS + 1)]
