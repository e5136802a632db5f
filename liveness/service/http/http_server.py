"""HTTP as one sidecar serves it: what each listener has, and whom it admits."""

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from liveness.config.settings import HttpSettings
from liveness.core.links.link_registry import LinkRegistry
from liveness.metrics.collector import Collector
from liveness.metrics.counts import Counts, HttpRefusal
from liveness.service.common.clock import Clock
from liveness.service.common.logs import LogThrottle
from liveness.service.common.turnstile import Turnstile
from liveness.service.engine.engine_shell import REFUSALS_LOG_S
from liveness.service.http.api import Api
from liveness.service.http.bearer import Token
from liveness.service.http.listener import HttpListener
from liveness.service.http.middleware import (
    Check,
    Middleware,
    Refused,
    allow_hosts,
    only_health,
    read_only,
)
from liveness.service.http.routes import Why, build_pages
from liveness.service.http.summary import Summaries
from liveness.service.http.users_api import CLUSTER_WHERE, WHERE, WHERE_BYTES
from liveness.service.links.acceptor import Acceptor
from liveness.service.links.credentials import peer_of

_log = structlog.get_logger("sidecar")


@dataclass(eq=False, slots=True)
class HttpServer:
    """Serves the same routes at the listeners `http` and `admin`, which has changes too.

    Requests over TCP need *token*, if there is one. A reload may replace its content, and
    the access that *registry* has.
    """

    settings: HttpSettings
    apis: Sequence[Api]
    token: Token | None
    registry: LinkRegistry
    summaries: Summaries
    counts: Counts
    clock: Clock
    turnstile: Turnstile
    why_unhealthy: Why
    why_not_ready: Why

    async def serve(
        self, door: str, sock: socket.socket, stopped: Callable[[], Awaitable[None]]
    ) -> None:
        """Serve the listener of this name until *stopped* returns, and a moment longer."""

        def refused(why: HttpRefusal) -> None:
            self.counts.http_refused[door, why] += 1

        http = self.settings
        app = self.app(door, refused)
        checks = [only_health(http.max_connections)]
        health = Middleware(app, checks, refused, max_body_bytes=http.max_body_bytes)
        log_throttled = LogThrottle(REFUSALS_LOG_S, clock=self.clock.mono)

        def why_denied(connection: socket.socket) -> str | None:
            access = self.registry.access
            if door != "admin" or access.admin.admits(peer := peer_of(connection)):
                return None
            why = access.why_no_admin(peer)
            log_throttled(
                _log.warning,
                "admin refused",
                key=peer.unix_user,
                pid=peer.pid,
                unix_user=peer.unix_user,
                detail=why,
            )
            return why

        listener = HttpListener(app, health, http, refused, self.turnstile, why_denied)
        acceptor = Acceptor(sock, door, self.counts.accepts_put_off)
        await listener.run(acceptor, stopped)

    def app(self, door: str, refused: Refused) -> Middleware:
        """The application of an HTTP listener, behind its checks."""
        metrics = CollectorRegistry(auto_describe=False)
        metrics.register(Collector(self.summaries.now))
        ProcessCollector(registry=metrics)
        PlatformCollector(registry=metrics)
        may_change = door == "admin"
        routes = [
            route for api in self.apis for route in api.routes(may_change=may_change)
        ]
        checks: list[Check] = []
        http = self.settings
        if door == "http":
            checks += [allow_hosts(http.names), read_only({WHERE, CLUSTER_WHERE})]
            if self.token:
                checks.append(self.token.check)
        pages = build_pages(
            metrics,
            routes,
            why_unhealthy=self.why_unhealthy,
            why_not_ready=self.why_not_ready,
            turnstile=self.turnstile,
        )
        return Middleware(
            pages,
            checks,
            refused,
            max_body_bytes=http.max_body_bytes,
            larger_bodies={WHERE: WHERE_BYTES, CLUSTER_WHERE: WHERE_BYTES},
        )
