"""One sidecar: connects its parts, starts them in order, stops them in reverse."""

import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import structlog
import trio
import trio.lowlevel

from liveness import __version__
from liveness.cluster.questions import ClusterQuestions
from liveness.config import assembly
from liveness.config.compiled import Reader, RecordBatch, SessionRestorer
from liveness.config.settings import Config
from liveness.core.access import Access
from liveness.core.changes import Decisions
from liveness.core.cursors import Cursors
from liveness.core.links.conversation import Conversation
from liveness.core.server import Server, ServerParts
from liveness.core.sessions.attended_clock import AttendedClock
from liveness.errors import StateError
from liveness.metrics.counts import Counts
from liveness.service.common.clock import Clock
from liveness.service.common.turnstile import Turnstile
from liveness.service.engine.accept import accept_links
from liveness.service.engine.engine import Engine, ask_cluster, run_turns
from liveness.service.engine.orderly_stop import (
    close_links,
    stop_links,
    write_clocks,
)
from liveness.service.file_watch import FileWatch
from liveness.service.http.bearer import Token
from liveness.service.http.event_stream import Streams
from liveness.service.http.feed_api import FeedApi
from liveness.service.http.gateways_api import GatewaysApi
from liveness.service.http.http_server import HttpServer
from liveness.service.http.live_api import LiveApi
from liveness.service.http.summary import Summaries
from liveness.service.http.timers_api import TimersApi
from liveness.service.http.users_api import UsersApi
from liveness.service.http.webhooks_api import WebhooksApi
from liveness.service.links.link_socket import Delivery
from liveness.service.links.sockets import UnixListener
from liveness.service.outlets.supervisor import outlets_of
from liveness.service.storage import clocks_file
from liveness.service.storage.database import damage_error
from liveness.service.storage.log_store import LogStore
from liveness.service.storage.log_tail import LogTail
from liveness.service.storage.online_list import Spools
from liveness.service.timers.state_writer import StateWriter
from liveness.service.timers.timer_loop import SkippedAttempts, TimerLoop
from liveness.service.timers.timer_store import TimerStore
from liveness.service.timers.timer_writer import TimerWriter

# The engine turns at least ten times a second; without a turn for this long it is
# unhealthy.
TURN_DEAD_S: Final = 5.0

_log = structlog.get_logger("sidecar")


class SidecarService:
    """All parts of one sidecar; call `restore`, then `run`.

    HTTP requests over TCP need the token; None if they need none. A reload may change
    `http.token` and the access that the registry of links has.
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
        self.counts = counts = Counts()
        self._store, self._clock = store, clock
        self._turnstile = Turnstile()
        self._listens = False
        self.feed = feed = LogTail(keep=config.limits.tail)
        self._spools = Spools(store.folder, most_bytes=config.limits.max_spool_bytes)
        decided = Decisions(
            store.bounds()[1], Cursors(store.cursors()), new_batch=RecordBatch
        )
        attended = assembly.make_attended_clock(
            config, mono=clock.mono(), cpu=clock.cpu()
        )
        self.log_writer = log_writer = self._make_writer(table, decided)
        server, self.parts = self._make_server(decided, attended, access)
        self.presence, self.scheduler = self.parts.presence, self.parts.scheduler
        self._skipped_attempts = SkippedAttempts(
            self.parts.skipped, log_writer, feed.disk, clock=clock
        )
        self.engine = Engine(
            server,
            self.parts,
            clock=clock,
            log_writer=log_writer,
            feed=feed,
            skipped_attempts=self._skipped_attempts,
        )
        self.outlets = outlets_of(
            config,
            self.presence,
            log_writer,
            feed,
            clock=clock,
            turnstile=self._turnstile,
        )
        self._timer_loop = self._make_timer_loop()
        self._file_watch = FileWatch(store.files | table.files, counts=counts)
        self.streams = Streams(
            most=config.http.max_streams, counts=counts, turnstile=self._turnstile
        )
        self.summaries = Summaries(
            self.engine,
            self.streams,
            counts,
            self._spools,
            self.outlets,
            self.why_not_ready,
        )
        self.http = self._make_http(token, self._make_apis())

    def _make_writer(self, table: TimerStore, decided: Decisions) -> StateWriter:
        return StateWriter(
            self._store,
            TimerWriter(
                table,
                # Made below, since it needs what needs the writers.
                on_applied=lambda *applied: self._timer_loop.applied(*applied),
            ),
            decided,
            clock=self._clock,
            counts=self.counts,
            published=self.feed.publish,
        )

    def _make_server(
        self, decided: Decisions, attended: AttendedClock, access: Access
    ) -> tuple[Server, ServerParts]:
        config, clock = self.config, self._clock
        return assembly.make_server(
            config,
            version=__version__,
            disk=self.log_writer,
            decided=decided,
            attended=attended,
            counts=self.counts,
            access=access,
            at=clock.instant(attended.now, clock.mono()),
            new_conversation=lambda limits: Conversation(limits, Reader),
            host=config.cluster.host_name if config.cluster.is_on else "",
        )

    def _make_timer_loop(self) -> TimerLoop:
        engine = self.engine
        return TimerLoop(
            engine.shell,
            self.scheduler,
            self.log_writer,
            self.feed,
            self.counts,
            instant=engine.instant,
            wanted=engine.timers_wanted,
            changed=engine.timers_changed,
        )

    def _make_http(self, token: Token | None, apis: Sequence[Any]) -> HttpServer:
        return HttpServer(
            self.config.http,
            lambda: [route for api in apis for route in api.routes()],
            token,
            engine=self.engine,
            summaries=self.summaries,
            counts=self.counts,
            turnstile=self._turnstile,
            why_unhealthy=self.why_unhealthy,
            why_not_ready=self.why_not_ready,
        )

    def _make_apis(self) -> Sequence[Any]:
        engine, streams, counts = self.engine, self.streams, self.counts
        return (
            LiveApi(engine, self.summaries, streams),
            FeedApi(
                engine,
                streams,
                counts,
                max_backlog=self.config.http.max_backlog,
                max_settling=self.config.limits.max_settling,
            ),
            TimersApi(engine),
            GatewaysApi(engine),
            UsersApi(engine, streams, counts, self._spools, self._cluster_questions),
            WebhooksApi(
                [] if self.outlets is None else self.outlets.webhooks,
                None if self.outlets is None else self.outlets.store,
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
        """Serve until *asked_to_stop* returns, then stop in order.

        It has started once links are accepted. *doors* are the HTTP sockets, `http` and
        `admin`.
        """
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            self._start_background_tasks(nursery)
            timers = trio.CancelScope()
            nursery.start_soon(_within, timers, self._timer_loop.run)
            async with trio.open_nursery() as http:
                for door, sock in doors.items():
                    http.start_soon(self.http.serve, door, sock, stop.wait)
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
                    await stop_links(self.engine, self.log_writer, self.streams.stop)
                    links.cancel_scope.cancel()
                await write_clocks(self.engine, self.presence, self.log_writer)
                stop.set()
            nursery.cancel_scope.cancel()
        seq = self.log_writer.durable_seq
        _log.info("stopped", users=len(self.presence), log_seq=seq)

    def _start_background_tasks(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._write, self.log_writer.run)
        nursery.start_soon(self._trim)
        nursery.start_soon(self.log_writer.keep_clock)
        nursery.start_soon(self._write, self.log_writer.timers.run)
        nursery.start_soon(self.log_writer.writer.run_checkpoints)
        nursery.start_soon(self.log_writer.timers.writer.run_checkpoints)
        nursery.start_soon(self._skipped_attempts.run, self.engine.fire_again)
        nursery.start_soon(self.summaries.run)
        if self.outlets is not None:
            nursery.start_soon(self.outlets.run)
        if self._cluster_questions is not None:
            nursery.start_soon(
                ask_cluster,
                self.engine,
                self._cluster_questions,
                self.config.limits.max_where_rows,
            )

    async def _accept_links(self, listener: socket.socket) -> None:
        delivery = Delivery(
            log_writer=self.log_writer,
            feed=self.feed,
            clock=self._clock,
            counts=self.counts,
            spools=self._spools,
        )
        await accept_links(listener, self.engine, self.parts.registry, delivery)

    async def _trim(self) -> None:
        await self.log_writer.trim(
            retention_s=self.config.state.retention_s,
            most_bytes=self.config.state.retention_bytes,
            most_ended=self.config.timers.max_ended,
            in_use=self.parts.registry.names_in_use,
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

        *catch_up* has the timers' table follow the log. It is called once the sessions
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
                with self.engine.shell as server:
                    server.restore(self._store.online(), at, restorer)
            except ValueError as error:
                raise damage_error(f"its table of open sessions: {error}") from error
            catch_up()
        table = self.log_writer.timers.table
        self.scheduler.resume(table.next_id, table.states())
        if len(self.presence):
            _log.info("restored", users=len(self.presence), clocks=len(clocks.sessions))

    async def _write(self, run: Callable[[], Awaitable[None]]) -> None:
        """Write a database forever; if another process writes to it too, end the sidecar."""
        try:
            await run()
        except StateError as error:
            why = error
        await close_links(self.engine, self.streams.stop)
        raise why

    def why_unhealthy(self) -> list[str]:
        lag = self._clock.mono() - self.parts.attended.turned_at
        return [f"the hand stands still for {lag:.0f} s"] if lag > TURN_DEAD_S else []

    def why_not_ready(self) -> list[str]:
        why = self.why_unhealthy()
        if not self._listens:
            why.append("the gateway socket is not listening")
        failures = (self.log_writer.failure, self._timer_loop.failure)
        why += [failure for failure in failures if failure is not None]
        return why + self._file_watch.failures

    @property
    def status(self) -> str:
        online = f"{len(self.presence):,} users online"
        why = "; ".join(self.why_not_ready())
        return f"not ready: {why}; {online}" if why else f"ready, {online}"

    @property
    def _cluster_questions(self) -> ClusterQuestions | None:
        cluster = None if self.outlets is None else self.outlets.cluster
        return None if cluster is None else cluster.questions


async def _within(
    scope: trio.CancelScope, run: Callable[[], Awaitable[object]]
) -> None:
    with scope:
        await run()
