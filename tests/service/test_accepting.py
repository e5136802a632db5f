"""What befalls one that connects ends neither the listening nor the others."""

import errno
import socket
from collections import Counter
from pathlib import Path

import pytest
import trio

from liveness.service.accepting import Acceptor
from liveness.service.sockets import listening


class Unlucky(socket.socket):
    """A listening socket, of which the first to come is lost on the way."""

    code = 0

    def accept(self) -> tuple[socket.socket, object]:
        sock, address = super().accept()
        if self.code:
            sock.close()
            self.code, code = 0, self.code
            raise OSError(code, "lost on the way")
        return sock, address


@pytest.mark.parametrize(
    "code",
    [errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH],
)
async def test_one_that_is_lost_on_the_way_is_passed_over(
    tmp_path: Path, code: int
) -> None:
    put_off = Counter[str]()
    with listening(tmp_path / "s") as sock:
        unlucky = Unlucky(fileno=sock.detach())
        unlucky.code = code
        with unlucky, trio.fail_after(10):
            lost, kept = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
            with lost, kept:
                lost.connect(str(tmp_path / "s"))
                kept.connect(str(tmp_path / "s"))
                kept.sendall(b"here")
                with await Acceptor(unlucky, "gateway", put_off).accept() as accepted:
                    assert accepted.recv(9) == b"here"
    assert not put_off


async def test_a_fault_of_ours_is_not_passed_over(tmp_path: Path) -> None:
    with listening(tmp_path / "s") as sock:
        unlucky = Unlucky(fileno=sock.detach())
        unlucky.code = errno.EINVAL
        with unlucky, socket.socket(socket.AF_UNIX) as one:
            one.connect(str(tmp_path / "s"))
            with pytest.raises(OSError, match="lost on the way"):
                await Acceptor(unlucky, "gateway", Counter()).accept()
