"""A socket that outlives the sidecar, as its manager holds it.

The test holds it as systemd does, which itself starts the sidecar in `tests/machine`. What
is taken, refused and notified: `tests/service/test_systemd.py`.
"""

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.helpers.units import SOCKET, setting
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

NAME = setting(SOCKET, "FileDescriptorName")
# Only the process itself knows its number. Its fd 0 is handed over as the first socket.
HAND_OVER = (
    f'LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES={NAME} exec "$@" 3<&0 </dev/null'
)


class Manager:
    """Holds the sidecar's socket, as systemd does."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.sidecar = sidecar
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(sidecar.socket))
        self.listener.listen(int(setting(SOCKET, "Backlog")))
        sidecar.under = ["sh", "-c", HAND_OVER, "sh"]
        sidecar.stdin = self.listener.fileno()

    def close(self) -> None:
        self.listener.close()


@pytest.fixture
def manager(make: Start) -> Iterator[Manager]:
    with closing(Manager(make())) as manager:
        yield manager


def test_a_gateway_that_connects_before_during_or_after_a_stop_is_served(
    manager: Manager,
) -> None:
    sidecar = manager.sidecar
    with Client(sidecar.socket) as early, ExitStack() as links:
        early.say_hello("early")
        sidecar.launch()
        early.expect("welcome")
        early.apply("login", "ada", {"conn": 1})
        sidecar.signal(signal.SIGTERM)
        early.expect("bye")
        # It is still stopping, as this link stays: the next process gets what is sent now.
        during = links.enter_context(Client(sidecar.socket))
        during.say_hello("early")
        during.send("login", "bob", {"conn": 2})
        early.leave()
        assert sidecar.ended() == 0
        assert sidecar.socket.is_socket()  # its manager's
        after = links.enter_context(Client(sidecar.socket))
        after.say_hello("after", role="watcher", scope="all")
        sidecar.launch()
        during.expect("welcome")
        during.sync()
        after.expect("welcome")
        assert {*after.listed()[0]} == {"ada", "bob"}
        sidecar.line("ready")
        sidecar.kill()
    assert sidecar.socket.is_socket()
    with Client(sidecar.socket) as between:
        between.say_hello("early")
        sidecar.launch()
        between.expect("welcome")
