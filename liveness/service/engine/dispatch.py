"""What links ask for, applied: signs of life, timers, questions, and hello.

Everything here is synchronous and part of the engine's turn. What is answered waits for
the disk if it tells of anything that was decided.
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
    SignsOfLife,
    Where,
)
from liveness.core.timer_scheduler import TimerScheduler
from liveness.errors import Code
from liveness.service.common.clock import Clock
from liveness.service.links.handshake import Handshake
from liveness.service.links.link import SocketLink
from liveness.service.links.registry import LinkRegistry
from liveness.service.storage.log_writer import LogWriter

# Places of the table looked at in one pass for gateways that came back fresh, however
# many: some milliseconds.
LOSE_STEPS: Final = 2_000
# So many of them are welcomed in one pass: each may have sent a piece of frames meanwhile,
# which is worked through with its welcome.
WELCOMES: Final = 5

_log = structlog.get_logger("link")


class _Losing(NamedTuple):
    """A gateway that came back fresh: its old sessions are being ended."""

    link: SocketLink
    gateway: GatewayState
    hello: Hello
    backlog: list[tuple[Request, Instant]]


class Dispatcher:
    """Applies what links ask for, in the order in which it was asked.

    Args:
        presence: The core, as far as users go.
        timetable: The core, as far as timers go.
        log_writer: Where decisions go.
        book: Who is connected.
        greeter: Says welcome.
        clock: Compared with those of gateways.
        read_out: Reads what a link has sent up to now, as of an attended second.
    """

    def __init__(
        self,
        presence: Presence,
        timetable: TimerScheduler,
        *,
        log_writer: LogWriter,
        book: LinkRegistry,
        greeter: Handshake,
        clock: Clock,
        read_out: Callable[[SocketLink, float], None],
    ) -> None:
        self._presence = presence
        self._timetable = timetable
        self._log_writer = log_writer
        self._book = book
        self._greeter = greeter
        self._clock = clock
        self._read_out = read_out
        self._losing: dict[int, _Losing] = {}
        self._place = 0  # of the table, which is walked over for all of them together

    def listen_to(self, link: SocketLink, data: bytes, at: Instant) -> None:
        """Apply all that a link asks for with these bytes, and those before."""
        try:
            for request in link.conversation.receive(data, at.now):
                self._take(link, request, at)
        except Exception:
            # Ours, whatever it is. The link is told and ends; the others go on.
            _log.exception("a fault of the sidecar", link=link.number)
            message = "a fault of the sidecar, see its log; connect anew"
            self._book.refuse(link, link.conversation.close(Code.INTERNAL, message))

    def _take(self, link: SocketLink, request: Request, at: Instant) -> None:
        losing = self._losing.get(link.number)
        if losing is not None:
            losing.backlog.append((request, at))
        elif link.is_open:
            self._apply(link, request, at)

    def _apply(self, link: SocketLink, request: Request, at: Instant) -> None:
        gateway = link.gateway
        match request:
            # First, as they come one by one: to ask for the abstract class is slow.
            case After():
                if not self._timetable.after(self._name(link), request, at):
                    self._book.refuse(link, self._one_timer_too_many(link, request.key))
            case Cancel():
                self._timetable.cancel(self._name(link), request, at)
            case Answer():
                self._timetable.answer(self._name(link), request, at)
            case SignsOfLife():
                assert gateway is not None
                for n, position, index in self._presence.heard(gateway, request, at):
                    uid, _conn, event = request.at(position)
                    self._book.refuse(
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
                    self._book.refuse(link, self._users_too_many(link, full))
            case Logout():
                assert gateway is not None
                self._presence.logout(gateway, request, at)
            case Ack():
                self._acknowledge(link, request, at)
            case Ping():
                link.outbox.reply(["pong", request.payload], ticket=self._ticket())
            case Where():
                found = self._presence.where(request.uids)
                if not self._book.sees_everyone(link):
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
                self._introduce(link, request, at)
            case Refusal():
                self._book.refuse(link, request)
            case never:
                assert_never(never)

    @staticmethod
    def _name(link: SocketLink) -> str:
        assert link.gateway is not None
        return link.gateway.name

    @staticmethod
    def _one_timer_too_many(link: SocketLink, key: str) -> Refusal:
        # Not counted with the refusals for which a link is closed: it is no fault of the
        # gateway, whose users need the link.
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
    def _users_too_many(link: SocketLink, full: NoRoom) -> Refusal:
        # Nor is this: it goes on for those that there is room for.
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
        """The ticket at which all that was decided so far will be on disk."""
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
            self._book.refuse(link, refusal)
        else:
            link.outbox.acknowledge(ack.seq)

    # --- hello ----------------------------------------------------------------

    def _introduce(self, link: SocketLink, hello: Hello, at: Instant) -> None:
        objection = self._book.objection(link, hello)
        if objection is not None:
            self._book.refuse(link, objection)
            return
        older = self._book.named.get((hello.role, hello.name))
        if older is not None:
            self._replace(older, at)
        self._book.name(link, hello)
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
                    "namespace?), or the wall clock was just set: of two logins the one "
                    "that is read later may count as the newer, as by age",
                )
            if self._was_losing(gateway) or hello.fresh:
                self._losing[link.number] = _Losing(link, gateway, hello, [])
                return
        self._greet(link, hello)

    def _was_losing(self, gateway: GatewayState) -> bool:
        """Stop ending a gateway's sessions for an older link, if that was under way."""
        older = [n for n, it in self._losing.items() if it.gateway is gateway]
        for number in older:
            del self._losing[number]
        return bool(older)

    def _replace(self, older: SocketLink, at: Instant) -> None:
        """End the link that a newer one of the same name replaces.

        What it had sent before is applied first: those signs of life were given. But
        not what it goes on to write, which might never end.
        """
        if older.gateway is not None:
            self._read_out(older, at.now)
        if older.is_open:
            self._book.refuse(
                older,
                older.conversation.close(
                    Code.REPLACED,
                    "the same name connected anew; do not reconnect by yourself",
                ),
            )

    def _greet(self, link: SocketLink, hello: Hello) -> None:
        self._log_writer.take_over(self._presence.decided)
        self._greeter.greet(link, hello, newest=self._presence.decided.next_seq - 1)

    # --- gateways that came back fresh ----------------------------------------

    @property
    def has_losing(self) -> bool:
        """Whether sessions of any gateway are being ended."""
        return bool(self._losing)

    def is_losing(self, link: SocketLink) -> bool:
        """Whether a link waits for its welcome, until its old sessions are ended."""
        return link.number in self._losing

    def end_lost_sessions(self, at: Instant) -> list[SocketLink]:
        """Go on ending the sessions of gateways that came back fresh.

        Returns:
            The links that were welcomed, and are to be read on.
        """
        # Who joins in the middle of a walk has the next one too, if any session is left.
        gateways = [it.gateway for it in self._losing.values() if it.gateway.users]
        if gateways:
            place = self._presence.lose(gateways, self._place, at, limit=LOSE_STEPS)
            self._place = max(0, place)
        welcomed = list[SocketLink]()
        for number, losing in list(self._losing.items()):
            if losing.gateway.users:
                continue
            del self._losing[number]
            if losing.link.is_open:
                self._greet(losing.link, losing.hello)
                for request, received in losing.backlog:
                    self._take(losing.link, request, received)
                welcomed.append(losing.link)
            if len(welcomed) == WELCOMES:
                break
        return welcomed
