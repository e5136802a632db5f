"""An operator's view of the storm guard, over HTTP: whom it holds, and their release.

    GET  /v1/guard           the storms that are on, the largest first
    POST /v1/guard/release   {"gateway": …}, or {} for those of all gateways

Nothing of it is on disk: a release is done once it is answered.
"""

from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.core.guard import Storm
from liveness.service.engine import Engine
from liveness.service.pages import NotDone, answering, body_of

# In one answer; `more` says how many others there are.
MOST_STORMS: Final = 1_000


class GuardPages:
    """The pages.

    Args:
        engine: Has the guard, and releases whom it holds.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self, *, may_change: bool) -> list[Route]:
        """The routes of a door; the one that changes something only if it may."""
        routes = [Route("/v1/guard", answering(self._list))]
        if may_change:
            release = answering(self._release)
            routes.append(Route("/v1/guard/release", release, methods=["POST"]))
        return routes

    async def _list(self, _: Request) -> Response:
        guard = self._engine.presence.guard
        storms = [] if guard is None else guard.storms(self._engine.attended)
        return JSONResponse({"enabled": guard is not None, **storms_shown(storms)})

    async def _release(self, request: Request) -> Response:
        asked = await body_of(request, "gateway", or_none=True)
        if self._engine.presence.guard is None:
            told = "the storm guard is off and holds nobody; to have it set "
            raise NotDone(409, told + "guard.enabled, and restart the sidecar")
        name = asked.get("gateway")
        released = self._engine.release(name)
        if name is not None and not released:
            told = f"no users of {name!r} are held by a storm; `liveness status` shows "
            raise NotDone(404, f"{told}whose are")
        return JSONResponse(storms_shown(released))


def storms_shown(storms: Sequence[Storm]) -> dict[str, Any]:
    """Storms as they are told, and how many more there are."""
    return {
        "storms": [
            {
                "gateway": storm.gateway,
                "users": storm.users,
                "left_s": round(storm.left, 3),
            }
            for storm in storms[:MOST_STORMS]
        ],
        "more": max(0, len(storms) - MOST_STORMS),
    }
