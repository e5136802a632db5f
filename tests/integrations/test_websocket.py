"""The WebSocket chat server, with a real sidecar and real WebSocket clients."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.integrations.conftest import SOON_S, frame, listening, silent_websocket
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

PROGRAM: Final = "proto/integrations/websocket/chat.py"
TIMEOUT_S: Final = 2.0
PING_S: Final = 0.5


class Chat:
    """A running chat server, and its sidecar."""

    def __init__(self, sidecar: Sidecar, process: subprocess.Popen[str], port: int):
        self.sidecar = sidecar
        self.process = process
        self.port = port

    @contextmanager
    def user(self, uid: str) -> Iterator[ClientConnection]:
        """A client that has joined; a thread of its library answers pings."""
        url = f"ws://127.0.0.1:{self.port}"
        # Without a bound on its queue, the thread reads on while the test does not.
        with connect(url, ping_interval=None, max_queue=None) as client:
            client.send(uid)
            assert said(client, "joined")["joined"] == uid
            yield client

    def silent_user(self, uid: str) -> socket.socket:
        """A socket on which a user has joined, and that answers nothing from then on."""
        silent = silent_websocket(self.port, uid)
        self.wait_online(uid)
        return silent

    def wait_online(self, *uids: str) -> None:
        joined = [("online", "login")]
        eventually(lambda: all(self.records(uid) == joined for uid in uids))

    def records(self, uid: str) -> list[tuple[str, str | None]]:
        """Kind and reason of each record of a user."""
        log = self.sidecar.log()
        return [(record.kind, record.reason) for record in log if record.uid == uid]


def said(client: ClientConnection, key: str) -> Any:
    """The next message that has this key."""
    while True:
        message = json.loads(client.recv(timeout=SOON_S))
        if key in message:
            return message


def closing(client: ClientConnection) -> tuple[int, str]:
    """The code and the reason with which the server closes a connection."""
    with pytest.raises(ConnectionClosed) as raised:
        said(client, "nothing that anybody says")
    assert raised.value.rcvd is not None
    return int(raised.value.rcvd.code), raised.value.rcvd.reason


@pytest.fixture
def chat(start: Start) -> Iterator[Chat]:
    sidecar = start(TIMEOUT_S, flush_s=0.1, presence_device_separator="/")
    command = (sys.executable, "-W", "error", PROGRAM, "--ping", str(PING_S))
    with listening(*command, "--sidecar", str(sidecar.socket)) as (process, port):
        yield Chat(sidecar, process, port)


def test_a_second_login_closes_the_first(chat: Chat) -> None:
    with chat.user("ada") as first, chat.user("ada") as second:
        assert closing(first) == (4001, "moved")
        second.send("hi")
        assert said(second, "say") == {"uid": "ada", "say": "hi"}
        assert chat.records("ada") == [("online", "login"), ("moved", "login")]


def test_sigterm_logs_everybody_out(chat: Chat) -> None:
    with chat.user("ada") as ada:
        chat.wait_online("ada")
        chat.process.send_signal(signal.SIGTERM)
        assert closing(ada) == (1001, "")
        assert chat.process.wait(SOON_S) == 0
        assert chat.records("ada") == [("online", "login"), ("offline", "logout")]


def test_a_client_that_reads_nothing_is_cut_off(chat: Chat) -> None:
    """Its buffer is full, so that not even a close can be written."""
    with chat.silent_user("stuck") as stuck, chat.user("ada") as ada:
        text = "x" * 4_000
        while not chat.records("stuck")[1:]:
            stuck.sendall(frame("hi"))
            ada.send(text)
            said(ada, "say")
        assert chat.records("stuck")[1:] == [("offline", "logout")]
        with pytest.raises(ConnectionResetError):
            b"".join(iter(lambda: stuck.recv(4096), b""))
