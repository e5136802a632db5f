"""Applies the requests of links: hello, events, timers, queries and acknowledgements.

Everything here is synchronous and part of the engine's turn. A reply that depends on a
decision is sent once the decision is on disk.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, assert_never

import structlog

from liveness.core.clearance import GatewayState
from liveness.core.frames import bad_uid_text
from liveness.core.presence import NoRoom, Presence
from liveness.core.records import (
    EVENTS,
    GATEWAY,
    Ack,
    ActivityBatch,
    After,
    Answer,
    Cancel,
    Hello,
    Instant,
    ListSessions,
    Login,
    Logout,
    Ping,
    Refusal,
    Request,
    Where,
)
from liveness.core.timer_scheduler import TimerScheduler
from liveness.errors import Code
from liveness.service.common.clock import Clock
from liveness.service.links.handshake import Handshake
from liveness.service.links.link import SocketLink
from liveness.service.links.registry import LinkRegistry
from liveness.service.storage.log_writer import LogWriter

# Entries of the wheel's table searched in one turn for sessions to reset, for all gateways
# together: some milliseconds.
RESET_STEPS: Final = 2_000
# Gateways welcomed in one turn after a reset. Each may have sent a piece of frames in the
# meantime, which is applied with its welcome.
WELCOMES: Final = 5

_log = structlog.get_logger("link")


class _Reset(NamedTuple):
    """A gateway whose old sessions are being ended: its hello said `fresh`."""

    link: SocketLink
    gateway: GatewayState
    hello: Hello
    backlog: list[tuple[Request, Instant]]


class Dispatcher:
    """Applies the requests of links, each link's in order.

    *read_sent* reads what a link has sent up to now; it takes attended seconds.
    """

    def __init__(
        self,
        presence: Presence,
        scheduler: TimerScheduler,
        *,
        log_writer: LogWriter,
        registry: LinkRegistry,
        handshake: Handshake,
        clock: Clock,
        read_sent: Callable[[SocketLink, float], None],
    ) -> None:
        self._presence = presence
        self._scheduler = scheduler
        self._log_writer = log_writer
        self._registry = registry
        self._handshake = handshake
        self._clock = clock
        self._read_sent = read_sent
        self._resets: dict[int, _Reset] = {}  # by number of the link
        self._place = 0  # in the wheel's table: one search serves all resets

    def receive(self, link: SocketLink, data: bytes, at: Instant) -> None:
        """Apply the requests that these bytes of a link complete."""
        try:
            for request in link.conversation.receive(data, at.now):
                self._apply_or_defer(link, request, at)
        except Exception:
            # A bug of the sidecar: this link is refused and ends, the others go on.
            _log.exception("a fault of the sidecar", link=link.number)
            message = "a fault of the sidecar, see its log; connect anew"
            self._registry.refuse(link, link.conversation.close(Code.INTERNAL, message))

    def _apply_or_defer(self, link: SocketLink, request: Request, at: Instant) -> None:
        reset = self._resets.get(link.number)
        if reset is not None:
            reset.backlog.append((request, at))
        elif link.is_open:
            self._apply(link, request, at)

    def _apply(self, link: SocketLink, request: Request, at: Instant) -> None:
        gateway = link.gateway
        match request:
            # First, as these come in large numbers, and the match of `ActivityBatch`, an
            # abstract class, is slow.
            case After():
                if not self._scheduler.after(self._name(link), request, at):
                    self._registry.refuse(
                        link, self._too_many_timers(link, request.key)
                    )
            case Cancel():
                self._scheduler.cancel(self._name(link), request, at)
            case Answer():
                self._scheduler.answer(self._name(link), request, at)
            case ActivityBatch():
                assert gateway is not None
                for n, position, index in self._presence.heard(gateway, request, at):
                    uid, _conn, event = request.at(position)
                    self._registry.refuse(
                        link,
                        link.conversation.refuse(
                            Code.BAD_UID,
                            bad_uid_text(uid),
                            at.now,
                            n=n,
                            frame=EVENTS[event],
                            index=index,
                        ),
                    )
            case Login():
                assert gateway is not None
                full = self._presence.login(gateway, request, at)
                if full is not None:
                    self._registry.refuse(link, self._too_many_users(link, full))
            case Logout():
                assert gateway is not None
                self._presence.logout(gateway, request, at)
            case Ack():
                self._acknowledge(link, request, at)
            case Ping():
                link.outbox.reply(["pong", request.payload], ticket=self._ticket())
            case Where():
                found = self._presence.where(request.uids)
                if not self._registry.sees_everyone(link):
                    assert link.hello is not None
                    found = [row for row in found if row[1] == link.hello.name]
                link.outbox.reply(["where", found], ticket=self._ticket())
            case ListSessions():
                hello = link.hello
                assert hello is not None
                is_all = hello.role != GATEWAY and hello.scope == "all"
                link.outbox.reply_list(
                    None if is_all else hello.name, ticket=self._ticket()
                )
            case Hello():
                self._handle_hello(link, request, at)
            case Refusal():
                self._registry.refuse(link, request)
            case never:
                assert_never(never)

    @staticmethod
    def _name(link: SocketLink) -> str:
        assert link.gateway is not None
        return link.gateway.name

    @staticmethod
    def _too_many_timers(link: SocketLink, key: str) -> Refusal:
        # Made without the conversation, which closes a link after too many refusals: a
        # full sidecar is no fault of the gateway, and its users need the link.
        return Refusal(
            Code.TOO_MANY_TIMERS,
            "there are as many timers as timers.max_live allows; ask again once some "
            "have ended, or raise it",
            link.conversation.n,
            fatal=False,
            frame="after",
            key=key,
            limit="timers.max_live",
        )

    @staticmethod
    def _too_many_users(link: SocketLink, full: NoRoom) -> Refusal:
        # Made without the conversation too: the link goes on for the other users.
        return Refusal(
            Code.TOO_MANY_USERS,
            f"there is no room for {len(full.indices)} of these users, the first at index "
            f"{full.indices[0]}: as many are online as limits.{full.limit} allows; they "
            "are watched from the first sign of life on for which there is room, and who "
            "is online through another gateway from a login on",
            link.conversation.n,
            fatal=False,
            frame="login",
            index=full.indices[0],
            limit=f"limits.{full.limit}",
        )

    def _ticket(self) -> int:
        """The commit ticket of all decisions so far."""
        self._log_writer.take_over(self._presence.decided)
        return self._log_writer.flush()

    def _acknowledge(self, link: SocketLink, ack: Ack, at: Instant) -> None:
        following = self._log_writer.durable_seq + 1
        if ack.seq >= following:
            refusal = link.conversation.refuse(
                Code.BAD_OPTION,
                f"ack of {ack.seq}, but the next record will be {following}",
                at.now,
                n=ack.n,
                frame="ack",
            )
            self._registry.refuse(link, refusal)
        else:
            link.outbox.acknowledge(ack.seq)

    # --- hello ----------------------------------------------------------------

    def _handle_hello(self, link: SocketLink, hello: Hello, at: Instant) -> None:
        refusal = self._registry.refusal_for(link, hello)
        if refusal is not None:
            self._registry.refuse(link, refusal)
            return
        older = self._registry.named.get((hello.role, hello.name))
        if older is not None:
            self._replace(older, at)
        self._registry.name(link, hello)
        if hello.role == GATEWAY:
            gateway = self._presence.gateway(hello.name)
            link.gateway = gateway
            self._presence.set_timeout(gateway, hello.timeout, at.now)
            offset = self._clock.offset_of(hello.clock)
            gateway.linked(ping=hello.ping, now=at.now, clock_offset=offset)
            if hello.clock is not None and offset is None:
                _log.warning(
                    "another clock",
                    name=hello.name,
                    message="its CLOCK_MONOTONIC is not this process's (another time "
                    "namespace?), or the wall clock was just set: of two logins of a user, "
                    "the one that is read later may count as the newer",
                )
            if self._cancel_reset(gateway) or hello.fresh:
                self._resets[link.number] = _Reset(link, gateway, hello, [])
                return
        self._welcome(link, hello)

    def _cancel_reset(self, gateway: GatewayState) -> bool:
        """Forget the reset that an older link began; return whether there was one."""
        older = [n for n, reset in self._resets.items() if reset.gateway is gateway]
        for number in older:
            del self._resets[number]
        return bool(older)

    def _replace(self, older: SocketLink, at: Instant) -> None:
        """End the link that a newer one of the same name replaces.

        Events that it has sent by now are applied first. What it sends from now on is not
        read, as that might never end.
        """
        if older.gateway is not None:
            self._read_sent(older, at.now)
        if older.is_open:
            self._registry.refuse(
                older,
                older.conversation.close(
                    Code.REPLACED,
                    "the same name connected anew; do not reconnect by yourself",
                ),
            )

    def _welcome(self, link: SocketLink, hello: Hello) -> None:
        self._log_writer.take_over(self._presence.decided)
        self._handshake.welcome(link, hello, newest=self._presence.decided.next_seq - 1)

    # --- resets: gateways that came back fresh ---------------------------------

    @property
    def has_resets(self) -> bool:
        """Whether the sessions of any gateway are being reset."""
        return bool(self._resets)

    def is_resetting(self, link: SocketLink) -> bool:
        """Whether a link is welcomed only once its old sessions have ended."""
        return link.number in self._resets

    def reset_sessions(self, at: Instant) -> list[SocketLink]:
        """End some more sessions of the gateways that came back fresh.

        Returns:
            The links that were welcomed; they are to be read again.
        """
        # A gateway that joins during a search is in the next one too, if it has sessions left.
        gateways = [
            reset.gateway for reset in self._resets.values() if reset.gateway.users
        ]
        if gateways:
            place = self._presence.reset_sessions(
                gateways, self._place, at, limit=RESET_STEPS
            )
            self._place = max(0, place)
        welcomed = list[SocketLink]()
        for number, reset in list(self._resets.items()):
            if reset.gateway.users:
                continue
            del self._resets[number]
            if reset.link.is_open:
                self._welcome(reset.link, reset.hello)
                for request, received in reset.backlog:
                    self._apply_or_defer(reset.link, request, received)
                welcomed.append(reset.link)
            if len(welcomed) == WELCOMES:
                break
        return welcomed
