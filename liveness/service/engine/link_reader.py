"""Reads links without waiting, within a time budget per turn of the engine.

A link is read piece by piece, and the server applies each piece before the next is read.
While many records wait for the disk, a turn reads about one small piece of each link. A link
that sends less is still read empty, so that its due users can go offline.
"""

from typing import Final

from liveness.core.links.link import Link
from liveness.core.server import MayRead, ServerParts, Shell
from liveness.service.common.clock import Clock
from liveness.service.links.link_socket import PIECE_BYTES, LinkSocket

# A turn reads gateways for no longer than this; links it did not reach come first in the
# next turn. So a flooding gateway delays the others by this and one receive at most.
READING_S: Final = 0.002
# The time for watchers and links before their hello: half as much.
OTHERS_S: Final = 0.001


class LinkReader:
    """Reads sockets, and gives the server what was read."""

    def __init__(
        self,
        shell: Shell,
        parts: ServerParts,
        sockets: dict[int, LinkSocket],
        clock: Clock,
    ) -> None:
        self._shell = shell
        self._registry, self._pressure = parts.registry, parts.pressure
        self._sockets = sockets
        self._attended = parts.attended
        self._clock = clock
        self._ready: dict[int, Link] = {}
        # Links that had data in the last turn: the next one reads them again,
        # without waiting for their sockets to become readable.
        self._recently_active: dict[int, Link] = {}

    def add(self, link: Link) -> None:
        self._ready[link.number] = link

    def discard(self, link: Link) -> None:
        self._ready.pop(link.number, None)
        self._recently_active.pop(link.number, None)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def expects_more(self) -> bool:
        """Whether the next turn should come soon, since links will have more to read."""
        return bool(self._recently_active) or (
            bool(self._ready) and self._pressure.reads_small_pieces
        )

    def read_ready(self, now: float) -> bool:
        """Read the links that are ready, and those that the server wants to be read.

        Returns:
            Whether to read on in another turn at once.
        """
        links = self._ready | self._recently_active
        with self._shell as server:
            links |= {link.number: link for link in server.links_to_read()}
        self._ready, self._recently_active = {}, {}
        # The link whose last data is oldest comes first, so that one that floods cannot
        # use up the time of a gateway whose users are due.
        in_order = sorted(links.values(), key=lambda link: link.read_at)
        # Other links have a budget of their own: no due user waits for them.
        for is_gateway, budget_s in ((True, READING_S), (False, OTHERS_S)):
            until = self._clock.mono() + budget_s
            for link in in_order:
                if (link.gateway is not None) is not is_gateway or not link.is_open:
                    continue
                if not self.read(link, now, until=until):
                    self._ready[link.number] = link
        can_continue = any(link.can_read_on for link in self._ready.values())
        return can_continue and not self._pressure.reads_small_pieces

    def read_all(self, now: float) -> bool:
        """Read every link within one budget; return whether all were read empty."""
        until = self._clock.mono() + READING_S
        is_empty = [
            self.read(link, now, until=until)
            for link in [*self._registry.links.values()]
        ]
        return all(is_empty)

    def read_sent(self, link: Link, now: float, *, most: int | None = None) -> None:
        """Read what a link has sent up to now, and not what it goes on to send.

        If *most* is given, it stops soon after that many bytes.
        """
        unread = self._sockets[link.number].unread()
        must_read = unread if most is None else min(unread, most)
        self.read(link, now, must_read_bytes=must_read)

    def note_unread(self) -> None:
        """Note for each link how much it has sent that must be read."""
        for socket in self._sockets.values():
            socket.link.must_read_bytes = socket.unread()

    def read(
        self, link: Link, now: float, *, until: float = 0.0, must_read_bytes: int = 0
    ) -> bool:
        """Read one link; return whether it was read empty or ended.

        The budget ends at *until*, in monotonic seconds; *must_read_bytes* are read
        whatever the budget and the disk.
        """
        shell, pressure, clock = self._shell, self._pressure, self._clock
        socket = self._sockets[link.number]
        taken = 0
        mono = clock.mono()
        while taken < must_read_bytes or (
            mono < until and not (taken >= PIECE_BYTES and pressure.reads_small_pieces)
        ):
            with shell as server:
                may_read = server.may_read(link, must=taken < must_read_bytes)
                if may_read is not MayRead.YES:
                    return may_read is MayRead.NO
                most = (
                    PIECE_BYTES if pressure.reads_small_pieces else socket.piece_bytes
                )
                data = socket.receive(most)
                if data is None:
                    server.read_empty(link, now)
                    if taken:
                        self._recently_active[link.number] = link
                    else:
                        socket.drained.notify()
                    return True
                taken += len(data)
                mono = clock.mono()
                at = clock.instant(self._attended.at(mono), mono)
                host = clock.host() if link.hello is None and data else None
                server.received(link, data, at, host)
            if not data:
                return True
            socket.measure(clock.mono() - mono, was_full=len(data) == most)
        return False
