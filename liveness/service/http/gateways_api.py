"""An operator's view of gateways over HTTP: listed, forgotten, and their held users released.

    GET  /v1/gateways          names of a role, in order, a page at a time
    POST /v1/gateways/forget   {"role": …, "name": …}
    GET  /v1/guard             the storms that are on, the largest first
    POST /v1/guard/release     {"gateway": …}, or {} for those of all gateways

A name is kept with its place in the log for as long as there is something for it to read,
so that a gateway that comes back under it misses nothing. Forgetting gives the place up:
the next hello under that name begins with what is decided from then on.

Nothing of a storm is on disk: a release is done once it is answered.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.core.records import GATEWAY
from liveness.core.storm_guard import Storm
from liveness.service.engine.engine import Engine
from liveness.service.http.api import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    ApiError,
    answering,
    body_of,
    number_in,
    query_of,
    written,
)
from liveness.service.storage.log_writer import LogWriter

# In one answer; `more` says how many others there are.
MOST_STORMS: Final = 1_000


class GatewaysApi:
    """The pages.

    Args:
        engine: Knows who is there, and forgets.
        log_writer: Knows who was.
    """

    def __init__(self, engine: Engine, log_writer: LogWriter) -> None:
        self._engine = engine
        self._log_writer = log_writer

    def routes(self, *, may_change: bool) -> list[Route]:
        """The routes of a door; those that change something only if it may."""
        routes = [Route("/v1/gateways", answering(self._list))]
        if may_change:
            forget = answering(self._forget)
            routes.append(Route("/v1/gateways/forget", forget, methods=["POST"]))
        return routes

    async def _list(self, request: Request) -> Response:
        query = query_of(request, "role", "after", "limit")
        limit = number_in(query, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        role, after = query.get("role", GATEWAY), query.get("after", "")
        names = sorted(name for name in self._known(role) if name > after)
        page = names[:limit]
        following = page[-1] if len(names) > limit else None
        shown = [self._shown(role, name) for name in page]
        return JSONResponse({"gateways": shown, "next": following})

    async def _forget(self, request: Request) -> Response:
        asked = await body_of(request, "role", "name")
        role, name = asked["role"], asked["name"]
        named = f"the {role} {name!r}"
        if name not in {*self._known(role)}:
            told = f"no {role} {name!r} is known: `liveness gateways list` shows those that are"
            raise ApiError(404, told)
        why = self._engine.why_kept(role, name)
        if why is not None:
            raise ApiError(409, f"{named} {why}")
        shown = self._shown(role, name)
        self._engine.forget(role, name)
        await written(
            self._log_writer, f"{named} will be forgotten once it can be written"
        )
        return JSONResponse(shown)

    def _known(self, role: str) -> Iterator[str]:
        """Names that have a place in the log, and those that are linked without one."""
        cursors = self._log_writer.cursors
        yield from (name for known, name in cursors if known == role)
        for known, name in self._engine.book.named:
            if known == role and (known, name) not in cursors:
                yield name

    def _shown(self, role: str, name: str) -> dict[str, Any]:
        """What is known of a name; what it has not is left out."""
        cursor = self._log_writer.cursors.get((role, name))
        link = self._engine.book.named.get((role, name))
        shown: dict[str, Any] = {"name": name, "role": role, "linked": link is not None}
        if cursor is not None:
            shown |= {"seq": cursor.seq, "used": cursor.used_ms}
        if link is not None:
            shown |= {"pid": link.peer.pid, "uid": link.peer.uid}
            shown["unacked"] = link.outbox.unacked
        if role == GATEWAY:
            gateway = self._engine.presence.gateways.get(name)
            shown["users"] = 0 if gateway is None else gateway.users
            if gateway is not None and gateway.timeout is not None:
                shown["timeout"] = gateway.timeout
            if gateway is not None and gateway.ping is not None:
                shown |= {"ping": gateway.ping, "mutes": gateway.mutes}
        return shown


class GuardApi:
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
            raise ApiError(409, told + "guard.enabled, and restart the sidecar")
        name = asked.get("gateway")
        released = self._engine.release(name)
        if name is not None and not released:
            told = f"no users of {name!r} are held by a storm; `liveness status` shows "
            raise ApiError(404, f"{told}whose are")
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
