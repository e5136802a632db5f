"""Accepts links, and runs the two tasks of each until it closes.

One task of a link notifies the engine when its socket is readable, the other writes what
is in its outbox. Neither reads: the engine receives, decodes and applies synchronously,
so that all bytes that were read are applied before it decides who is offline.
"""

import socket

import structlog
import trio

from liveness.core.links.link_registry import LinkRegistry
from liveness.service.engine.engine import Engine
from liveness.service.links.acceptor import Acceptor
from liveness.service.links.credentials import peer_of
from liveness.service.links.link_socket import (
    LINGER_S,
    PIECE_BYTES,
    Delivery,
    LinkSocket,
)

_log = structlog.get_logger("link")


async def accept_links(
    listener: socket.socket,
    engine: Engine,
    registry: LinkRegistry,
    delivery: Delivery,
) -> None:
    """Accept links until the stop begins; an error of a link ends only that link.

    Links that connect later wait in the socket's backlog. If systemd keeps the socket, the
    next process accepts them.
    """
    acceptor = Acceptor(listener, "gateway", delivery.counts.accepts_put_off)
    async with trio.open_nursery() as nursery:
        with engine.accepting:
            while True:
                if engine.is_draining_backlog and not acceptor.has_waiting():
                    engine.is_draining_backlog = False
                sock = await acceptor.accept()
                try:
                    peer = peer_of(sock)
                except OSError as error:
                    sock.close()
                    _log.warning("no credentials of a new link", error=str(error))
                    continue
                link = engine.connected(sock, peer, delivery)
                nursery.start_soon(_serve, link, engine)
                if registry.is_crowded:
                    # First let the engine read the hellos of these links, and end some of
                    # those that have sent none.
                    engine.handshakes_expired.clear()
                    engine.turn_wanted.notify()
                    await engine.handshakes_expired.wait()


async def _serve(link: LinkSocket, engine: Engine) -> None:
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch_readable, link, engine)
            await link.run()
            nursery.cancel_scope.cancel()
        await _close_gracefully(link)
    except Exception as error:
        # A bug of the sidecar: this link ends, the others go on.
        engine.failed(link, error)
    finally:
        link.close()
        engine.closed(link)


async def _watch_readable(link: LinkSocket, engine: Engine) -> None:
    while link.link.is_open:
        await trio.lowlevel.wait_readable(link.sock)
        if link.link.is_open:
            engine.readable(link)
            await link.drained.wait()


async def _close_gracefully(link: LinkSocket) -> None:
    """Let the peer read the last frame before the socket is closed.

    If it were closed with unread bytes, the peer's next read would fail instead. A link
    without a hello is not waited for, since there may be thousands: only what it has sent
    by now is read.
    """
    try:
        link.sock.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the peer has closed it
    link.receive(max(1, link.unread()))
    with trio.move_on_after(0 if link.link.hello is None else LINGER_S):
        while link.receive(PIECE_BYTES) != b"":
            await trio.lowlevel.wait_readable(link.sock)
