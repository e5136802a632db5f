"""The pages that every listener has: the live page, metrics, health and the OpenAPI file.

The other routes are passed in: `HttpServer` chooses them for each listener, and its
checks.

The files of the live page, in the folder `page`, are read once, at the start: an upgrade
may replace them by those of another version.
"""

from collections.abc import Callable, Sequence
from mimetypes import guess_type
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from liveness.service.common.turnstile import Turnstile
from liveness.service.http.api import Endpoint
from liveness.service.http.pacing import SharedPages

PAGE: Final = Path(__file__).with_name("page")

Why = Callable[[], list[str]]


def build_pages(
    registry: CollectorRegistry,
    routes: Sequence[BaseRoute],
    *,
    why_unhealthy: Why,
    why_not_ready: Why,
    turnstile: Turnstile,
) -> Starlette:
    """Build the application of a listener.

    The two functions return why the sidecar is unhealthy or not ready; nothing if it
    is. A request that has waited for the metrics passes the turnstile.
    """
    pages = Starlette(
        routes=[
            *_page_routes(),
            Route("/metrics", _metrics(registry, turnstile)),
            Route("/healthz", _health("healthy", why_unhealthy)),
            Route("/readyz", _health("ready", why_not_ready)),
            *routes,
        ],
        exception_handlers={HTTPException: _no_route},
    )
    # A redirect would be to the host that the client named.
    pages.router.redirect_slashes = False
    return pages


def _page_routes() -> list[Route]:
    """The files of the folder `page`."""
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
        content, kind = found
        return Response(content, media_type=kind)

    async def openapi(_: Request) -> Response:
        return Response(files["openapi.json"][0], media_type="application/json")

    return [
        Route("/", index),
        Route("/page/{name}", file),
        Route("/v1/openapi.json", openapi),
    ]


def _metrics(registry: CollectorRegistry, turnstile: Turnstile) -> Endpoint:
    # By content type, which `choose_encoder` takes from a few: clients cannot add more.
    encoders: dict[str, Callable[[CollectorRegistry], bytes]] = {}
    shared = SharedPages[str](lambda kind: encoders[kind](registry), turnstile)

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


async def _no_route(request: Request, error: Exception) -> Response:
    """Answer 404 if no route has the path, 405 if none of them has the method."""
    assert isinstance(error, HTTPException)
    message = f"there is no page {request.scope['path']!r:.80} here; docs/http-api.md "
    message += "lists all pages"
    if error.status_code == 405:
        message = f"{request.method:.20} is not for this page; docs/http-api.md has "
        message += "the method of each"
    return JSONResponse({"error": message}, error.status_code, error.headers)
