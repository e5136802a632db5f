"""Unix sockets: strict from the first moment, and nobody else's file is touched."""

import errno
import os
import socket
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
import trio
import trio.testing

from liveness.config.settings import AccessSettings
from liveness.core.access import Allowed, Peer
from liveness.errors import StartError
from liveness.service.links.acceptor import Acceptor
from liveness.service.links.credentials import access_to, peer_of
from liveness.service.links.sockets import UnixListener, listening, make_socket_folder
from tests.helpers.needs import as_root


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


@pytest.mark.parametrize("mask", [0o000, 0o777])
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
def test_a_file_put_in_its_place_is_not_opened_to_others(
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
        with connect(path):  # at 0 the backlog is full by now
            is_refused(path, "another process serves there; stop it")
            other.accept()[0].close()
            assert path.is_socket()


def is_refused(path: Path, why: str) -> None:
    with pytest.raises(StartError, match=why), listening(path):
        pass


def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    is_refused(path, "a file that is not a socket; it was left alone")
    assert path.read_text() == "precious"


def test_a_link_to_a_stale_socket_is_not_followed(path: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as crashed:
        crashed.bind(str(tmp_path / "target"))
    path.symlink_to(tmp_path / "target")
    is_refused(path, "not a socket")
    assert path.is_symlink()
    assert (tmp_path / "target").is_socket()


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "gateway.sock"
    is_refused(path, f"socket {path}: it cannot be made .*No such file")


def test_the_file_of_a_successor_is_not_removed(path: Path) -> None:
    with listening(path):
        path.unlink()
        successor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        successor.bind(str(path))
        successor.listen()
    with successor:
        assert greets(successor, path)


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
    path.unlink()


def is_there(path: Path) -> bool:
    return os.path.lexists(path)


async def test_a_socket_made_anew_keeps_its_mode_and_who_accepts(path: Path) -> None:
    accepted: list[socket.socket] = []
    with listening(path, mode=0o666, group=os.getegid()) as listener:
        acceptor = Acceptor(listener, "gateway", Counter())

        async def accept_one() -> None:
            with trio.fail_after(10):
                accepted.append(await acceptor.accept())

        with closing(connect(path)) as early, closing(listener.accept()[0]) as served:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(accept_one)
                await trio.testing.wait_all_tasks_blocked()
                remove(path)
                listener.rebind()
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
        path.parent.rmdir()
        listener.rebind()
        assert greets(listener, path)


async def test_another_that_serves_there_now_is_left_alone(path: Path) -> None:
    with listening(path) as listener:
        remove(path)
        with listening(path) as other:
            with pytest.raises(StartError, match="another process serves there"):
                listener.rebind()
            other.accept()[0].close()  # the connection that only looked
            assert greets(other, path)
        listener.rebind()
        assert greets(listener, path)


async def test_a_socket_that_was_handed_over_is_left_to_its_manager(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as managers:
        managers.bind(str(path))
        managers.listen()
        with UnixListener(path, fileno=os.dup(managers.fileno())) as listener:
            listener.found()
            assert listener.is_reachable()
            remove(path)
            assert not listener.is_reachable()
            with pytest.raises(StartError, match="restart its unit"):
                listener.rebind()
            assert not is_there(path)


# --- connections that are lost before they are accepted -------------------------------


class Unlucky(socket.socket):
    """A listening socket whose first connection is lost on the way."""

    code = 0

    def accept(self) -> tuple[socket.socket, object]:
        sock, address = super().accept()
        if self.code:
            sock.close()
            self.code, code = 0, self.code
            raise OSError(code, "lost on the way")
        return sock, address


@pytest.mark.parametrize("code", [errno.ECONNABORTED, errno.EPERM, errno.EHOSTUNREACH])
async def test_a_connection_lost_before_it_was_accepted_is_skipped(
    path: Path, code: int
) -> None:
    put_off = Counter[str]()
    with listening(path) as sock:
        unlucky = Unlucky(fileno=sock.detach())
        unlucky.code = code
        with unlucky, trio.fail_after(10):
            lost, kept = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
            with lost, kept:
                lost.connect(str(path))
                kept.connect(str(path))
                kept.sendall(b"here")
                with await Acceptor(unlucky, "gateway", put_off).accept() as accepted:
                    assert accepted.recv(9) == b"here"
    assert not put_off


async def test_a_fault_of_ours_while_accepting_is_not_skipped(path: Path) -> None:
    with listening(path) as sock:
        unlucky = Unlucky(fileno=sock.detach())
        unlucky.code = errno.EINVAL
        with unlucky, socket.socket(socket.AF_UNIX) as one:
            one.connect(str(path))
            with pytest.raises(OSError, match="lost on the way"):
                await Acceptor(unlucky, "gateway", Counter()).accept()


# --- the credentials of a peer, by the kernel -----------------------------------------


PROGRAM: Final = """
import os, socket, sys
from liveness.service.links.credentials import peer_of
os.setgid(7)
os.setgroups(range(1_000, 1_000 + int(sys.argv[1])))
ours, theirs = socket.socketpair()
peer = peer_of(ours)
print(peer.groups == {7, *os.getgroups()}, peer.pid == os.getpid())
"""


@as_root
@pytest.mark.parametrize("groups", [0, 1, 64, 65, 300, 65_536])
def test_all_groups_of_a_peer_are_known_however_many(groups: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(groups)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "True True\n", ran.stderr


def test_a_peer_is_the_process_at_the_other_end_with_its_user_and_groups() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        groups = frozenset({os.getegid(), *os.getgroups()})
        assert peer_of(ours) == Peer(os.getpid(), os.geteuid(), groups)


def test_the_settings_of_access_name_users_and_groups_of_this_host() -> None:
    settings = AccessSettings(
        gateways="own,root,5,4294967294",
        watchers="@own,@root,@9",
        everyone="*",
        names="gw-1=6,gw-2=own",
    )
    found = access_to(settings, group=77)
    assert found.gateways == Allowed(users=frozenset({os.geteuid(), 0, 5, 2**32 - 2}))
    assert found.watchers == Allowed(groups=frozenset({77, 0, 9}))
    assert found.everyone == Allowed(anyone=True)
    assert found.names == {"gw-1": 6, "gw-2": os.geteuid()}


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("no-such-user", "the user 'no-such-user', which does not exist"),
        ("@no-such-group", "the group 'no-such-group', which does not exist"),
        ("4294967295", "the user 4294967295, and the highest id of a user is"),
        ("@" + "9" * 5_000, "the group 9{40}, and the highest id of a group is"),
    ],
    ids=["user", "group", "number", "many digits"],
)
def test_who_is_not_on_this_host_is_named(named: str, why: str) -> None:
    with pytest.raises(StartError, match=f"access.gateways names {why}"):
        access_to(AccessSettings(gateways=named), group=7)
