"""The HTTP doors: metrics, health, timers and the guard, on TCP and on `admin.sock`.

What is shown of the sidecar itself does not grow with the number of users. The TCP door
shows and changes nothing. It answers only to an address, or to a `Host` that is its own,
so that no web page can reach it by rebinding a name, and where there is a token only to
who has it. On `admin.sock`, which is for owner and group, an operator can also cancel and
retry timers, and release users whom the guard holds.

Of files only those in the folder `page` are served, which is in the package, as they were
at the start: after an upgrade there are another version's.
"""

from collections.abc import Awaitable, Callable, Sequence
from mimetypes import guess_type
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from liveness.service.http.pacing import SharedPages, Turnstile
from liveness.service.http.sign_in import PAGE, SIGN_OUT

# The place in the page for what only who signed in can do.
_SIGN_OUT: Final = "<!-- sign out -->"
_SIGN_OUT_FORM: Final = (
    f'<form method="post" action="{SIGN_OUT}"><button>Sign out</button></form>'
)

Why = Callable[[], list[str]]


def build_pages(
    registry: CollectorRegistry,
    routes: Sequence[BaseRoute],
    *,
    why_ill: Why,
    why_not_ready: Why,
    has_sign_out: bool,
    turnstile: Turnstile,
) -> Starlette:
    """Build the pages behind a door.

    Args:
        registry: What `/metrics` shows.
        routes: The pages that this door has besides.
        why_ill: What is wrong with the process; empty if it lives.
        why_not_ready: Why it should not be given work; empty if it is ready.
        has_sign_out: Whether one signs in at this door.
        turnstile: Whoever waited for the metrics goes through it.
    """
    files = {
        path.name: (path.read_bytes(), guess_type(path)[0])
        for path in PAGE.iterdir()
        if path.is_file() and not path.is_symlink()
    }
    front = files["index.html"][0].decode()
    front = front.replace(_SIGN_OUT, _SIGN_OUT_FORM if has_sign_out else "")

    async def index(_: Request) -> Response:
        return HTMLResponse(front)

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        content, kind = found
        return Response(content, media_type=kind)

    async def openapi(_: Request) -> Response:
        return Response(files["openapi.json"][0], media_type="application/json")

    # By what is accepted there are several formats, and few.
    encoders: dict[str, Callable[[CollectorRegistry], bytes]] = {}
    shared = SharedPages[str](lambda kind: encoders[kind](registry), turnstile)

    async def metrics(request: Request) -> Response:
        encoder, kind = choose_encoder(request.headers.get("accept", ""))
        encoders[kind] = encoder
        return Response(await shared.page(kind), headers={"content-type": kind})

    pages = Starlette(
        routes=[
            Route("/", index),
            Route("/metrics", metrics),
            Route("/healthz", _health("healthy", why_ill)),
            Route("/readyz", _health("ready", why_not_ready)),
            Route("/page/{name}", file),
            Route("/v1/openapi.json", openapi),
            *routes,
        ],
        exception_handlers={HTTPException: _refused},
    )
    # By what a client says of the path, it would be sent elsewhere.
    pages.router.redirect_slashes = False
    return pages


def _health(name: str, why_not: Why) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        why = why_not()
        return JSONResponse({name: not why, "why": why}, 503 if why else 200)

    return answer


async def _refused(request: Request, error: Exception) -> Response:
    """What the router has no page for."""
    assert isinstance(error, HTTPException)
    told = f"there is no page {request.scope['path']!r:.80} here; docs/http-api.md "
    told += "lists those that there are"
    if error.status_code == 405:
        told = f"{request.method:.20} is not for this page; it has its own"
    return JSONResponse({"error": told}, error.status_code, error.headers)
