"""All links and their names: refuses links and hellos, and ends links."""

from collections import Counter, deque
from dataclasses import replace as dataclass_replace
from typing import Final, Protocol

from liveness.core.access import Access
from liveness.core.changes import Decisions
from liveness.core.effects import Close, Effect, LogLine, LogRefusal, WakeWriter
from liveness.core.limits import Limits
from liveness.core.links.link import Link
from liveness.core.links.link_troubles import LinkTroubles
from liveness.core.links.outbox import Reply, UnreadReplies
from liveness.core.records import GATEWAY
from liveness.core.sessions.attended_clock import AttendedClock
from liveness.core.sessions.gateway_table import GatewayTable
from liveness.core.wire.framing import encode
from liveness.core.wire.link_requests import Hello, Refusal
from liveness.errors import Code

# If too many links have not said hello, this share of the limit stays: the newest.
STAYING_SHARE: Final = 0.75


class LinkCounts(Protocol):
    """Counters of links."""

    refused: Counter[str]
    limits_met: Counter[str]
    notices_acked: int


class LinkRegistry:
    """All links, from accept to close; `at_ms` is now, by the state's clock.

    A reload may replace `access`.
    """

    def __init__(
        self,
        effects: deque[Effect],
        decided: Decisions,
        *,
        attended: AttendedClock,
        unread: UnreadReplies,
        counts: LinkCounts,
        access: Access,
        gateways: GatewayTable,
        limits: Limits,
    ) -> None:
        self.links: dict[int, Link] = {}  # by number
        self.named: dict[tuple[str, str], Link] = {}  # by role and name
        self.unfinished_bytes = 0  # of the incomplete frames of all links
        # By link, oldest first: the complete frames before it, and its bytes.
        self._unfinished: dict[Link, tuple[int, int]] = {}
        self.access = access
        self.troubles = LinkTroubles()
        self._pending_handshakes: dict[int, Link] = {}  # links without a hello
        self._effects = effects
        self._attended = attended
        self._cursors = decided.cursors
        self._gateways = gateways.by_name
        self._counts = counts
        self._unread = unread
        self._unread_checked_at = attended.now
        self._limits = limits

    # --- opening --------------------------------------------------------------

    @property
    def is_crowded(self) -> bool:
        return len(self._pending_handshakes) > self._limits.max_handshakes

    def linked(self, role: str) -> int:
        return sum(key[0] == role for key in self.named)

    def unacked(self, gateway: str) -> int:
        link = self.named.get((GATEWAY, gateway))
        return 0 if link is None else link.outbox.unacked

    def opened(self, link: Link, at_ms: int) -> None:
        is_full = len(self.links) >= self._limits.max_links
        self.links[link.number] = link
        if (why := self.access.why_no_link(link.peer)) is not None:
            refusal = link.conversation.close(Code.NOT_ALLOWED, why)
            self.refuse_hello(link, refusal, at_ms)
        elif is_full:
            message = (
                f"there are {self._limits.max_links} links already; connect later, or "
                "raise limits.max_links"
            )
            refusal = _overloaded(link, "limits.max_links", message)
            self.refuse_hello(link, refusal, at_ms)
        else:
            self._pending_handshakes[link.number] = link

    def refusal_for(self, link: Link, hello: Hello) -> Refusal | None:
        """The first reason to refuse a hello; None if it is accepted."""
        if (why := self.access.why_not(link.peer, hello)) is not None:
            return link.conversation.close(Code.NOT_ALLOWED, why)
        key, limits = (hello.role, hello.name), self._limits
        if (
            hello.role == GATEWAY
            and key not in self.named
            and self.linked(GATEWAY) >= limits.max_gateways
        ):
            return _overloaded(
                link,
                "limits.max_gateways",
                f"there are {limits.max_gateways} gateways already; connect later, or "
                "raise limits.max_gateways",
            )
        cursors = self._cursors
        has_cursor = hello.role == GATEWAY or hello.ack
        if has_cursor and key not in cursors and len(cursors) >= limits.max_names:
            return _overloaded(
                link,
                "limits.max_names",
                f"{len(cursors)} names are known and kept for the retention; use one of "
                "them, forget one with `liveness gateways forget`, or raise "
                "limits.max_names",
            )
        return None

    def names_in_use(self) -> list[tuple[str, str]]:
        gateways = self._gateways.values()
        with_users = [(GATEWAY, gateway.name) for gateway in gateways if gateway.users]
        return [*self.named, *with_users]

    def why_in_use(self, role: str, name: str) -> str | None:
        """Why a name cannot be forgotten now; None if it can."""
        if (role, name) in self.named:
            return "is connected; stop it first"
        gateway = self._gateways.get(name) if role == GATEWAY else None
        if gateway is not None and gateway.users:
            return (
                f"has {gateway.users} users online; they go offline by themselves if it "
                "does not come back"
            )
        return None

    def has_name(self, link: Link) -> bool:
        """Whether a link's hello was accepted, and no other link has its name now."""
        hello = link.hello
        return hello is not None and self.named.get((hello.role, hello.name)) is link

    def sees_everyone(self, link: Link) -> bool:
        return self.access.everyone.admits(link.peer)

    def name(self, link: Link, hello: Hello) -> None:
        self.named[hello.role, hello.name] = link
        self._pending_handshakes.pop(link.number, None)
        self._report("link up", link, pid=link.peer.pid, unix_user=link.peer.unix_user)

    def expired_handshakes(self, now: float) -> list[Link]:
        """Links to end because they have not said hello, at *now* in attended seconds.

        Their time is up, or they are the oldest of too many. A working client says hello at
        once, so a crowd of others cannot keep it out.
        """
        excess = 0
        if self.is_crowded:
            staying = max(1, round(self._limits.max_handshakes * STAYING_SHARE))
            excess = len(self._pending_handshakes) - staying
        return [
            link
            for place, link in enumerate(self._pending_handshakes.values())
            if place < excess or self._is_late(link, now)
        ]

    def expire_handshake(self, link: Link, now: float) -> None:
        """End one of the `expired_handshakes`, unless it has said hello since."""
        if not link.is_open or link.hello is not None:
            return
        if self._is_late(link, now):
            refusal = link.conversation.close(
                Code.TOO_SLOW,
                f"no hello within {self._limits.hello_s:g} s (limits.hello_s); it comes "
                "first",
                limit="limits.hello_s",
            )
        else:
            refusal = _overloaded(
                link,
                "limits.max_handshakes",
                f"more than {self._limits.max_handshakes} links have not said hello "
                "(limits.max_handshakes); say it as soon as you are connected",
            )
        self.refuse(link, refusal)

    def _is_late(self, link: Link, now: float) -> bool:
        return now - link.opened_at > self._limits.hello_s

    # --- refusing and ending --------------------------------------------------

    def refuse(self, link: Link, refusal: Refusal) -> None:
        self._counts.refused[refusal.code.value] += 1
        if refusal.limit is not None:
            self._counts.limits_met[refusal.limit] += 1
        self._effects.append(LogRefusal(link.number, link.name, refusal))
        if refusal.fatal:
            self.end(link, refusal.as_frame(), why=refusal.code.value)
        elif link.is_open:
            self.send(link, refusal.as_frame())

    def refuse_hello(self, link: Link, refusal: Refusal, at_ms: int) -> None:
        """Refuse a link that was not welcomed, and note its name for the operator."""
        claimed = link.conversation.claimed
        role, name = (None, None) if claimed is None else claimed
        self.troubles.note(role, name, refusal.code, link.peer, at_ms)
        self.refuse(link, refusal)

    def replace(self, older: Link, newer: Link, at_ms: int) -> None:
        """End a link whose name another one takes; log both processes."""
        assert older.hello is not None
        role, name = older.hello.role, older.hello.name
        self.troubles.note(role, name, Code.REPLACED, older.peer, at_ms)
        fields: dict[str, object] = {
            "role": role,
            "name": name,
            "link": newer.number,
            "pid": newer.peer.pid,
            "unix_user": newer.peer.unix_user,
            "older_link": older.number,
            "older_pid": older.peer.pid,
            "older_unix_user": older.peer.unix_user,
            "todo": "give each process a name of its own",
        }
        # Two processes that both reconnect replace each other many times a second.
        self._effects.append(
            LogLine(
                "link",
                "warning",
                "link replaced",
                fields,
                key=("replaced", role, name),
            )
        )
        refusal = older.conversation.close(
            Code.REPLACED, "the same name connected anew; do not reconnect by yourself"
        )
        self.refuse(older, dataclass_replace(refusal, pid=newer.peer.pid or None))

    def send(
        self, link: Link, frame: object, *, after: int = 0, is_log_only: bool = False
    ) -> None:
        """Send a frame once all changes up to the ticket *after* are durable."""
        if not link.outbox.is_broken:
            link.outbox.queue(Reply(encode(frame), after, is_log_only))
            self._effects.append(WakeWriter(link.number))

    def end(self, link: Link, frame: object | None = None, *, why: str) -> None:
        """Read no more from a link; it closes once its outbox is written."""
        if link.is_open:
            link.is_open = False
            link.why_closed = why
            link.outbox.end(frame)
            self._effects.append(Close(link.number))
        self._unregister(link)

    def closed(self, link: Link) -> None:
        link.is_open = False
        link.outbox.drop_replies()
        self._unregister(link)
        del self.links[link.number]

    def end_all(self, reason: str) -> None:
        for link in [*self.links.values()]:
            frame = None if link.hello is None else ["bye", {"reason": reason}]
            self.end(link, frame, why=reason)

    def _unregister(self, link: Link) -> None:
        link.conversation.drop()
        self._pending_handshakes.pop(link.number, None)
        self._note_unfinished(link)
        hello = link.hello
        if hello is None or not self.has_name(link):
            return
        del self.named[hello.role, hello.name]
        if link.gateway is not None:
            link.gateway.unlinked(self._attended.now)
            self._cursors.note_sent(hello.name, link.outbox.position)
        self._report("link down", link, why=link.why_closed)

    def _report(self, message: str, link: Link, **fields: object) -> None:
        assert link.hello is not None
        named = {"role": link.hello.role, "name": link.hello.name, "link": link.number}
        self._effects.append(LogLine("link", "info", message, named | fields))

    # --- bounds on memory and disk --------------------------------------------

    def overload(self, link: Link, excess: tuple[str, str]) -> None:
        """End a link that leaves too much unread; its replies are dropped."""
        link.outbox.drop_replies()
        self.refuse(link, _overloaded(link, *excess))

    def end_unread(self, now: float) -> None:
        """End links that have read nothing of their replies for too long.

        For unread records it only notes the time: they wait in the log.

        Call this once a second: a link whose socket takes no bytes between two calls
        counts as not reading. *now* is in attended seconds, as nothing is sent at other
        times.
        """
        elapsed, self._unread_checked_at = now - self._unread_checked_at, now
        for link in self._open_links():
            if link.gateway is None or link.gateway.reading_paused_at is None:
                link.outbox.note_stall(elapsed)
            excess = link.outbox.add_waiting(elapsed)
            if excess is not None:
                self.overload(link, excess)

    def shed_unread(self) -> None:
        """If all links leave twice the bound unread, end those that leave most."""
        most_bytes = 2 * self._limits.max_unread_bytes
        if self._unread.memory <= most_bytes:
            return
        excess = (
            "limits.max_unread_bytes",
            f"all links together leave more than {most_bytes} bytes of answers unread "
            "(twice limits.max_unread_bytes), and this link leaves most; read while you "
            "write",
        )
        while self._unread.memory > most_bytes:
            open_links = self._open_links()
            worst = max(open_links, key=lambda link: link.outbox.burden, default=None)
            if worst is None or not worst.outbox.burden:
                return
            self.overload(worst, excess)

    def count_partial_frame(self, link: Link) -> None:
        """Count a link's incomplete frame; end the oldest ones if they are too large.

        A working link completes its frame within milliseconds, so the oldest is soon that
        of a link that sends byte by byte. The bound is at least the size of one frame.
        """
        self._note_unfinished(link)
        most_bytes = self._limits.max_unfinished_bytes
        while self.unfinished_bytes > most_bytes:
            oldest = next(iter(self._unfinished))
            message = (
                f"all links together have sent more than {most_bytes} "
                "bytes of incomplete frames (limits.max_unfinished_bytes), and this "
                "link's frame is the oldest; send each frame at once"
            )
            self.refuse(
                oldest, _overloaded(oldest, "limits.max_unfinished_bytes", message)
            )

    def _note_unfinished(self, link: Link) -> None:
        frames, size = link.conversation.n, link.conversation.unfinished_bytes
        frames_before, counted = self._unfinished.get(link, (frames, 0))
        self.unfinished_bytes += size - counted
        if not size or frames != frames_before:
            self._unfinished.pop(link, None)
        if size:
            self._unfinished[link] = frames, size

    def _open_links(self) -> list[Link]:
        return [link for link in self.links.values() if link.is_open]


def _overloaded(link: Link, limit: str, why: str) -> Refusal:
    return link.conversation.close(Code.OVERLOADED, why, limit=limit)
