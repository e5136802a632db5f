"""HTTP as one sidecar serves it: what each listener has, and whom it admits.

Every listener has the live page, metrics, health, the OpenAPI file, and the routes of the
`…_api` modules. The files of the live page, in the folder `page`, are read once, at the
start: an upgrade may replace them by those of another version.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from mimetypes import guess_type
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from liveness.config.settings import HttpSettings
from liveness.metrics.collector import Collector
from liveness.metrics.counts import Counts, HttpRefusal
from liveness.service.common.logs import LogThrottle
from liveness.service.common.turnstile import Turnstile
from liveness.service.engine.engine import Engine
from liveness.service.engine.engine_shell import REFUSALS_LOG_S
from liveness.service.http.api import ApiError, SharedPages
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
from liveness.service.http.summary import Summaries
from liveness.service.http.users_api import QUESTIONS, WHERE_BYTES
from liveness.service.links.acceptor import Acceptor
from liveness.service.links.credentials import peer_of

PAGE: Final = Path(__file__).with_name("page")

# Most unanswered requests at a listener: eight bodies of 3 MiB, and two pages, since one of
# a thousand timers in which every character is escaped takes 60 MiB.
AT_ONCE: Final = dict.fromkeys(QUESTIONS, 8) | dict.fromkeys(
    ("/v1/timers", "/v1/timers/newest", "/v1/webhooks/dead"), 2
)

Endpoint = Callable[[Request], Awaitable[Response]]
# Why the sidecar is unhealthy or not ready; nothing if it is.
Why = Callable[[], list[str]]

_log = structlog.get_logger("sidecar")


@dataclass(eq=False, slots=True)
class HttpServer:
    """Serves the same routes at the listeners `http` and `admin`, which has changes too.

    *routes* makes those of the `…_api` modules, for one listener.
    Requests over TCP need *token*, if there is one. A reload may replace its content, and
    the access that the registry of links has.
    """

    settings: HttpSettings
    routes: Callable[[], Sequence[Route]]
    token: Token | None
    engine: Engine
    summaries: Summaries
    counts: Counts
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
        log_throttled = LogThrottle(REFUSALS_LOG_S, clock=self.engine.clock.mono)

        def why_denied(connection: socket.socket) -> str | None:
            access = self.engine.parts.registry.access
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
        http = self.settings
        routes: list[BaseRoute] = [
            Route("/metrics", self._metrics()),
            Route("/healthz", _health("healthy", self.why_unhealthy)),
            Route("/readyz", _health("ready", self.why_not_ready)),
        ]
        for route in self.routes():
            reads = route.methods == {"GET", "HEAD"} or route.path in QUESTIONS
            if reads or door == "admin":
                routes.append(route)
        checks: list[Check] = []
        if door == "http":
            checks += [allow_hosts(http.names), read_only(QUESTIONS)]
            if self.token:
                checks.append(self.token.check)
        return Middleware(
            with_page(routes),
            checks,
            refused,
            max_body_bytes=http.max_body_bytes,
            larger_bodies=dict.fromkeys(QUESTIONS, WHERE_BYTES),
            at_once=AT_ONCE,
        )

    def _metrics(self) -> Endpoint:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Collector(self.summaries.now))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        # By content type, which `choose_encoder` takes from a few: clients add no more.
        encoders: dict[str, Callable[[CollectorRegistry], bytes]] = {}
        shared = SharedPages(lambda kind: encoders[kind](registry), self.turnstile)

        async def metrics(request: Request) -> Response:
            encoder, kind = choose_encoder(request.headers.get("accept", ""))
            encoders[kind] = encoder
            return Response(await shared.page(kind), headers={"content-type": kind})

        return metrics


def _health(name: str, why_not: Why) -> Endpoint:
    async def answer(_: Request) -> Response:
        why = why_not()
        return JSONResponse({name: not why, "why": why}, 503 if why else 200)

    return answer


def with_page(routes: Sequence[BaseRoute]) -> Starlette:
    """The application with these routes, and the files of the folder `page`."""
    files = {
        path.name: (path.read_bytes(), guess_type(path)[0])
        for path in PAGE.iterdir()
        if path.is_file() and not path.is_symlink()
    }

    async def index(_: Request) -> Response:
        return HTMLResponse(files["index.html"][0])

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return Response(found[0], media_type=found[1])

    async def openapi(_: Request) -> Response:
        return Response(files["openapi.json"][0], media_type="application/json")

    pages = Starlette(
        routes=[
            Route("/", index),
            Route("/page/{name}", file),
            Route("/v1/openapi.json", openapi),
            *routes,
        ],
        exception_handlers={HTTPException: _no_route, ApiError: _refuse},
    )
    # A redirect would be to the host that the client named.
    pages.router.redirect_slashes = False
    return pages


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.answer


async def _no_route(request: Request, error: Exception) -> Response:
    """Answer 404 if no route has the path, 405 if none of them has the method."""
    assert isinstance(error, HTTPException)
    message = f"there is no page {request.scope['path']!r:.80} here; docs/http-api.md "
    message += "lists all pages"
    if error.status_code == 405:
        message = f"{request.method:.20} is not for this page; docs/http-api.md has "
        message += "the method of each"
    return JSONResponse({"error": message}, error.status_code, error.headers)
