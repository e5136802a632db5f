"""Links from accept to close.

Reading is the engine's: it receives, decodes and applies in one synchronous pass, so
that no byte sits read and unapplied while somebody is judged. A link's own two tasks
say when there is something to read, and write what its outbox holds.
"""

import socket

import structlog
import trio

from liveness.service.engine.engine import Engine
from liveness.service.links.acceptor import Acceptor
from liveness.service.links.credentials import peer_of
from liveness.service.links.link import PIECE_BYTES, SocketLink
from liveness.service.links.outbox import LINGER_S, Delivery, Outbox

_log = structlog.get_logger("link")


async def accept_links(
    listener: socket.socket, engine: Engine, delivery: Delivery
) -> None:
    """Accept links until the farewell; a link's own troubles end only that link.

    Who connects after it waits in the backlog: for the next process, where a service
    manager keeps the socket.

    Args:
        listener: Non-blocking, listening.
        engine: Who reads them.
        delivery: What their outboxes share.
    """
    number = 0
    acceptor = Acceptor(listener, "gateway", delivery.counts.accepts_put_off)
    async with trio.open_nursery() as nursery:
        with engine.book.accepting:
            while True:
                engine.draining_backlog = (
                    engine.draining_backlog and acceptor.has_waiting()
                )
                sock = await acceptor.accept()
                try:
                    peer = peer_of(sock)
                except OSError as error:
                    sock.close()
                    _log.warning("nobody knows who connected", error=str(error))
                    continue
                number += 1
                link = SocketLink(
                    sock,
                    engine.converse(),
                    Outbox(sock, delivery),
                    peer=peer,
                    number=number,
                    opened_at=engine.attended,
                )
                engine.book.opened(link)
                if engine.draining_backlog:
                    link.must_read_bytes = link.unread()
                nursery.start_soon(_serve, link, engine)
                if engine.book.is_crowded:
                    # Before more come the engine is to read what those have said, and
                    # to end some of those that have said nothing.
                    engine.book.thinned.clear()
                    engine.wanted.notify()
                    await engine.book.thinned.wait()


async def _serve(link: SocketLink, engine: Engine) -> None:
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, link, engine)
            await link.outbox.run()
            nursery.cancel_scope.cancel()
        await _see_off(link)
    except Exception:
        # Ours, whatever it is: this link ends, the others go on.
        _log.exception("a fault of the sidecar", link=link.number)
        engine.book.count_fault()
        link.tell_of_a_fault()
    finally:
        link.outbox.close()
        link.is_open = False
        trio.lowlevel.notify_closing(link.sock)
        link.sock.close()
        engine.closed(link)


async def _watch(link: SocketLink, engine: Engine) -> None:
    """Say when there is something to read, and wait until it has been read."""
    while link.is_open:
        await trio.lowlevel.wait_readable(link.sock)
        if link.is_open:
            engine.readable(link)
            await link.drained.wait()


async def _see_off(link: SocketLink) -> None:
    """Let the other side read the last frame before it meets a closed socket.

    Closing with bytes unread would make its next read or write fail instead. Who never
    said hello is not waited for, as there may be thousands of those: only what it had sent
    by now is taken.
    """
    try:
        link.sock.shutdown(socket.SHUT_WR)
    except OSError:
        return  # it has gone already
    link.receive(max(1, link.unread()))
    with trio.move_on_after(0 if link.hello is None else LINGER_S):
        while link.receive(PIECE_BYTES) != b"":
            await trio.lowlevel.wait_readable(link.sock)
