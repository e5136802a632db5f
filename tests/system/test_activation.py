"""Sockets that outlive the sidecar, and a service manager that gets its state.

Where one start is enough the manager is systemd's own activator; where the socket has to
outlive the process, the test holds it as systemd does.
"""

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.helpers.units import SOCKET, setting
from tests.service.test_systemd import Told
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.sidecar import SOON_S, Sidecar, eventually

WATCHDOG_S = 0.5
NAME = setting(SOCKET, "FileDescriptorName")
# Only the process itself knows its number. Its fd 0 is handed over as the first socket.
HAND_OVER = (
    f'LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES={NAME} exec "$@" 3<&0 </dev/null'
)
STUCK = """
import sys, trio
from liveness.cli.main import main
from liveness.service import components
from liveness.service.engine.engine import run_turns

async def turn_once(engine):
    with trio.move_on_after(1):
        await run_turns(engine)
    await trio.sleep_forever()

components.run_turns = turn_once
sys.exit(main(sys.argv[1:]))
"""


class Stuck(Sidecar):
    """A sidecar whose wheel stands still after a second, while all else goes on."""

    def command(self) -> list[str]:
        command = super().command()
        at = command.index("-m")
        return [*command[:at], "-c", STUCK, *command[at + 2 :]]


class Manager:
    """Holds the sidecar's socket, and receives its notifications, as systemd does."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.sidecar = sidecar
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(sidecar.socket))
        self.listener.listen(int(setting(SOCKET, "Backlog")))
        notify = sidecar.folder / "notify"
        self.told = Told(str(notify))
        self.told.sock.settimeout(SOON_S)
        self.lines: list[str] = []
        usec = f"WATCHDOG_USEC={round(WATCHDOG_S * 1e6)}"
        sidecar.under = ["env", f"NOTIFY_SOCKET={notify}", usec]
        sidecar.under += ["sh", "-c", HAND_OVER, "sh"]
        sidecar.stdin = self.listener.fileno()

    def listen(self) -> list[str]:
        """Waits for the next datagram; the names of what it says."""
        lines = self.told.sock.recv(4096).decode().split("\n")
        self.lines += lines
        return [line.split("=")[0] for line in lines]

    def hears(self, line: str) -> None:
        """Waits for this notification; forgets earlier ones."""
        while line not in self.lines:
            self.listen()
        self.lines = self.lines[self.lines.index(line) + 1 :]

    def close(self) -> None:
        self.listener.close()
        self.told.sock.close()


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


def test_the_manager_is_told_when_links_are_accepted_and_that_it_lives_and_stops(
    manager: Manager,
) -> None:
    sidecar = manager.sidecar
    with Client(sidecar.socket) as gateway:
        gateway.say_hello("gw-1")
        sidecar.launch()
        manager.hears("READY=1")
        gateway.expect("welcome")
        for _ in range(3):
            manager.hears("WATCHDOG=1")
        sidecar.signal(signal.SIGHUP)
        manager.hears("RELOADING=1")
        manager.hears("READY=1")
        sidecar.signal(signal.SIGTERM)
        manager.hears("STOPPING=1")
        gateway.leave()
    assert sidecar.ended() == 0


def test_the_sign_of_life_ends_with_the_hand_though_all_else_goes_on(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        Stuck(tmp_path_factory.mktemp("s")) as sidecar,
        closing(Manager(sidecar)) as manager,
    ):
        sidecar.launch()
        manager.hears("READY=1")
        manager.hears("WATCHDOG=1")
        sidecar.line("the watchdog of the service manager is not fed")
        while manager.listen() != ["STATUS"]:  # signs that were sent before that
            pass
        for _ in range(2):
            assert manager.listen() == ["STATUS"]
        sidecar.signal(signal.SIGABRT)  # as systemd does then
        assert sidecar.ended() == -signal.SIGABRT
        stacks = [line.get("text", "") for line in sidecar.lines]
        assert any(line.startswith("Current thread") for line in stacks)


def test_systemd_activates_it_when_the_first_gateway_connects(make: Start) -> None:
    sidecar = make()
    activator = ["systemd-socket-activate", f"--listen={sidecar.socket}"]
    sidecar.under = [*activator, f"--fdname={NAME}"]
    sidecar.launch()
    eventually(lambda: any("Listening on" in line["text"] for line in sidecar.lines))
    assert not sidecar.admin.exists()
    with Client(sidecar.socket) as gateway:
        gateway.hello("gw-1")
        gateway.apply("login", "ada", {"conn": 1})
        sidecar.signal(signal.SIGTERM)
        gateway.leave()
        assert sidecar.ended() == 0
    assert sidecar.socket.is_socket()
    assert not sidecar.admin.exists()


def test_a_managers_socket_that_was_removed_is_not_made_anew_and_that_is_said(
    manager: Manager,
) -> None:
    sidecar = manager.sidecar
    sidecar.launch()
    sidecar.line("ready")
    with Client(sidecar.socket) as gateway:
        gateway.hello("gw")
        sidecar.socket.unlink()
        eventually(lambda: sidecar.get("/readyz")[0] == 503)
        assert "restart its unit" in sidecar.get("/readyz")[1]
        assert not sidecar.socket.exists()
        while not any(
            it.startswith("STATUS=not ready: socket") for it in manager.lines
        ):
            manager.listen()
        gateway.sync()
