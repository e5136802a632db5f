"""The HTTP doors: metrics, health and timers, on TCP and on `admin.sock`.

What is shown of the sidecar itself does not grow with the number of users. The TCP door
shows and changes nothing, and answers only to a `Host` that is its own address, so that
no web page can reach it by rebinding a name. On `admin.sock`, which is for owner and
group, an operator can also cancel and retry timers.
"""

from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

Why = Callable[[], list[str]]


def build_app(
    registry: CollectorRegistry,
    pages: Sequence[Route],
    *,
    why_ill: Why,
    why_not_ready: Why,
) -> ASGIApp:
    """Build the application behind a door.

    Args:
        registry: What `/metrics` shows.
        pages: The questions that this door answers.
        why_ill: What is wrong with the process; empty if it lives.
        why_not_ready: Why it should not be given work; empty if it is ready.
    """

    async def metrics(request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(registry), headers={"content-type": content_type})

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/healthz", _health("healthy", why_ill)),
            Route("/readyz", _health("ready", why_not_ready)),
            *pages,
        ]
    )


def _health(name: str, why_not: Why) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        why = why_not()
        return JSONResponse({name: not why, "why": why}, 503 if why else 200)

    return answer
