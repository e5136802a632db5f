"""Gateways that connected before the process listened are read before users are judged."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import trio
from trio.testing import MockClock

from liveness.service.links.sockets import listening
from liveness.service.storage.log_store import LogStore
from tests.helpers.wire import hello, packed
from tests.service.rig import running
from tests.service.storage.journals import keep, online, row, write

GATEWAYS = 20
TIMEOUT_S = 3.0
# Far longer than the time that a gateway has to come back.
ACCEPTS_AFTER_S = 12.0


class Slow(socket.socket):
    """A listening socket of a machine that is short of something for a while."""

    until = 0.0

    def accept(self) -> tuple[socket.socket, object]:
        if trio.current_time() < self.until:
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


def crashed(state: Path) -> None:
    """Leave a user online through each gateway."""
    with closing(LogStore(state)) as store:
        for n in range(1, GATEWAYS + 1):
            write(store, online(n, gateway=f"gw-{n}"))
            keep(store, row(n, f"u{n}", gateway=f"gw-{n}"))


@contextmanager
def waiting(path: Path) -> Iterator[Slow]:
    """Each gateway is connected, has said hello, and that its user lives."""
    with ExitStack() as stack:
        made = stack.enter_context(listening(path))
        slow = stack.enter_context(Slow(fileno=os.dup(made.fileno())))
        for number in range(1, GATEWAYS + 1):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(str(path))
            name, user = f"gw-{number}", f"u{number}"
            sock.sendall(packed(hello(name), ["keepalive", user]))
        slow.until = trio.current_time() + ACCEPTS_AFTER_S
        yield slow


async def test_the_backlog_is_read_before_users_are_judged(
    tmp_path: Path, jumping: MockClock
) -> None:
    crashed(tmp_path / "state")
    async with running(tmp_path, timeout_s=TIMEOUT_S, listen=waiting) as rig:
        await trio.sleep(ACCEPTS_AFTER_S + TIMEOUT_S - 0.5)
        assert rig.presence.events["keepalive"] == GATEWAYS
        assert not rig.engine.is_draining_backlog
        assert not rig.firing.ended.total()
        # And then everyone's clock runs.
        await trio.sleep(TIMEOUT_S + 5)
        assert rig.firing.ended["silence"] == GATEWAYS
