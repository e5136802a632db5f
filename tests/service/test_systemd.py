"""The protocols of a service manager: sockets it hands over, and what it is sent."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from liveness.errors import StartError
from liveness.service.components import TURN_DEAD_S
from liveness.service.systemd import ServiceManager, passed_socket
from tests.service.rig import Rig

PID = 7

Lines = list[Any]


def environ(count: str = "1", pid: int = PID) -> dict[str, str]:
    return {"LISTEN_PID": str(pid), "LISTEN_FDS": count}


def unused(sock: socket.socket) -> ServiceManager:
    """A manager that passes this one, where 3 is another's number."""
    manager = ServiceManager(environ(), PID)
    assert manager.descriptor == 3
    manager.descriptor = sock.detach()
    return manager


@pytest.mark.parametrize(
    ("given", "taken"),
    [(environ(), 3), (environ(pid=PID + 1), None), (environ("0"), None), ({}, None)],
)
def test_a_socket_is_taken_if_it_is_meant_for_us(
    given: dict[str, str], taken: int | None
) -> None:
    assert passed_socket(given, PID) == taken


@pytest.mark.parametrize("count", ["2", "two", "1\n2"])
def test_more_than_one_socket_is_refused_in_one_line(count: str) -> None:
    with pytest.raises(StartError) as caught:
        passed_socket(environ(count), PID)
    assert str(caught.value).startswith(f"LISTEN_FDS={count!r} is not 1: have the")
    assert len(str(caught.value).splitlines()) == 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.sock"


@pytest.fixture
def handed(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(path))
        sock.listen()
        os.set_inheritable(sock.fileno(), True)
        yield sock


async def test_what_is_handed_over_is_used_as_it_is(
    handed: socket.socket, path: Path
) -> None:
    number, linked = handed.fileno(), path.with_name("link")
    linked.symlink_to(path)
    sock = unused(handed).socket(linked)
    assert sock is not None
    assert ServiceManager({}, PID).socket(linked) is None
    with sock:
        assert sock.fileno() == number
        assert not os.get_inheritable(number)
        with pytest.raises(BlockingIOError):
            sock.accept()


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_a_socket_where_nobody_looks_is_refused(
    handed: socket.socket, path: Path, elsewhere: bool
) -> None:
    wanted = path.with_name("wanted")
    if elsewhere:
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(wanted))
    with pytest.raises(StartError) as caught:
        unused(handed.dup()).socket(wanted)
    assert str(caught.value) == (
        f"the service manager's socket is at {path}, and clients look for it at "
        f"{wanted}; name one path in ListenStream= and socket.path"
    )


async def test_a_socket_without_a_file_is_refused(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as abstract:
        abstract.bind(f"\0liveness-{os.getpid()}")
        abstract.listen()
        with pytest.raises(StartError, match=r"and clients look for it at"):
            unused(abstract.dup()).socket(path)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (socket.AF_UNIX, socket.SOCK_STREAM),  # which does not listen
        (socket.AF_UNIX, socket.SOCK_DGRAM),
        (socket.AF_INET, socket.SOCK_STREAM),
    ],
)
async def test_what_does_not_listen_for_gateways_is_refused(
    path: Path, family: int, kind: int
) -> None:
    with (
        socket.socket(family, kind) as sock,
        pytest.raises(StartError, match=r"no Unix stream socket that listens; give it"),
    ):
        unused(sock.dup()).socket(path)


class Told:
    """The other end of `NOTIFY_SOCKET`, an abstract one."""

    def __init__(self) -> None:
        name = f"liveness-{os.getpid()}"
        self.address = f"@{name}"
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(f"\0{name}")
        self.sock.setblocking(False)

    def __call__(self) -> list[list[str]]:
        """The lines of each datagram since this was asked last."""
        found = []
        while True:
            try:
                found.append(self.sock.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return found


@pytest.fixture
def notify() -> Iterator[Told]:
    told = Told()
    with told.sock:
        yield told


async def test_without_a_manager_nothing_is_sent() -> None:
    await ServiceManager({"WATCHDOG_USEC": "1"}, PID).notify("READY=1")


async def test_a_manager_that_is_gone_is_logged_once_a_minute(
    tmp_path: Path, autojump_clock: MockClock, said: Lines
) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}, PID)
    await manager.notify("READY=1")
    await manager.notify("STATUS=2")
    (line,) = said
    assert line["event"] == "the service manager cannot be notified"
    assert (line["lost"], line["log_level"]) == ("READY=1", "warning")


async def test_a_manager_that_reads_nothing_is_not_waited_for(
    notify: Told, autojump_clock: MockClock, said: Lines
) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": notify.address}, PID)
    while not said:  # until its buffer is full
        await manager.notify("STATUS=more")
    assert said[0]["error"] == "it reads nothing"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "20000000"}, 20.0),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": str(PID)}, 20.0),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": str(PID + 1)}, 0.0),
    ],
)
async def test_a_sign_of_life_is_given_to_a_manager_that_wants_it(
    given: dict[str, str], seconds: float
) -> None:
    assert ServiceManager(given, PID).watchdog_s == seconds


async def test_the_sign_of_life_ends_while_the_hand_stands_still(
    rig: Rig, said: Lines, notify: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"NOTIFY_SOCKET": notify.address, "WATCHDOG_USEC": "4000000"}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ServiceManager(given, PID).report_status, rig.sidecar)
        await trio.sleep(20.5)
        status = "STATUS=ready, 0 users online"
        assert notify() == [["WATCHDOG=1", status]] * 11
        # What a hand is that moves no more: it is called, and does nothing.
        with monkeypatch.context() as stuck:
            stuck.setattr(rig.engine, "turn", lambda: trio.current_time() + 1)
            await trio.sleep(60)
            assert rig.sidecar.why_unhealthy()
        signs = notify()
        alive = [lines for lines in signs if "WATCHDOG=1" in lines]
        assert len(alive) <= TURN_DEAD_S / 2 + 1
        assert signs[-1][0].startswith("STATUS=not ready: the hand stands still")
        await trio.sleep(4)
        assert notify()[-1] == ["WATCHDOG=1", status]
        nursery.cancel_scope.cancel()
    ill = [line for line in said if line["log_level"] == "error"]
    assert ill[0]["event"] == "the watchdog of the service manager is not fed"


@pytest.mark.parametrize("value", ["soon", "9" * 400])
async def test_an_interval_that_no_manager_says_is_refused(value: str) -> None:
    with pytest.raises(StartError, match=rf"^WATCHDOG_USEC='{value}' is "):
        ServiceManager({"WATCHDOG_USEC": value}, PID)
