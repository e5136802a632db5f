"""Unix sockets: strict from the first moment, and nobody else's file is touched."""

import os
import socket
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from liveness.errors import StartError
from liveness.places import make_socket_folder
from liveness.service.accepting import Acceptor
from liveness.service.sockets import Listener, listening


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


# Audit hooks cannot be taken away again, so there is one, and it looks here: what to do
# before a call that is about this file, once.
_before: dict[tuple[str, str], Callable[[], object]] = {}


def _audit(event: str, args: tuple[object, ...]) -> None:
    if not _before or event not in {"open", "os.chmod"}:
        return
    # A descriptor's name in /proc leads to its file.
    act = _before.pop((event, os.path.realpath(str(args[0]))), None)
    if act is not None:
        act()


@contextmanager
def before(event: str, path: Path, act: Callable[[], object]) -> Iterator[None]:
    """Do something just before *path* is opened or its mode is changed."""
    sys.addaudithook(_audit)
    _before[event, os.path.realpath(path)] = act
    yield
    assert not _before, "that never came"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_owner_and_group_may_connect_whatever_the_umask(path: Path, mask: int) -> None:
    with umask(mask), listening(path) as listener:
        assert mode(path) == 0o660
        assert greets(listener, path)


def test_the_file_is_made_strict_before_the_group_is_let_in(path: Path) -> None:
    modes: list[int] = []
    noted = before("os.chmod", path, lambda: modes.append(mode(path)))
    with umask(0), noted, listening(path):
        assert modes == [0o600]


def replaced_by_a_link(path: Path) -> Path:
    """Put a link in the place of what is at *path*; return the file that it leads to."""
    secret = path.with_name("secret")
    path.unlink()
    path.symlink_to(secret)
    return secret


@pytest.mark.parametrize("event", ["open", "os.chmod"])
def test_what_took_its_place_as_it_was_made_is_not_opened_to_others(
    path: Path, event: str
) -> None:
    secret = path.with_name("secret")
    secret.touch(0o600)
    with (
        before(event, path, lambda: replaced_by_a_link(path)),
        # Seen, where it comes before the socket's file is held.
        suppress(StartError) if event == "os.chmod" else pytest.raises(StartError),
        listening(path, mode=0o666, group=os.getegid()),
    ):
        pass
    assert mode(secret) == 0o600


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


# --- removed or replaced while it is listened on --------------------------------------


def test_it_knows_whether_its_path_leads_to_it(path: Path) -> None:
    with listening(path) as listener:
        assert listener.is_reachable()
        path.rename(path.with_name("elsewhere"))
        assert not listener.is_reachable()
        path.touch()
        assert not listener.is_reachable()
        path.with_name("elsewhere").rename(path)
        assert listener.is_reachable()


def remove(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()


def is_there(path: Path) -> bool:
    return os.path.lexists(path)


async def test_made_anew_it_is_as_it_was_and_who_waits_to_accept_waits_on(
    path: Path,
) -> None:
    accepted: list[socket.socket] = []
    with listening(path, mode=0o666, group=os.getegid()) as listener:
        acceptor = Acceptor(listener, "gateway", Counter())
        with closing(connect(path)) as early, closing(listener.accept()[0]) as served:

            async def accept_one() -> None:
                with trio.fail_after(10):
                    accepted.append(await acceptor.accept())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(accept_one)
                await trio.testing.wait_all_tasks_blocked()
                remove(path)
                listener.make_anew()
                assert listener.is_reachable()
                assert mode(path) == 0o666
                late = connect(path)
            with late, accepted[0]:
                late.send(b"hello")
                assert accepted[0].recv(9) == b"hello"
            early.send(b"goes on")
            assert served.recv(9) == b"goes on"
    assert not is_there(path)


async def test_its_folder_is_made_anew_too(path: Path) -> None:
    path = path.parent / "folder" / path.name
    make_socket_folder(path)
    with listening(path) as listener:
        remove(path)
        remove(path.parent)
        listener.make_anew()
        assert greets(listener, path)


async def test_another_that_serves_there_now_is_left_alone(path: Path) -> None:
    with listening(path) as listener:
        remove(path)
        with listening(path) as other:
            with pytest.raises(StartError, match="another process serves there"):
                listener.make_anew()
            other.accept()[0].close()  # who only looked
            assert greets(other, path)
        listener.make_anew()
        assert greets(listener, path)


async def test_one_that_was_handed_over_is_its_managers_to_make_anew(
    path: Path,
) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as managers:
        managers.bind(str(path))
        managers.listen()
        with Listener(path, fileno=os.dup(managers.fileno())) as listener:
            listener.found()
            assert listener.is_reachable()
            remove(path)
            assert not listener.is_reachable()
            with pytest.raises(StartError, match="restart its unit"):
                listener.make_anew()
            assert not is_there(path)
