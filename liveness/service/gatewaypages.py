"""An operator's view of those who have connected, over HTTP: listed, and forgotten.

    GET  /v1/gateways          names of a role, in order, a page at a time
    POST /v1/gateways/forget   {"role": …, "name": …}

A name is kept with its place in the log for as long as there is something for it to read,
so that whoever comes back under it misses nothing. Forgetting gives the place up: by that name, whoever
says hello next begins with what is decided from then on.
"""

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.core.records import GATEWAY
from liveness.service.engine import Engine
from liveness.service.journal import Journal
from liveness.service.pages import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    NotDone,
    answering,
    body_of,
    number_in,
    query_of,
    written,
)


class GatewayPages:
    """The pages.

    Args:
        engine: Knows who is there, and forgets.
        journal: Knows who was.
    """

    def __init__(self, engine: Engine, journal: Journal) -> None:
        self._engine = engine
        self._journal = journal

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
            raise NotDone(404, told)
        why = self._engine.why_kept(role, name)
        if why is not None:
            raise NotDone(409, f"{named} {why}")
        shown = self._shown(role, name)
        self._engine.forget(role, name)
        await written(
            self._journal, f"{named} will be forgotten once it can be written"
        )
        return JSONResponse(shown)

    def _known(self, role: str) -> Iterator[str]:
        """Names that have a place in the log, and those that are linked without one."""
        cursors = self._journal.cursors
        yield from (name for known, name in cursors if known == role)
        for known, name in self._engine.book.named:
            if known == role and (known, name) not in cursors:
                yield name

    def _shown(self, role: str, name: str) -> dict[str, Any]:
        """What is known of a name; what it has not is left out."""
        cursor = self._journal.cursors.get((role, name))
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
