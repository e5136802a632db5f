"""Unix sockets: strict from the first moment, and nobody else's file is touched."""

import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from liveness.errors import StartError
from liveness.service.sockets import listening


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.sock"


def connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(path))
    return sock


def greets(listener: socket.socket, path: Path) -> bool:
    """Whether it is this listener that a connection to *path* arrives at."""
    with connect(path) as client, listener.accept()[0] as server:
        client.send(b"hello")
        return server.recv(9) == b"hello"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        assert os.umask(before) == mask, "the umask was not put back"


# Audit hooks cannot be taken away again, so there is one, and it looks here.
_modes_before_chmod: dict[str, int] = {}


def _note_mode(event: str, args: tuple[object, ...]) -> None:
    if event == "os.chmod" and str(args[0]) in _modes_before_chmod:
        _modes_before_chmod[str(args[0])] = mode(Path(str(args[0])))


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_owner_and_group_may_connect_whatever_the_umask(path: Path, mask: int) -> None:
    with umask(mask), listening(path) as listener:
        assert mode(path) == 0o660
        assert greets(listener, path)


def test_the_file_is_made_strict_before_the_group_is_let_in(path: Path) -> None:
    sys.addaudithook(_note_mode)
    _modes_before_chmod[str(path)] = -1
    with umask(0), listening(path):
        assert _modes_before_chmod.pop(str(path)) == 0o600


def test_the_file_is_there_while_we_listen_and_gone_afterwards(path: Path) -> None:
    with listening(path):
        assert path.is_socket()
    assert not path.exists()


def test_it_is_gone_after_a_failure_too(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), listening(path):
        raise ZeroDivisionError
    assert not path.exists()


def test_accepting_never_blocks(path: Path) -> None:
    with (
        listening(path) as listener,
        pytest.raises(BlockingIOError),
    ):
        listener.accept()


def test_a_file_left_by_a_crash_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as crashed:
        crashed.bind(str(path))
        crashed.listen()
    assert path.is_socket()
    with listening(path) as listener:
        assert greets(listener, path)


@pytest.mark.parametrize("backlog", [8, 0])
def test_a_socket_that_is_served_is_refused_and_goes_on(
    path: Path, backlog: int
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen(backlog)
        waiting = [connect(path)]  # at 0 the backlog is full by now
        with (
            pytest.raises(StartError, match="another process serves there; stop it"),
            listening(path),
        ):
            pass
        other.accept()[0].close()
        assert path.is_socket()
        for sock in waiting:
            sock.close()


def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with (
        pytest.raises(StartError, match="a file that is no socket; it was left alone"),
        listening(path),
    ):
        pass
    assert path.read_text() == "precious"


def test_a_link_to_a_stale_socket_is_not_followed(path: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as crashed:
        crashed.bind(str(tmp_path / "target"))
    path.symlink_to(tmp_path / "target")
    with pytest.raises(StartError, match="no socket"), listening(path):
        pass
    assert path.is_symlink()
    assert (tmp_path / "target").is_socket()


def test_a_folder_that_is_missing_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "gateway.sock"
    with (
        pytest.raises(
            StartError, match=f"socket {path}: it cannot be made .*No such file"
        ),
        listening(path),
    ):
        pass


def test_the_file_of_a_successor_is_not_removed(path: Path) -> None:
    with listening(path):
        path.unlink()
        successor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        successor.bind(str(path))
        successor.listen()
    with successor:
        assert greets(successor, path)


def test_a_file_that_somebody_removed_meanwhile_is_not_missed(path: Path) -> None:
    with listening(path):
        path.unlink()
