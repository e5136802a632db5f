"""Who is connected, under which name, and how a link ends."""

from dataclasses import dataclass
from typing import Final

import structlog
import trio

from liveness.core.clock import AttendedClock
from liveness.core.records import GATEWAY, Hello, Refusal
from liveness.errors import Code
from liveness.metrics import Counts
from liveness.service.clock import Clock
from liveness.service.journal import Journal
from liveness.service.links import SocketLink
from liveness.service.logs import Every

# Links over the limit that are being told so; more are closed without a word.
REFUSED_ROOM: Final = 64

REFUSALS_LOG_S: Final = 10.0

_log = structlog.get_logger("link")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBookLimits:
    """How many there may be, and how long one may say nothing at first."""

    hello_s: float
    max_links: int
    max_names: int


class LinkBook:
    """All links, from accept to close.

    Args:
        attended: Attended time, for gateways whose link ends.
        clock: For the log.
        journal: Told which names are linked; knows those that were.
        counts: Where refusals are counted.
        limits: How many there may be.
    """

    def __init__(
        self,
        *,
        attended: AttendedClock,
        clock: Clock,
        journal: Journal,
        counts: Counts,
        limits: LinkBookLimits,
    ) -> None:
        self.links: dict[int, SocketLink] = {}  # by number
        self.named: dict[tuple[str, str], SocketLink] = {}  # by role and name
        self.all_closed = trio.Event()  # after the farewell
        self._is_stopping = False
        self._strangers: dict[int, SocketLink] = {}  # before their hello
        self._attended = attended
        self._journal = journal
        self._counts = counts
        self._limits = limits
        self._every = Every(REFUSALS_LOG_S, clock=clock.mono)

    # --- who there is ---------------------------------------------------------

    @property
    def is_overrun(self) -> bool:
        """Whether there is no room even to tell a link that there is no room."""
        return len(self.links) >= self._limits.max_links + REFUSED_ROOM

    def linked(self, role: str) -> int:
        """How many links of this role have said hello."""
        return sum(key[0] == role for key in self.named)

    def unacked(self, gateway: str) -> int:
        """Records that a gateway was sent and has not acknowledged."""
        link = self.named.get((GATEWAY, gateway))
        return 0 if link is None else link.outbox.unacked

    # --- they come ------------------------------------------------------------

    def opened(self, link: SocketLink) -> None:
        """Take on a link that was accepted, if there is room."""
        is_full = len(self.links) >= self._limits.max_links
        self.links[link.number] = link
        if self._is_stopping:
            self.end(link, why="the sidecar stops")
        elif is_full:
            self.refuse(
                link,
                link.conversation.close(
                    Code.OVERLOADED,
                    f"there are {self._limits.max_links} links already; connect later, "
                    "or raise limits.max_links",
                ),
            )
        else:
            self._strangers[link.number] = link

    def has_room_for(self, hello: Hello) -> bool:
        """Whether one more name may be known, if this is one to be kept."""
        cursors = self._journal.cursors
        is_kept = hello.role == GATEWAY or hello.ack
        is_new = (hello.role, hello.name) not in cursors
        return not (is_kept and is_new and len(cursors) >= self._limits.max_names)

    def name(self, link: SocketLink, hello: Hello) -> None:
        """Have *link* found by the name that it said."""
        key = (hello.role, hello.name)
        self.named[key] = link
        self._strangers.pop(link.number, None)
        self._journal.linked.add(key)
        _log.info("link up", role=hello.role, name=hello.name, link=link.number)

    # --- they go --------------------------------------------------------------

    def refuse(self, link: SocketLink, refusal: Refusal) -> None:
        """Tell a link that a frame is refused, or that this is its end, and why."""
        self._counts.refused[refusal.code.value] += 1
        hello = link.hello
        name = None if hello is None else hello.name
        self._every(
            _log.warning,
            "link refused" if refusal.fatal else "frame refused",
            key=(name, refusal.code),
            name=name,
            link=link.number,
            code=refusal.code.value,
            detail=refusal.message,
        )
        if refusal.fatal:
            self.end(link, refusal.as_frame(), why=refusal.code.value)
        elif link.is_open:
            link.outbox.reply(refusal.as_frame())

    def end(self, link: SocketLink, frame: object | None = None, *, why: str) -> None:
        """Take no more bytes of a link; it closes once its outbox is written."""
        link.end(frame, why=why)
        self._part(link)

    def closed(self, link: SocketLink) -> None:
        """Forget a link whose socket is closed."""
        self._part(link)
        del self.links[link.number]
        self._strangers.pop(link.number, None)
        if self._is_stopping and not self.links:
            self.all_closed.set()

    def slow(self, now: float) -> list[SocketLink]:
        """Those that have said no hello for too long, in attended seconds."""
        return [
            link
            for link in self._strangers.values()
            if now - link.opened_at > self._limits.hello_s and link.is_open
        ]

    def send_away(self, link: SocketLink) -> None:
        """End one of the slow, unless it has said hello by now."""
        if link.is_open and link.hello is None:
            self.refuse(
                link,
                link.conversation.close(
                    Code.TOO_SLOW,
                    f"no hello within {self._limits.hello_s:g} s; it comes first",
                ),
            )

    def bid_farewell(self, reason: str) -> None:
        """End all links with `bye`, once what they asked for is answered."""
        self._is_stopping = True
        if not self.links:
            self.all_closed.set()
        for link in [*self.links.values()]:
            if link.hello is None:
                self.end(link, why=reason)
            else:
                self.end(link, ["bye", {"reason": reason}], why=reason)

    def _part(self, link: SocketLink) -> None:
        """Let go of the name of a link that has ended."""
        hello = link.hello
        if hello is None or self.named.get((hello.role, hello.name)) is not link:
            return
        del self.named[hello.role, hello.name]
        self._journal.linked.discard((hello.role, hello.name))
        if link.gateway is not None:
            link.gateway.unlinked(self._attended.now)
        _log.info(
            "link down", role=hello.role, name=hello.name, link=link.number,
            why=link.why_closed,
        )  # fmt: skip
