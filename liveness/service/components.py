"""One sidecar: all its parts, wired, started in order and stopped in reverse."""

import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog
import trio
import trio.lowlevel
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from starlette.types import ASGIApp

from liveness import __version__
from liveness.compiled import WHEEL, Wheel
from liveness.config.settings import Config
from liveness.core.access import Access
from liveness.core.attended_clock import AttendedClock
from liveness.core.changes import Decisions
from liveness.core.conversation import ConversationLimits
from liveness.core.presence import Presence
from liveness.core.records import GATEWAY, WATCHER
from liveness.core.storm_guard import GuardRules
from liveness.core.timer_scheduler import RING_S, RING_SLOTS, TimerScheduler
from liveness.core.timer_states import TimerCommand, TimerTransaction
from liveness.errors import StateError
from liveness.metrics import Collector, Counts, GatewayNow, HttpRefusal, Now
from liveness.service.common.clock import Clock
from liveness.service.common.logs import Every
from liveness.service.common.threads import in_thread
from liveness.service.engine.accept import accept_links
from liveness.service.engine.engine import Engine, EngineLimits, turn_for_ever
from liveness.service.engine.timer_loop import keep_time
from liveness.service.file_watch import FileWatch
from liveness.service.http.api import Api
from liveness.service.http.event_stream import Streams
from liveness.service.http.feed_api import FeedApi
from liveness.service.http.gateways_api import GatewaysApi, GuardApi
from liveness.service.http.listener import HttpLimits, serve_door
from liveness.service.http.live_api import LiveApi
from liveness.service.http.middleware import (
    Check,
    Middleware,
    Refused,
    asked_by_a_name_in,
    from_nobody,
    only_health,
    only_reads,
)
from liveness.service.http.pacing import Turnstile
from liveness.service.http.routes import build_pages
from liveness.service.http.sign_in import SIGN_IN, SIGN_OUT, SignIn, Token
from liveness.service.http.summary import Summaries
from liveness.service.http.timers_api import TimersApi
from liveness.service.http.users_api import OnlineUsersApi, UsersApi
from liveness.service.links.acceptor import Acceptor
from liveness.service.links.credentials import peer_of
from liveness.service.links.handshake import Handshake
from liveness.service.links.outbox import Delivery, OutboxLimits
from liveness.service.links.registry import (
    REFUSALS_LOG_S,
    LinkRegistry,
    LinkRegistryLimits,
)
from liveness.service.links.sockets import UnixListener
from liveness.service.links.unread_replies import Spools, Unread
from liveness.service.storage import clocks_file
from liveness.service.storage.log_store import Batch, LogStore
from liveness.service.storage.log_tail import LogTail
from liveness.service.storage.log_writer import LogWriter
from liveness.service.storage.skipped_runs import SkippedRuns
from liveness.service.storage.timer_store import TimerStore
from liveness.service.storage.timer_writer import TimerWriter

# After a long absence, a restart or a lost link a gateway gets time to send what it
# collected: a second within which it reconnects, and a flush interval, itself at most
# a second where gateways are judged.
RECONNECT_S: Final = 1.0
MOST_FLUSH_S: Final = 1.0
# The whole stop takes no longer than five seconds: this for reading what has been
# sent, this for the disk; the rest is for links and HTTP.
STOP_READING_S: Final = 0.5
STOP_WRITING_S: Final = 1.5
STOP_LINKS_S: Final = 1.5
STOP_HTTP_S: Final = 0.5
# The hand moves at least ten times a second; this much later it is not alive.
HAND_DEAD_S: Final = 5.0

_log = structlog.get_logger("sidecar")


class SidecarService:
    """All the parts of one sidecar, wired: first `restore`, then `run`.

    Args:
        config: The settings.
        store: The open state directory.
        table: The timers in it.
        clock: The clocks.
        access: Who may do what.
        token: What is asked for at the TCP door; None: nothing.

    `token`, and `engine.book.access`, may change while it runs.
    """

    def __init__(
        self,
        config: Config,
        store: LogStore,
        table: TimerStore,
        clock: Clock,
        access: Access,
        token: Token | None = None,
    ) -> None:
        self.config = config
        self.counts = Counts()
        self._store = store
        self._table = table
        self._clock = clock
        self.token = token
        self._listens = False
        limits = config.limits
        self.feed = LogTail(keep=limits.tail)
        self._unread = Unread(
            Spools(store.folder, most_bytes=limits.max_spool_bytes),
            most_bytes=limits.max_unread_bytes,
        )
        self.log_writer = LogWriter(
            store,
            TimerWriter(table, clock=clock, settled=self._settled),
            clock=clock,
            counts=self.counts,
            published=self._published,
        )
        reconnect_grace = RECONNECT_S + min(config.flush, MOST_FLUSH_S)
        decided = Decisions(self.log_writer.durable_seq + 1)
        self.presence = Presence(
            Wheel(timeout=config.timeout_s, slots=config.slots),
            decided=decided,
            timeout=config.timeout_s,
            gateway_hold=limits.gateway_hold_s,
            reconnect_grace=reconnect_grace,
            max_users=limits.max_users,
            max_gateway_users=limits.max_gateway_users,
            guard=_guard_rules(config, reconnect_grace),
        )
        attended = AttendedClock(
            mono=clock.mono(),
            cpu=clock.cpu(),
            reconnect_grace=reconnect_grace,
            patience=limits.gateway_hold_s,
        )
        self.timetable = TimerScheduler(
            _ring,
            decided,
            at=clock.instant(attended.now, clock.mono()),
            next_id=table.next_id,
            states=table.states(),
            ladder=config.timers.ladder,
            max_live=config.timers.max_live,
            max_loaded=config.timers.max_loaded,
        )
        link_limits = ConversationLimits(
            max_frame_bytes=limits.max_frame_bytes,
            max_batch=limits.max_batch,
            max_refused=limits.max_refused,
        )
        self._passed_over = SkippedRuns(self.log_writer, self.feed.disk, clock=clock)
        self.engine = Engine(
            self.presence,
            self.timetable,
            attended=attended,
            clock=clock,
            log_writer=self.log_writer,
            counts=self.counts,
            book=LinkRegistry(
                attended=attended,
                clock=clock,
                log_writer=self.log_writer,
                counts=self.counts,
                access=access,
                unread=self._unread,
                limits=LinkRegistryLimits(
                    hello_s=limits.hello_s,
                    max_links=limits.max_links,
                    max_handshakes=limits.max_handshakes,
                    max_gateways=limits.max_gateways,
                    max_names=limits.max_names,
                    max_unfinished_bytes=limits.max_unfinished_bytes,
                ),
            ),
            limits=EngineLimits(
                pause_firing=limits.pause_firing,
                pause_reading=limits.pause_reading,
                max_orders=config.timers.max_pending,
            ),
            passed_over=self._passed_over,
            greeter=Handshake(
                self.log_writer,
                self.feed,
                self._passed_over,
                timeout=config.timeout_s,
                flush=config.flush,
                window=limits.window,
                run_timeout=config.timers.run_timeout_s,
                limits=link_limits,
            ),
        )
        self._delivery = Delivery(
            log_writer=self.log_writer,
            feed=self.feed,
            clock=clock,
            counts=self.counts,
            limits=OutboxLimits(
                window=limits.window,
                max_replies=limits.max_replies,
                max_reply_bytes=limits.max_reply_bytes,
                unread_s=limits.unread_s,
                gateway_unread_s=max(limits.unread_s, limits.gateway_hold_s),
            ),
            unread=self._unread,
        )
        self._turnstile = Turnstile()
        self.streams = Streams(
            most=config.http.streams, counts=self.counts, turnstile=self._turnstile
        )
        self._files = FileWatch(store.files | table.files, counts=self.counts)
        self._summaries = Summaries(
            self._now,
            engine=self.engine,
            log_writer=self.log_writer,
            clock=clock,
            why_not_ready=self.why_not_ready,
        )
        self._pages: tuple[Api, ...] = (
            LiveApi(
                *(self._summaries, self.log_writer, self.feed, self.streams),
                self._turnstile,
            ),
            FeedApi(
                *(self.log_writer, self.feed, self.streams),
                clock=clock,
                counts=self.counts,
                max_backlog=config.http.max_backlog,
            ),
            OnlineUsersApi(
                *(self.log_writer, self.feed, self.streams),
                self._unread.spools,
                self.counts,
            ),
            TimersApi(self.engine, self.log_writer),
            GatewaysApi(self.engine, self.log_writer),
            GuardApi(self.engine),
            UsersApi(self.engine, self.log_writer, wall_ms=clock.wall_ms),
        )

    async def run(
        self,
        asked_to_stop: Callable[[], Awaitable[object]],
        listener: socket.socket,
        doors: dict[str, socket.socket],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until asked to stop, then stop in order; started once links are taken.

        Args:
            asked_to_stop: Returns when it is to stop.
            listener: Where gateways and watchers connect.
            doors: The HTTP sockets, `http` and `admin`.
        """
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, self.log_writer.run)
            nursery.start_soon(
                partial(
                    self.log_writer.trim,
                    retention_s=self.config.state.retention_s,
                    most_bytes=self.config.state.retention_bytes,
                    most_ended=self.config.timers.max_ended,
                    in_use=self.engine.names_in_use,
                    forgot=self.timetable.forgot,
                )
            )
            nursery.start_soon(self._write, self.log_writer.timers.run)
            nursery.start_soon(self.log_writer.timers.write_back)
            nursery.start_soon(self._passed_over.run, self.engine.undelivered)
            nursery.start_soon(self._summaries.run)
            timekeeping = trio.CancelScope()
            keep = partial(keep_time, table=self._table)
            nursery.start_soon(_within, timekeeping, keep, self.engine)
            for door, sock in doors.items():
                nursery.start_soon(self._serve_http, door, sock, stop.wait)
            async with trio.open_nursery() as links:
                self.engine.begin()
                hand = trio.CancelScope()
                nursery.start_soon(_within, hand, turn_for_ever, self.engine)
                links.start_soon(accept_links, listener, self.engine, self._delivery)
                looking = trio.CancelScope()
                sockets = {"gateway": listener, **doors}
                nursery.start_soon(self._look_after, looking, sockets)
                self._listens = True
                task_status.started()
                await asked_to_stop()
                self._listens = False
                looking.cancel()
                hand.cancel()
                timekeeping.cancel()  # or runs would come behind the clocks of the stop
                await self._stop_links(links)
            await self._write_stopfile()
            stop.set()
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.deadline = trio.current_time() + STOP_HTTP_S
        _log.info(
            "stopped", users=len(self.presence), log_seq=self.log_writer.durable_seq
        )

    async def _look_after(
        self, scope: trio.CancelScope, sockets: dict[str, socket.socket]
    ) -> None:
        with scope:
            await self._files.run(
                {
                    name: it
                    for name, it in sockets.items()
                    if isinstance(it, UnixListener)
                }
            )

    # --- start and stop -------------------------------------------------------

    def restore(self) -> None:
        """Take up every session that was open when the last process ended."""
        mono, wall_ms = self._clock.mono(), self._clock.wall_ms()
        at = self._clock.instant(self.engine.attended, mono)
        stopped = clocks_file.take(
            self._store.folder,
            log=self._store.log,
            seq=self.log_writer.durable_seq,
            wall_ms=wall_ms,
        )
        for (role, name), cursor in self.log_writer.cursors.items():
            timeout = cursor.timeout or self.config.timeout_s
            in_force = cursor.in_force or timeout
            if role == GATEWAY and (cursor.timeout or in_force > timeout):
                gateway = self.presence.gateway(name)
                self.presence.set_timeout(
                    gateway, cursor.timeout, at.now, in_force=in_force
                )
        self.presence.restore(self._store.online(), at, stopped)
        if len(self.presence):
            _log.info("restored", users=len(self.presence), clocks=len(stopped))

    async def _stop_links(self, links: trio.Nursery) -> None:
        """Read what has been sent, have it on disk, answer, and say bye."""
        with trio.move_on_after(STOP_READING_S):
            while not self.engine.drain():
                await trio.lowlevel.checkpoint()
        with trio.move_on_after(STOP_WRITING_S) as writing:
            await self.log_writer.flushed()
        if writing.cancelled_caught:
            log_writer = self.log_writer
            is_log = bool(log_writer.records_pending)
            what = "the log" if is_log else "all that was asked of timers"
            _log.error(
                f"stopped before {what} could be written; gateways send again what no "
                "pong covered",
                pending=log_writer.pending,
                error=log_writer.failure,
            )
        await self._bid_farewell()
        links.cancel_scope.cancel()

    async def _bid_farewell(self) -> None:
        self.engine.book.bid_farewell("the sidecar stops")
        self.streams.stop()
        with trio.move_on_after(STOP_LINKS_S):
            await self.engine.book.all_closed.wait()

    async def _write(self, run: Callable[[], Awaitable[None]]) -> None:
        """Write a file for ever; if another process does too, say bye, and end."""
        try:
            await run()
        except StateError as error:
            why = error
        await self._bid_farewell()
        raise why

    async def _write_stopfile(self) -> None:
        if self.log_writer.log_failure is not None:
            return  # the file would belong to an end of the log that is not there
        with trio.move_on_after(STOP_WRITING_S) as writing:
            await self.log_writer.flushed_for(None)
        if writing.cancelled_caught:
            return
        write = partial(
            clocks_file.write,
            self._store.folder,
            log=self._store.log,
            seq=self.log_writer.durable_seq,
            mono=self._clock.mono(),
            wall_ms=self._clock.wall_ms(),
            everyone=self.presence.wheel.snapshot(self.engine.attended),
        )
        try:
            if not self._store.is_in_place:
                raise OSError(f"{self._store.path} is not the log that is open")
            with trio.fail_after(STOP_WRITING_S):
                await in_thread(write)
        except (OSError, trio.TooSlowError) as error:
            _log.error(
                "everyone's clock could not be written; at the next start they get a "
                "fresh timeout",
                error=str(error) or self.log_writer.failure,
            )

    def _published(self, batch: Batch) -> None:
        self.feed.publish(batch)
        self.engine.written()

    def _settled(
        self, orders: list[TimerCommand], settlement: TimerTransaction
    ) -> None:
        self.timetable.settled(orders, settlement)
        self.engine.loaded_timers()
        self.engine.written()
        self.feed.notify_waiting()
        self.log_writer.is_flushed()

    # --- HTTP -----------------------------------------------------------------

    async def _serve_http(
        self, door: str, sock: socket.socket, stopped: Callable[[], Awaitable[None]]
    ) -> None:
        def refused(why: HttpRefusal) -> None:
            self.counts.http_refused[door, why] += 1

        http = self.config.http
        app = self._gate(door, refused)
        every = Every(REFUSALS_LOG_S, clock=self._clock.mono)

        def is_stranger(connection: socket.socket) -> bool:
            admin = self.engine.book.access.admin
            return door == "admin" and not admin.admits(peer_of(connection))

        def app_for(connection: socket.socket) -> ASGIApp:
            if not is_stranger(connection):
                return app
            peer = peer_of(connection)
            why = self.engine.book.access.why_no_admin(peer)
            every(
                _log.warning, "admin refused", key=peer.uid, pid=peer.pid, uid=peer.uid,
                detail=why,
            )  # fmt: skip
            checks = [from_nobody(why)]
            return Middleware(app, checks, refused, max_body_bytes=http.max_body_bytes)

        await serve_door(
            app_for,
            Acceptor(sock, door, self.counts.accepts_put_off),
            stopped,
            limits=HttpLimits(
                connections=http.max_connections,
                request_s=http.request_s,
                head_bytes=http.max_header_bytes,
            ),
            refused=refused,
            grace_s=STOP_HTTP_S,
            only_health=partial(
                Middleware,
                checks=[only_health(http.max_connections)],
                refused=refused,
                max_body_bytes=http.max_body_bytes,
            ),
            turnstile=self._turnstile,
            is_stranger=is_stranger,
        )

    def _gate(self, door: str, refused: Refused) -> Middleware:
        """The pages of a door, behind what it asks of a request."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Collector(self._now))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        may_change = door == "admin"
        routes = [
            route
            for pages in self._pages
            for route in pages.routes(may_change=may_change)
        ]
        checks: list[Check] = []
        http, token = self.config.http, self.token if door == "http" else None
        if door == "http":
            posts = {SIGN_IN, SIGN_OUT} if token else set[str]()
            checks += [asked_by_a_name_in(http.names), only_reads(posts)]
        if token:
            sign_in = SignIn(
                token, http.names, refused, wall_s=lambda: self._clock.wall_ms() / 1000
            )
            checks.append(sign_in.check)
            routes += sign_in.routes()
        pages = build_pages(
            registry,
            routes,
            why_ill=self.why_ill,
            why_not_ready=self.why_not_ready,
            has_sign_out=token is not None,
            turnstile=self._turnstile,
        )
        return Middleware(pages, checks, refused, max_body_bytes=http.max_body_bytes)

    def why_ill(self) -> list[str]:
        """What is wrong with the process; empty if it lives."""
        lag = self._clock.mono() - self.engine.turned_at
        return [f"the hand stands still for {lag:.0f} s"] if lag > HAND_DEAD_S else []

    def why_not_ready(self) -> list[str]:
        """Why it should not be given work; empty if it is ready."""
        why = self.why_ill()
        if not self._listens:
            why.append("the socket is not listened on")
        failures = (self.log_writer.failure, self.engine.timers_unread)
        why += [failure for failure in failures if failure is not None]
        return why + self._files.failures

    @property
    def status(self) -> str:
        """How it is, in a line for a person."""
        online = f"{len(self.presence):,} users online"
        why = "; ".join(self.why_not_ready())
        return f"not ready: {why}; {online}" if why else f"ready, {online}"

    def _now(self) -> Now:
        presence, engine, log_writer = self.presence, self.engine, self.log_writer
        now = engine.attended
        wheel = presence.wheel
        return Now(
            events=presence.events,
            ignored=presence.ignored,
            began_unused=presence.began_unused,
            users=len(presence),
            opened=presence.opened,
            ended=presence.ended,
            moved=presence.moved,
            early=presence.early,
            slot_users=wheel.slot_users(),
            hand_lag_s=engine.hand_lag,
            unattended_s=engine.unattended,
            held=presence.held(now),
            storms=0 if presence.guard is None else presence.guard.begun,
            links={role: engine.book.linked(role) for role in (GATEWAY, WATCHER)},
            unread={"memory": self._unread.memory, "disk": self._unread.spools.bytes},
            unfinished_bytes=engine.book.unfinished.bytes,
            gateways=[
                GatewayNow(
                    name=gateway.name,
                    users=gateway.users,
                    unacked=engine.book.unacked(gateway.name),
                    timeout_s=wheel.timeout_of(gateway.number),
                    interval_s=presence.interval(gateway),
                    mutes=gateway.mutes,
                )
                for gateway in presence.gateways.values()
                if gateway.users or gateway.is_linked
            ],
            log_seq=log_writer.durable_seq,
            log_pending=log_writer.pending,
            write_failures=log_writer.write_failures,
            log_bytes=log_writer.log_bytes,
            log_damaged=log_writer.store.damaged_records,
            feed_watchers=engine.book.linked(WATCHER),
            streams=dict(self.streams.open),
            timers=dict(self.timetable.states),
            timers_loaded=self.timetable.loaded,
            timer_attempts=dict(self.timetable.results),
            is_ready=not self.why_not_ready(),
            counts=self.counts,
            build={"version": __version__, "wheel": WHEEL},
        )


def _guard_rules(config: Config, reconnect_grace: float) -> GuardRules | None:
    """When the storm guard holds users; None if it is off."""
    guard = config.guard
    if not guard.enabled:
        return None
    return GuardRules(
        guard.share,
        guard.least_users,
        guard.hold_s or config.timeout_s,
        config.timeout_s,
        reconnect_grace,
    )


def _ring(mono: float) -> Wheel:
    """The wheel that timers are on."""
    return Wheel(timeout=RING_S, slots=RING_SLOTS, now=mono)


async def _within(
    scope: trio.CancelScope, run: Callable[[Engine], Awaitable[object]], engine: Engine
) -> None:
    with scope:
        await run(engine)
