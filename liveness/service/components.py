"""One sidecar: connects its parts, starts them in order, stops them in reverse."""

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
from liveness.cluster.questions import ClusterQuestions
from liveness.config import assembly
from liveness.config.compiled import Reader, RecordBatch, SessionRestorer
from liveness.config.settings import Config
from liveness.core.access import Access
from liveness.core.changes import Decisions
from liveness.core.cursors import Cursors
from liveness.core.links.conversation import Conversation
from liveness.core.timer_states import TimerCommand
from liveness.core.timers.timer_commands import TimerTransaction
from liveness.errors import StateError
from liveness.metrics.collector import Collector
from liveness.metrics.counts import Counts, HttpRefusal
from liveness.metrics.now import Now
from liveness.service.common.clock import Clock
from liveness.service.common.logs import LogThrottle
from liveness.service.common.threads import in_thread
from liveness.service.common.turnstile import Turnstile
from liveness.service.engine.accept import accept_links
from liveness.service.engine.cluster_asker import ask_cluster
from liveness.service.engine.engine import Engine, run_turns
from liveness.service.engine.operator_log import REFUSALS_LOG_S
from liveness.service.file_watch import FileWatch
from liveness.service.http.api import Api
from liveness.service.http.cluster_api import CLUSTER_WHERE, ClusterApi
from liveness.service.http.event_stream import Streams
from liveness.service.http.feed_api import FeedApi
from liveness.service.http.gateways_api import GatewaysApi, GuardApi
from liveness.service.http.listener import HttpLimits, serve_http
from liveness.service.http.live_api import LiveApi
from liveness.service.http.middleware import (
    Check,
    Middleware,
    Refused,
    allow_hosts,
    deny_all,
    only_health,
    read_only,
)
from liveness.service.http.readings import readings
from liveness.service.http.routes import build_pages
from liveness.service.http.sign_in import SIGN_IN, SIGN_OUT, SignIn, Token
from liveness.service.http.stream_readers import StreamReaders
from liveness.service.http.summary import Summaries
from liveness.service.http.timers_api import TimersApi
from liveness.service.http.users_api import (
    WHERE,
    WHERE_BYTES,
    OnlineUsersApi,
    UsersApi,
)
from liveness.service.http.webhooks_api import WebhooksApi
from liveness.service.links.acceptor import Acceptor
from liveness.service.links.credentials import peer_of
from liveness.service.links.link_writer import Delivery
from liveness.service.links.sockets import UnixListener
from liveness.service.outlets.outlet_wiring import outlets_of
from liveness.service.storage import clocks_file
from liveness.service.storage.database import damage_error
from liveness.service.storage.log_store import Batch, LogStore
from liveness.service.storage.log_tail import LogTail
from liveness.service.storage.spools import Spools
from liveness.service.timers.skipped_attempts import SkippedAttempts
from liveness.service.timers.state_writer import StateWriter
from liveness.service.timers.timer_loop import TimerLoop
from liveness.service.timers.timer_store import TimerStore
from liveness.service.timers.timer_writer import TimerWriter

# Time limits of a stop: to read what links have sent, to write it to the disk (and then
# the clocks file), to close links, and to end HTTP requests.
STOP_READING_S: Final = 0.5
STOP_WRITING_S: Final = 1.5
STOP_LINKS_S: Final = 1.5
STOP_HTTP_S: Final = 0.5
# The engine turns at least ten times a second; without a turn for this long it is
# unhealthy.
TURN_DEAD_S: Final = 5.0

_log = structlog.get_logger("sidecar")


class SidecarService:
    """All parts of one sidecar; call `restore`, then `run`.

    Args:
        config: The settings.
        store: The log in the open state directory.
        table: The timers in it.
        clock: The clocks.
        access: What each user and group may do.
        token: The token that HTTP requests over TCP need; None if they need none.

    A reload may change `token` and `registry.access`.
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
        self.token = token
        self.counts = counts = Counts()
        self._store = store
        self._clock = clock
        self._listens = False
        self.feed = LogTail(keep=config.limits.tail)
        self._spools = Spools(store.folder, most_bytes=config.limits.max_spool_bytes)
        decided = Decisions(
            store.bounds()[1], Cursors(store.cursors()), new_batch=RecordBatch
        )
        attended = assembly.make_attended_clock(
            config, mono=clock.mono(), cpu=clock.cpu()
        )
        self.log_writer = log_writer = StateWriter(
            store,
            TimerWriter(table, clock=clock, on_applied=self._on_applied),
            decided,
            clock=clock,
            counts=counts,
            published=self._published,
        )
        self.server = assembly.make_server(
            config,
            version=__version__,
            disk=log_writer,
            decided=decided,
            attended=attended,
            counts=counts,
            access=access,
            at=clock.instant(attended.now, clock.mono()),
            next_timer=1,  # `restore` sets both
            timer_states={},
            new_conversation=lambda limits: Conversation(limits, Reader),
            host=config.cluster.host_name if config.cluster.is_on else "",
        )
        self.presence, self.scheduler = self.server.presence, self.server.scheduler
        self._skipped_attempts = SkippedAttempts(
            self.server.skipped, log_writer, self.feed.disk, clock=clock
        )
        self.engine = Engine(
            self.server,
            attended=attended,
            clock=clock,
            log_writer=log_writer,
            skipped_attempts=self._skipped_attempts,
            spools=self._spools,
        )
        self._turnstile = Turnstile()
        self.outlets = outlets_of(
            config,
            self.presence,
            log_writer,
            self.feed,
            spools=self._spools,
            clock=clock,
            turnstile=self._turnstile,
        )
        self._timer_loop = TimerLoop(
            self.server,
            table,
            counts,
            wanted=self.engine.timers_wanted,
            fire=self.engine.fire_timers,
            loaded=self.engine.timers_changed,
        )
        self._file_watch = FileWatch(store.files | table.files, counts=counts)
        self.streams = Streams(
            most=config.http.streams, counts=counts, turnstile=self._turnstile
        )
        self._summaries = Summaries(
            self._now,
            engine=self.engine,
            log_writer=log_writer,
            clock=clock,
            why_not_ready=self.why_not_ready,
        )
        self._apis = self._make_apis()

    def _make_apis(self) -> tuple[Api, ...]:
        engine, log_writer = self.engine, self.log_writer
        readers = (log_writer, self.feed, self.streams)
        stream_readers = StreamReaders(
            log_writer,
            self.feed,
            clock=self._clock,
            counts=self.counts,
            max_settling=self.config.limits.max_settling,
        )
        mono = self._clock.mono
        return (
            LiveApi(
                self._summaries, *readers, stream_readers, self._turnstile, mono=mono
            ),
            FeedApi(
                *readers,
                stream_readers,
                mono=mono,
                counts=self.counts,
                max_backlog=self.config.http.max_backlog,
            ),
            OnlineUsersApi(*readers, self._spools, self.counts),
            TimersApi(engine, log_writer, clock=self._clock),
            GatewaysApi(engine, log_writer, clock=self._clock),
            GuardApi(engine),
            UsersApi(engine, log_writer, wall_ms=self._clock.wall_ms),
            ClusterApi(self._cluster_questions),
            WebhooksApi(
                [] if self.outlets is None else self.outlets.webhooks,
                None if self.outlets is None else self.outlets.letters,
            ),
        )

    async def run(
        self,
        asked_to_stop: Callable[[], Awaitable[object]],
        listener: socket.socket,
        doors: dict[str, socket.socket],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until asked to stop, then stop in order; started once links are accepted.

        Args:
            asked_to_stop: Returns when the sidecar is to stop.
            listener: The socket of gateways and watchers.
            doors: The HTTP sockets, `http` and `admin`.
        """
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, self.log_writer.run)
            nursery.start_soon(self._trim)
            nursery.start_soon(self.log_writer.keep_clock)
            nursery.start_soon(self._write, self.log_writer.timers.run)
            nursery.start_soon(self.log_writer.checkpoints.run)
            nursery.start_soon(self.log_writer.timers.checkpoints.run)
            nursery.start_soon(self._skipped_attempts.run, self.engine.fire_again)
            nursery.start_soon(self._summaries.run)
            if self.outlets is not None:
                nursery.start_soon(self.outlets.run)
            if self._cluster_questions is not None:
                nursery.start_soon(self._ask_cluster, self._cluster_questions)
            timers = trio.CancelScope()
            nursery.start_soon(_within, timers, self._timer_loop.run)
            async with trio.open_nursery() as http:
                for door, sock in doors.items():
                    http.start_soon(self._serve_http, door, sock, stop.wait)
                async with trio.open_nursery() as links:
                    self.engine.start()
                    turns, watch = trio.CancelScope(), trio.CancelScope()
                    nursery.start_soon(_within, turns, partial(run_turns, self.engine))
                    links.start_soon(self._accept_links, listener)
                    sockets = {"gateway": listener, **doors}
                    nursery.start_soon(
                        _within, watch, partial(self._watch_files, sockets)
                    )
                    self._listens = True
                    task_status.started()
                    await asked_to_stop()
                    self._listens = False
                    watch.cancel()
                    turns.cancel()
                    # The log must not grow once the clocks file is written.
                    timers.cancel()
                    await self._stop_links(links)
                await self._write_clocks()
                with trio.move_on_after(STOP_WRITING_S):
                    await self.log_writer.store_clock()
                stop.set()
            nursery.cancel_scope.cancel()
        seq = self.log_writer.durable_seq
        _log.info("stopped", users=len(self.presence), log_seq=seq)

    async def _accept_links(self, listener: socket.socket) -> None:
        delivery = Delivery(
            log_writer=self.log_writer,
            feed=self.feed,
            clock=self._clock,
            counts=self.counts,
            spools=self._spools,
        )
        await accept_links(listener, self.engine, delivery)

    async def _ask_cluster(self, questions: ClusterQuestions) -> None:
        max_rows = self.config.limits.max_where_rows
        await ask_cluster(self.engine, questions, max_rows=max_rows)

    async def _trim(self) -> None:
        await self.log_writer.trim(
            retention_s=self.config.state.retention_s,
            most_bytes=self.config.state.retention_bytes,
            most_ended=self.config.timers.max_ended,
            in_use=self.server.names_in_use,
            forgot=self.scheduler.deleted,
        )

    async def _watch_files(self, sockets: dict[str, socket.socket]) -> None:
        items = sockets.items()
        listeners = {
            name: sock for name, sock in items if isinstance(sock, UnixListener)
        }
        await self._file_watch.run(listeners)

    # --- start and stop -------------------------------------------------------

    def restore(self, catch_up: Callable[[], None]) -> None:
        """Resume the sessions and timers of the last process.

        Args:
            catch_up: Has the timers' table follow the log. It is called once the sessions
                were read: a start that is refused leaves every file as it was.
        Raises:
            sqlite3.DatabaseError: The open sessions cannot be read.
        """
        at = self.engine.instant()
        seq = self.log_writer.durable_seq
        with clocks_file.taken(
            self._store.folder,
            logs=self._store.ids_at(seq),
            seq=seq,
            at_ms=at.state_ms,
        ) as clocks:
            try:
                restorer = SessionRestorer(clocks, at=at, next_seq=seq + 1)
                self.server.restore(self._store.online(), at, restorer)
            except ValueError as error:
                raise damage_error(f"its table of open sessions: {error}") from error
            catch_up()
        table = self.log_writer.timers.table
        self.scheduler.resume(table.next_id, table.states())
        if len(self.presence):
            _log.info("restored", users=len(self.presence), clocks=len(clocks.sessions))

    async def _stop_links(self, links: trio.Nursery) -> None:
        """Read what links have sent, wait for the disk, answer, and send `bye`."""
        with trio.move_on_after(STOP_READING_S):
            while not self.engine.drain():
                await trio.lowlevel.checkpoint()
        with trio.move_on_after(STOP_WRITING_S) as writing:
            await self.log_writer.flushed()
        if writing.cancelled_caught:
            is_log = bool(self.log_writer.records_pending)
            what = "the log" if is_log else "the timer commands"
            _log.error(
                f"stopped before {what} could be written; gateways send again what no "
                "pong covered",
                pending=self.log_writer.pending,
                error=self.log_writer.failure,
            )
        await self._close_links()
        links.cancel_scope.cancel()

    async def _close_links(self) -> None:
        self.engine.close_links("the sidecar stops")
        self.streams.stop()
        with trio.move_on_after(STOP_LINKS_S):
            await self.engine.all_closed.wait()

    async def _write(self, run: Callable[[], Awaitable[None]]) -> None:
        """Write a database forever; if another process writes to it too, end the sidecar."""
        try:
            await run()
        except StateError as error:
            why = error
        await self._close_links()
        raise why

    async def _write_clocks(self) -> None:
        """Write the remaining time of all users, for the next start."""
        if self.log_writer.log_failure is not None:
            return  # the file would name a seq that is not in the log
        with trio.move_on_after(STOP_WRITING_S) as writing:
            await self.log_writer.flushed_for(None)
        if writing.cancelled_caught:
            return
        at = self.engine.instant()
        write = partial(
            clocks_file.write,
            self._store.folder,
            log=self._store.log,
            seq=self.log_writer.durable_seq,
            at_ms=at.state_ms,
            clocks=self.presence.wheel.clocks(at.now, at.mono),
        )
        try:
            if not self._store.is_in_place:
                raise OSError(f"{self._store.path} is not the log that is open")
            with trio.fail_after(STOP_WRITING_S):
                await in_thread(write)
        except (OSError, trio.TooSlowError) as error:
            _log.error(
                "the clocks file could not be written; at the next start every user "
                "gets a fresh timeout",
                error=str(error) or self.log_writer.failure,
            )

    def _published(self, batch: Batch) -> None:
        self.feed.publish(batch)
        self.engine.written()

    def _on_applied(
        self, commands: list[TimerCommand], transaction: TimerTransaction
    ) -> None:
        self.scheduler.applied(commands, transaction)
        self.engine.timers_changed()
        self.engine.written()
        self.feed.notify_waiting()
        self.log_writer.notify_flushed()

    # --- HTTP -----------------------------------------------------------------

    async def _serve_http(
        self, door: str, sock: socket.socket, stopped: Callable[[], Awaitable[None]]
    ) -> None:
        def refused(why: HttpRefusal) -> None:
            self.counts.http_refused[door, why] += 1

        http = self.config.http
        app = self.http_app(door, refused)
        checked = partial(
            Middleware, refused=refused, max_body_bytes=http.max_body_bytes
        )
        log_throttled = LogThrottle(REFUSALS_LOG_S, clock=self._clock.mono)

        def is_denied(connection: socket.socket) -> bool:
            admin = self.server.registry.access.admin
            return door == "admin" and not admin.admits(peer_of(connection))

        def app_for(connection: socket.socket) -> ASGIApp:
            if not is_denied(connection):
                return app
            peer = peer_of(connection)
            why = self.server.registry.access.why_no_admin(peer)
            log_throttled(
                _log.warning,
                "admin refused",
                key=peer.unix_user,
                pid=peer.pid,
                unix_user=peer.unix_user,
                detail=why,
            )
            return checked(app, checks=[deny_all(why)])

        await serve_http(
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
            only_health=partial(checked, checks=[only_health(http.max_connections)]),
            turnstile=self._turnstile,
            is_denied=is_denied,
        )

    def http_app(self, door: str, refused: Refused) -> Middleware:
        """The application of an HTTP listener, behind its checks."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Collector(self._now))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        may_change = door == "admin"
        routes = [
            route for api in self._apis for route in api.routes(may_change=may_change)
        ]
        checks: list[Check] = []
        http, token = self.config.http, self.token if door == "http" else None
        if door == "http":
            posts = {WHERE, CLUSTER_WHERE}
            if token:
                posts |= {SIGN_IN, SIGN_OUT}
            checks += [allow_hosts(http.names), read_only(posts)]
        if token:
            sign_in = SignIn(token, http.names, refused, now_s=self._clock.state_s)
            checks.append(sign_in.check)
            routes += sign_in.routes()
        pages = build_pages(
            registry,
            routes,
            why_unhealthy=self.why_unhealthy,
            why_not_ready=self.why_not_ready,
            has_sign_out=token is not None,
            turnstile=self._turnstile,
        )
        return Middleware(
            pages,
            checks,
            refused,
            max_body_bytes=http.max_body_bytes,
            larger_bodies={WHERE: WHERE_BYTES, CLUSTER_WHERE: WHERE_BYTES},
        )

    def why_unhealthy(self) -> list[str]:
        """What is wrong with the process; empty if it is healthy."""
        lag = self._clock.mono() - self.engine.last_turn_at
        return [f"the hand stands still for {lag:.0f} s"] if lag > TURN_DEAD_S else []

    def why_not_ready(self) -> list[str]:
        """Why the sidecar is not ready; empty if it is."""
        why = self.why_unhealthy()
        if not self._listens:
            why.append("the gateway socket is not listening")
        failures = (self.log_writer.failure, self._timer_loop.failure)
        why += [failure for failure in failures if failure is not None]
        return why + self._file_watch.failures

    @property
    def status(self) -> str:
        """The status, as one line for an operator."""
        online = f"{len(self.presence):,} users online"
        why = "; ".join(self.why_not_ready())
        return f"not ready: {why}; {online}" if why else f"ready, {online}"

    @property
    def _cluster_questions(self) -> ClusterQuestions | None:
        cluster = None if self.outlets is None else self.outlets.cluster
        return None if cluster is None else cluster.questions

    def _now(self) -> Now:
        outlets = self.outlets
        cluster = None if outlets is None else outlets.cluster
        return readings(
            self.engine,
            self.log_writer,
            spool_bytes=self._spools.bytes,
            streams=self.streams.open,
            counts=self.counts,
            is_ready=not self.why_not_ready(),
            cluster=None if cluster is None else cluster.now(),
            outlets=[] if outlets is None else outlets.now(),
        )


async def _within(
    scope: trio.CancelScope, run: Callable[[], Awaitable[object]]
) -> None:
    with scope:
        await run()
