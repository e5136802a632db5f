"""Gateways that connected before the process listened are read before users are judged."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import trio
from trio.testing import MockClock

from liveness.config import Config, SocketSettings, StateSettings
from liveness.service.app import load
from liveness.service.clock import Clock
from liveness.service.peers import access_to
from liveness.service.sidecar import Sidecar
from liveness.service.sockets import listening
from liveness.service.store import Store
from liveness.service.timertable import TimerTable
from tests.service.journals import keep, online, row, write
from tests.wire import packed

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
    with closing(Store(state)) as store:
        for n in range(1, GATEWAYS + 1):
            write(store, online(n, gateway=f"gw-{n}"))
            keep(store, row(n, f"u{n}", gateway=f"gw-{n}"))


@contextmanager
def waiting(path: Path) -> Iterator[None]:
    """Each gateway is connected, has said hello, and that its user lives."""
    socks = [socket.socket(socket.AF_UNIX) for _ in range(GATEWAYS)]
    try:
        for number, sock in enumerate(socks, 1):
            sock.connect(str(path))
            hello = {"protocol": 1, "name": f"gw-{number}"}
            sock.sendall(packed(["hello", hello], ["keepalive", f"u{number}"]))
        yield
    finally:
        for sock in socks:
            sock.close()


async def test_the_backlog_is_read_before_users_are_judged(
    tmp_path: Path, jumping: MockClock
) -> None:
    config = Config(
        timeout_s=TIMEOUT_S,
        socket=SocketSettings(path=tmp_path / "g.sock"),
        state=StateSettings(dir=tmp_path / "state"),
    )
    crashed(config.state.dir)
    with (
        closing(Store(config.state.dir)) as store,
        closing(TimerTable(config.state.dir, log=store.log)) as table,
        listening(config.socket.path) as made,
        Slow(fileno=os.dup(made.fileno())) as listener,
        waiting(config.socket.path),
    ):
        access = access_to(config.access, group=os.getegid())
        sidecar: Sidecar = load(config, store, table, Clock(), access)
        listener.until = trio.current_time() + ACCEPTS_AFTER_S
        async with trio.open_nursery() as nursery:
            await nursery.start(sidecar.run, trio.sleep_forever, listener, {})
            await trio.sleep(ACCEPTS_AFTER_S + TIMEOUT_S - 0.5)
            assert sidecar.presence.events["keepalive"] == GATEWAYS
            assert not sidecar.engine.takes_in
            assert not sidecar.presence.ended.total()
            # And then everyone's clock runs.
            await trio.sleep(TIMEOUT_S + 5)
            assert sidecar.presence.ended["silence"] == GATEWAYS
            nursery.cancel_scope.cancel()
