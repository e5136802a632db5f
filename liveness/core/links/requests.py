"""Applies the requests of links: hello, events, timers, queries and acknowledgements.

A reply that depends on a decision is sent once the decision is on disk.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, assert_never

from liveness.core.disk import Disk
from liveness.core.effects import Deliver, Effect, LogLine, ReadFirst, WakeWriter
from liveness.core.limits import Limits
from liveness.core.links.cluster_questions import (
    ClusterQuestion,
    PendingQuestions,
    cluster_answer,
)
from liveness.core.links.handshake import Handshake
from liveness.core.links.link import Link
from liveness.core.links.link_registry import LinkCounts, LinkRegistry
from liveness.core.links.outbox import ListReply
from liveness.core.records import EVENTS, GATEWAY, HostReading, Instant, Uid
from liveness.core.sessions.clearance import GatewayState
from liveness.core.sessions.firing import Firing
from liveness.core.sessions.presence import Presence
from liveness.core.timers.timer_scheduler import TimerScheduler
from liveness.core.wire.link_requests import (
    Ack,
    ActivityBatch,
    After,
    Answer,
    Cancel,
    Hello,
    ListSessions,
    Login,
    Logout,
    Ping,
    Refusal,
    Request,
    Where,
)
from liveness.core.wire.uids import bad_uid_text
from liveness.errors import Code

# Entries of the wheel's table searched in one turn for sessions to reset, for all gateways
# together: some milliseconds.
RESET_STEPS: Final = 2_000
# Gateways welcomed in one turn after a reset. Each may have sent a piece of frames in the
# meantime, which is applied with its welcome.
WELCOMES: Final = 5


class PendingWelcome(NamedTuple):
    """A link whose hello was accepted, and that is not welcomed yet."""

    link: Link
    hello: Hello
    at: Instant
    clock_offset: float | None


class Requests:
    """Applies the requests of links, each link's in order.

    *commit* commits what was decided, with moved cursors; see `Server.commit`.
    """

    def __init__(
        self,
        effects: deque[Effect],
        presence: Presence,
        firing: Firing,
        scheduler: TimerScheduler,
        *,
        commit: Callable[[], int],
        registry: LinkRegistry,
        handshake: Handshake,
        disk: Disk,
        counts: LinkCounts,
        host: str,
        limits: Limits,
    ) -> None:
        self._effects = effects
        self._presence = presence
        self._firing = firing
        self._scheduler = scheduler
        self._commit = commit
        self._registry = registry
        self._handshake = handshake
        self._disk = disk
        self._counts = counts
        self._max_where_rows = limits.max_where_rows
        self._host = host  # its name in the cluster; "" if there is none
        self.cluster_questions = PendingQuestions(
            effects,
            self._answer_question,
            limits_met=counts.limits_met,
            limits=limits,
        )
        # Links that are not welcomed yet. By number of the link: what it sent behind its
        # hello, with the numbers of its frames; the link whose older one is read first, by
        # number of that; and the gateways whose old sessions are being ended, as their
        # hello said `fresh`.
        self._backlogs: dict[int, list[tuple[Request, int, Instant]]] = {}
        self._replacing: dict[int, PendingWelcome] = {}
        self._resets: dict[int, PendingWelcome] = {}
        self._place = 0  # in the wheel's table: one search serves all resets

    def defers(self, link: Link) -> bool:
        """Whether a link said hello and is not welcomed yet: it need not be read."""
        return link.number in self._backlogs

    def take(
        self,
        link: Link,
        request: Request,
        n: int,
        at: Instant,
        host: HostReading | None = None,
    ) -> None:
        """Apply a request, or keep it until its link is welcomed.

        *n* is the number of its frame; a batch of activity has its own.
        """
        if link.number in self._backlogs:
            self._backlogs[link.number].append((request, n, at))
        elif link.is_open:
            self._apply(link, request, n, at, host)

    def _apply(
        self,
        link: Link,
        request: Request,
        n: int,
        at: Instant,
        host: HostReading | None,
    ) -> None:
        gateway = link.gateway
        match request:
            # First, as these come in large numbers, and the match of `ActivityBatch`, an
            # abstract class, is slow.
            case After() | Cancel() | Answer():
                self._apply_to_timer(link, request, n, at)
            case ActivityBatch():
                assert gateway is not None
                for its_n, position, index in self._presence.heard(
                    gateway, request, at
                ):
                    uid, _conn, event = request.at(position)
                    self._registry.refuse(
                        link,
                        link.conversation.refuse(
                            Code.BAD_UID,
                            bad_uid_text(uid),
                            at.now,
                            n=its_n,
                            frame=EVENTS[event],
                            index=index,
                        ),
                    )
            case Login():
                assert gateway is not None
                limit, left_out = self._presence.login(gateway, request, at)
                if left_out:
                    refusal = self._too_many_users(n, limit, left_out)
                    self._registry.refuse(link, refusal)
            case Logout():
                assert gateway is not None
                self._presence.logout(gateway, request, at)
            case Ack():
                self._acknowledge(link, request, n, at)
            case Ping():
                ticket = self._commit()
                self._registry.send(link, ["pong", request.payload], after=ticket)
            case Where():
                self._where(link, request, n, at)
            case ListSessions():
                self._send_list(link)
            case Hello():
                self._handle_hello(link, request, at, host)
            case Refusal():
                is_named = link.conversation.claimed is not None
                if request.fatal and is_named and not self._registry.has_name(link):
                    self._registry.refuse_hello(link, request, at.state_ms)
                else:
                    self._registry.refuse(link, request)
            case never:
                assert_never(never)

    def _apply_to_timer(
        self, link: Link, request: After | Cancel | Answer, n: int, at: Instant
    ) -> None:
        assert link.gateway is not None
        if not self._scheduler.request(link.gateway.name, request, at):
            assert isinstance(request, After)
            self._registry.refuse(link, self._too_many_timers(n, request.key))

    def _where(self, link: Link, request: Where, n: int, at: Instant) -> None:
        if request.cluster and self._host:
            question = ClusterQuestion(link, request.uids, n)
            if not self._registry.sees_everyone(link):
                question.found = ()  # nothing of the other hosts is for this link
            self.cluster_questions.ask(question, at)
        elif (found := self._sessions_here(link, request.uids, n, at)) is not None:
            ticket = self._commit()
            self._registry.send(link, ["where", found], after=ticket)

    def _sessions_here(
        self, link: Link, uids: Sequence[Uid], n: int, at: Instant
    ) -> list[tuple[Uid, str, int, int | None]] | None:
        """The sessions on this host that a link may see; None if it was refused."""
        most = max(self._max_where_rows, len(uids))
        found = self._presence.where(uids, limit=most + 1)
        if len(found) > most:
            self._registry.refuse(link, self._too_many_devices(link, most, n, at))
            return None
        if not self._registry.sees_everyone(link):
            assert link.hello is not None
            found = [row for row in found if row[1] == link.hello.name]
        return found

    def _answer_question(self, question: ClusterQuestion, at: Instant) -> None:
        link = question.link
        if not link.is_open:
            return
        here = self._sessions_here(link, question.uids, question.n, at)
        if here is None:
            return
        if not self._registry.sees_everyone(link):
            question.found = ()
        most = max(self._max_where_rows, len(question.uids))
        frame = cluster_answer(question, here, host=self._host, most=most)
        ticket = self._commit()
        self._registry.send(link, frame, after=ticket)

    @staticmethod
    def _too_many_timers(n: int, key: str) -> Refusal:
        # Made without the conversation, which closes a link after too many refusals: a
        # full sidecar is no fault of the gateway, and its users need the link.
        return Refusal(
            Code.TOO_MANY_TIMERS,
            "there are as many timers as timers.max_live allows; ask again once some "
            "have ended, or raise it",
            n,
            fatal=False,
            frame="after",
            key=key,
            limit="timers.max_live",
        )

    @staticmethod
    def _too_many_devices(link: Link, most: int, n: int, at: Instant) -> Refusal:
        return link.conversation.refuse(
            Code.BAD_OPTION,
            f"these users have more than {most} devices online "
            "(limits.max_where_rows); ask for fewer users at once",
            at.now,
            n=n,
            frame="where",
            limit="limits.max_where_rows",
        )

    @staticmethod
    def _too_many_users(n: int, limit: str, indices: list[int]) -> Refusal:
        # Made without the conversation too: the link stays open for the other users.
        return Refusal(
            Code.TOO_MANY_USERS,
            f"there is no room for {len(indices)} of these users, the first at index "
            f"{indices[0]}: as many are online as limits.{limit} allows; they "
            "are watched from the first sign of life on for which there is room, and who "
            "is online through another gateway from a login on",
            n,
            fatal=False,
            frame="login",
            index=indices[0],
            limit=f"limits.{limit}",
        )

    def _send_list(self, link: Link) -> None:
        hello = link.hello
        assert hello is not None
        is_all = hello.role != GATEWAY and hello.scope == "all"
        ticket = self._commit()
        if not link.outbox.is_broken:
            gateway = None if is_all else hello.name
            link.outbox.queue(ListReply(gateway, ticket))
            self._effects.append(WakeWriter(link.number))

    def _acknowledge(self, link: Link, ack: Ack, n: int, at: Instant) -> None:
        following = self._disk.durable_seq + 1
        if ack.seq >= following:
            refusal = link.conversation.refuse(
                Code.BAD_OPTION,
                f"ack of {ack.seq}, but the next record will be {following}",
                at.now,
                n=n,
                frame="ack",
            )
            self._registry.refuse(link, refusal)
        else:
            acked = link.outbox.acknowledge(ack, at.state_ms)
            self._counts.notices_acked += acked
            if link.outbox.room > 0:
                self._effects.append(WakeWriter(link.number))

    # --- hello ----------------------------------------------------------------

    def _handle_hello(
        self, link: Link, hello: Hello, at: Instant, host: HostReading | None
    ) -> None:
        refusal = self._registry.refusal_for(link, hello)
        if refusal is not None:
            self._registry.refuse_hello(link, refusal, at.state_ms)
            return
        offset = None
        if hello.clock is not None:
            offset = None if host is None else host.offset_of(hello.clock)
        arrival = PendingWelcome(link, hello, at, offset)
        older = self._registry.named.get((hello.role, hello.name))
        if older is not None and older.gateway is not None:
            # Events that it has sent by now are applied first. What it sends from now on
            # is not read, as that might never end.
            self._replacing[older.number] = arrival
            self._backlogs[link.number] = []
            self._effects.append(ReadFirst(older.number))
            return
        if older is not None:
            self._registry.replace(older, link, at.state_ms)
        self._join(arrival)

    def successor_of(self, older: Link) -> PendingWelcome:
        """The link that waits until *older* was read; it waits no more."""
        return self._replacing.pop(older.number)

    def replace(self, older: Link, arrival: PendingWelcome) -> None:
        """End *older*, and give its name to the other link, unless that has ended.

        Then apply what that link sent while it waited.
        """
        backlog = self._backlogs.pop(arrival.link.number)
        if older.is_open:
            self._registry.replace(older, arrival.link, arrival.at.state_ms)
        if arrival.link.is_open:
            self._join(arrival)
            self._take_all(arrival.link, backlog)

    def welcome(self, arrival: PendingWelcome, at_ms: int) -> None:
        """Welcome a link whose old sessions have ended; apply what it sent by then."""
        backlog = self._backlogs.pop(arrival.link.number)
        self._welcome(arrival.link, arrival.hello, at_ms)
        self._take_all(arrival.link, backlog)

    def _join(self, arrival: PendingWelcome) -> None:
        link, hello, at, offset = arrival
        self._registry.name(link, hello)
        if hello.role == GATEWAY:
            gateways = self._presence.gateways
            link.gateway = gateway = gateways.add(hello.name)
            gateways.set_timeout(gateway, hello.timeout, at.now)
            gateway.linked(ping=hello.ping, now=at.now, clock_offset=offset)
            if hello.clock is not None and offset is None:
                self._report_another_clock(hello.name)
            if self._cancel_reset(gateway) or hello.fresh:
                self._resets[link.number] = arrival
                self._backlogs[link.number] = []
                return
        self._welcome(link, hello, at.state_ms)

    def _welcome(self, link: Link, hello: Hello, at_ms: int) -> None:
        """Send `welcome`, once the name's cursor and all records before it are durable."""
        terms, reading = self._handshake.answer(link, hello, at_ms)
        ticket = self._commit()
        self._registry.send(link, ["welcome", terms], after=ticket, is_log_only=True)
        link.outbox.welcome(hello, reading, ticket)
        self._effects.append(Deliver(link.number, reading))

    def _report_another_clock(self, name: str) -> None:
        message = (
            "its CLOCK_MONOTONIC is not this process's (another time namespace?), or the "
            "wall clock was just set: of two logins of a user, the one that is read later "
            "may count as the newer"
        )
        fields: dict[str, object] = {"name": name, "message": message}
        self._effects.append(LogLine("link", "warning", "another clock", fields))

    def _take_all(
        self, link: Link, backlog: list[tuple[Request, int, Instant]]
    ) -> None:
        for request, n, received in backlog:
            self.take(link, request, n, received)

    # --- resets: gateways that came back fresh ---------------------------------

    @property
    def has_resets(self) -> bool:
        return bool(self._resets)

    def reset_sessions(self, at: Instant) -> list[PendingWelcome]:
        """End some more sessions of the gateways that came back fresh.

        Returns:
            The links that have none left; `welcome` them.
        """
        # A gateway that joins during a search is in the next one too, if it has sessions left.
        gateways = [
            gateway
            for reset in self._resets.values()
            if (gateway := self._gateway_of(reset)).users
        ]
        if gateways:
            place = self._firing.reset_sessions(
                gateways, self._place, at, limit=RESET_STEPS
            )
            self._place = max(0, place)
        ready = list[PendingWelcome]()
        for number, reset in list(self._resets.items()):
            if self._gateway_of(reset).users:
                continue
            del self._resets[number]
            if not reset.link.is_open:
                del self._backlogs[number]
                continue
            ready.append(reset)
            if len(ready) == WELCOMES:
                break
        return ready

    def _cancel_reset(self, gateway: GatewayState) -> bool:
        """Forget the reset that an older link began; return whether there was one."""
        resets = self._resets.items()
        older = [n for n, reset in resets if self._gateway_of(reset) is gateway]
        for number in older:
            del self._resets[number], self._backlogs[number]
        return bool(older)

    @staticmethod
    def _gateway_of(reset: PendingWelcome) -> GatewayState:
        assert reset.link.gateway is not None
        return reset.link.gateway
