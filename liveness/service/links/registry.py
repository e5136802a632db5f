"""Who is connected, under which name, and how a link ends."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from liveness.core.access import Access
from liveness.core.attended_clock import AttendedClock
from liveness.core.records import GATEWAY, Hello, Refusal
from liveness.errors import Code
from liveness.metrics import Counts
from liveness.service.common.clock import Clock
from liveness.service.common.logs import Every
from liveness.service.common.notifier import Notifier
from liveness.service.links.link import SocketLink
from liveness.service.links.outbox import Excess, Outbox
from liveness.service.links.partial_frames import Unfinished
from liveness.service.links.unread_replies import Unread
from liveness.service.storage.log_writer import LogWriter

# Of those that may be without a hello, the newest that stay when there are too many.
SPARED: Final = 0.75

REFUSALS_LOG_S: Final = 10.0

_log = structlog.get_logger("link")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRegistryLimits:
    """How many there may be, and how long one may say nothing at first."""

    hello_s: float
    max_links: int
    max_handshakes: int
    max_gateways: int
    max_names: int
    max_unfinished_bytes: int


class LinkRegistry:
    """All links, from accept to close.

    Args:
        attended: Attended time, for gateways whose link ends.
        clock: For the log.
        log_writer: Knows the names that were linked.
        counts: Where refusals are counted.
        access: Who may be what.
        unread: What all links together leave unread.
        limits: How many there may be.
    """

    def __init__(
        self,
        *,
        attended: AttendedClock,
        clock: Clock,
        log_writer: LogWriter,
        counts: Counts,
        access: Access,
        unread: Unread,
        limits: LinkRegistryLimits,
    ) -> None:
        self.links: dict[int, SocketLink] = {}  # by number
        self.named: dict[tuple[str, str], SocketLink] = {}  # by role and name
        self.all_closed = trio.Event()  # after the farewell
        self.thinned = Notifier()  # rung when those that say no hello were looked at
        self.accepting = trio.CancelScope()  # until the farewell
        self.unfinished = Unfinished(most_bytes=limits.max_unfinished_bytes)
        self._strangers: dict[int, SocketLink] = {}  # before their hello
        self._attended = attended
        self._clock = clock
        self._log_writer = log_writer
        self._counts = counts
        self.access = access  # asked when a link opens and says hello
        self._unread = unread
        self._looked_at = attended.now
        self._limits = limits
        self._every = Every(REFUSALS_LOG_S, clock=clock.mono)

    # --- who there is ---------------------------------------------------------

    @property
    def is_crowded(self) -> bool:
        """Whether more links than may have not said hello yet."""
        return len(self._strangers) > self._limits.max_handshakes

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
        # Behind those who have waited for longer: newcomers without end would otherwise
        # use up the time of everyone who was there before.
        link.read_at = self._clock.mono()
        if (why := self.access.why_no_link(link.peer)) is not None:
            self.refuse(link, link.conversation.close(Code.NOT_ALLOWED, why))
        elif is_full:
            self.refuse(
                link,
                link.conversation.close(
                    Code.OVERLOADED,
                    f"there are {self._limits.max_links} links already; connect later, "
                    "or raise limits.max_links",
                    limit="limits.max_links",
                ),
            )
        else:
            self._strangers[link.number] = link

    def objection(self, link: SocketLink, hello: Hello) -> Refusal | None:
        """Why a link cannot be welcomed, in the order in which a person would mend it."""
        close = link.conversation.close
        if (why := self.access.why_not(link.peer, hello)) is not None:
            return close(Code.NOT_ALLOWED, why)
        key, limits = (hello.role, hello.name), self._limits
        if (
            hello.role == GATEWAY
            and key not in self.named
            and self.linked(GATEWAY) >= limits.max_gateways
        ):
            return close(
                Code.OVERLOADED,
                f"there are {limits.max_gateways} gateways already; connect later, or "
                "raise limits.max_gateways",
                limit="limits.max_gateways",
            )
        cursors = self._log_writer.cursors
        is_kept = hello.role == GATEWAY or hello.ack
        if is_kept and key not in cursors and len(cursors) >= limits.max_names:
            return close(
                Code.OVERLOADED,
                f"{len(cursors)} names are known and kept for the retention; use one of "
                "them, forget one with `liveness gateways forget`, or raise "
                "limits.max_names",
                limit="limits.max_names",
            )
        return None

    def sees_everyone(self, link: SocketLink) -> bool:
        """Whether a link may be told of users of other names than its own."""
        return self.access.everyone.admits(link.peer)

    def name(self, link: SocketLink, hello: Hello) -> None:
        """Have *link* found by the name that it said."""
        key = (hello.role, hello.name)
        self.named[key] = link
        self._strangers.pop(link.number, None)
        _log.info(
            "link up", role=hello.role, name=hello.name, link=link.number,
            pid=link.peer.pid, uid=link.peer.uid,
        )  # fmt: skip

    # --- they go --------------------------------------------------------------

    def count_fault(self) -> None:
        """Count a link that a fault of the sidecar ended while it was written to."""
        self._counts.refused[Code.INTERNAL.value] += 1

    def refuse(self, link: SocketLink, refusal: Refusal) -> None:
        """Tell a link that a frame is refused, or that this is its end, and why."""
        self._counts.refused[refusal.code.value] += 1
        if refusal.limit is not None:
            self._counts.limits_met[refusal.limit] += 1
        hello = link.hello
        name = None if hello is None else hello.name
        self._every(
            _log.warning,
            "link refused" if refusal.fatal else "frame refused",
            key=(name, refusal.code, link.peer.uid),
            name=name,
            link=link.number,
            pid=link.peer.pid,
            uid=link.peer.uid,
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
        if self.accepting.cancel_called and not self.links:
            self.all_closed.set()

    def slow(self, now: float) -> list[SocketLink]:
        """Those that have said no hello for too long, in attended seconds.

        Of too many, the oldest: whoever means it says hello as soon as it is connected,
        so that a crowd of others cannot keep it out.
        """
        if not self._strangers:
            return []
        spared = len(self._strangers)
        if self.is_crowded:
            spared = max(1, round(self._limits.max_handshakes * SPARED))
        newest = len(self._strangers) - spared
        return [
            link
            for place, link in enumerate(self._strangers.values())
            if place < newest or self._is_late(link, now)
        ]

    def send_away(self, link: SocketLink, now: float) -> None:
        """End one of the slow, unless it has said hello by now."""
        if not link.is_open or link.hello is not None:
            return
        close = link.conversation.close
        if self._is_late(link, now):
            refusal = close(
                Code.TOO_SLOW,
                f"no hello within {self._limits.hello_s:g} s (limits.hello_s); it comes "
                "first",
                limit="limits.hello_s",
            )
        else:
            refusal = close(
                Code.OVERLOADED,
                f"more than {self._limits.max_handshakes} links have not said hello "
                "(limits.max_handshakes); say it as soon as you are connected",
                limit="limits.max_handshakes",
            )
        self.refuse(link, refusal)

    def _is_late(self, link: SocketLink, now: float) -> bool:
        return now - link.opened_at > self._limits.hello_s

    def overload(self, link: SocketLink, excess: Excess) -> None:
        """End a link that leaves too much unread; its answers are dropped."""
        link.outbox.give_up()
        close = link.conversation.close
        refusal = close(Code.OVERLOADED, excess.why, limit=excess.limit)
        self.refuse(link, refusal)

    def end_unread(self, now: float) -> None:
        """End links that have read nothing for too long, or while others need the room.

        To be called once a second: who takes nothing between two calls does not read.

        Args:
            now: Attended seconds. Nobody could be sent anything in others.
        """
        elapsed, self._looked_at = now - self._looked_at, now
        for link in self._open_links():
            excess = link.outbox.age(elapsed)
            if excess is not None:
                self.overload(link, excess)
        unread = self._unread
        if unread.memory > unread.most_bytes:
            self._shed(unread.most_bytes, lambda outbox: outbox.stalled_burden)
        if unread.spools.is_short:
            unread.spools.is_short = False
            self._overload_worst(
                lambda outbox: outbox.stalled_spool,
                Excess(
                    "limits.max_spool_bytes",
                    "a list is left unread on the disk, and others need the room "
                    "(limits.max_spool_bytes, or half of what is free); read while you "
                    "write",
                ),
            )

    def shed_unread(self) -> None:
        """End the links that leave most unread, if there is twice as much as may be."""
        most_bytes = 2 * self._unread.most_bytes
        if self._unread.memory > most_bytes:
            self._shed(most_bytes, lambda outbox: outbox.burden)

    def _shed(self, most_bytes: int, burden: Callable[[Outbox], float]) -> None:
        excess = Excess(
            "limits.max_unread_bytes",
            f"all links together leave more than {self._unread.most_bytes} bytes of "
            "answers unread (limits.max_unread_bytes), and this one has most; read while "
            "you write",
        )
        while self._unread.memory > most_bytes and self._overload_worst(burden, excess):
            pass

    def _overload_worst(
        self, burden: Callable[[Outbox], float], excess: Excess
    ) -> bool:
        """End the open link with the greatest burden; return whether one has any."""
        open_links = self._open_links()
        worst = max(open_links, key=lambda link: burden(link.outbox), default=None)
        if worst is None or not burden(worst.outbox):
            return False
        self.overload(worst, excess)
        return True

    def count_unfinished(self, link: SocketLink) -> None:
        """Count what a link has sent of a frame; end the oldest, if that is too much."""
        self.unfinished.note(link)
        while (oldest := self.unfinished.excess()) is not None:
            refusal = oldest.conversation.close(
                Code.OVERLOADED,
                f"all links together have sent more than {self.unfinished.most_bytes} "
                "bytes of frames that are not whole (limits.max_unfinished_bytes), and "
                "this one's began first; send each frame at once",
                limit="limits.max_unfinished_bytes",
            )
            self.refuse(oldest, refusal)

    def _open_links(self) -> list[SocketLink]:
        return [link for link in self.links.values() if link.is_open]

    def bid_farewell(self, reason: str) -> None:
        """End all links with `bye`, once what they asked for is answered."""
        self.accepting.cancel()
        if not self.links:
            self.all_closed.set()
        for link in [*self.links.values()]:
            if link.hello is None:
                self.end(link, why=reason)
            else:
                self.end(link, ["bye", {"reason": reason}], why=reason)

    def _part(self, link: SocketLink) -> None:
        """Let go of the name of a link that has ended, and of its frame."""
        link.conversation.drop()
        self._strangers.pop(link.number, None)
        self.unfinished.note(link)
        hello = link.hello
        if hello is None or self.named.get((hello.role, hello.name)) is not link:
            return
        del self.named[hello.role, hello.name]
        if link.gateway is not None:
            link.gateway.unlinked(self._attended.now)
            self._log_writer.note_written(hello.name, link.outbox.position)
        _log.info(
            "link down", role=hello.role, name=hello.name, link=link.number,
            why=link.why_closed,
        )  # fmt: skip
