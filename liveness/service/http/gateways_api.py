"""Gateways and watchers over HTTP, for operators.

    GET  /v1/gateways          names of one role, sorted, a page at a time
    POST /v1/gateways/forget   {"role": …, "name": …}

A name and its cursor are kept while there are records for it to read, so that a gateway
that comes back misses nothing. Forgetting a name deletes its cursor: its next link begins
with new records.
"""

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.core.records import GATEWAY
from liveness.service.engine.engine import Engine
from liveness.service.http import api


class GatewaysApi:
    """The routes of gateways and watchers."""

    def __init__(self, engine: Engine) -> None:
        parts = engine.parts
        self._engine = engine
        self._gateways, self._registry = parts.gateways, parts.registry
        self._log_writer = engine.log_writer

    def routes(self) -> list[Route]:
        return [
            Route("/v1/gateways", self._list),
            Route("/v1/gateways/forget", self._forget, methods=["POST"]),
        ]

    async def _list(self, request: Request) -> Response:
        query = api.query_of(request, "role", "after", "limit")
        limit = api.number_in(query, "limit", api.DEFAULT_LIMIT, api.MAX_LIMIT)
        role, after = query.get("role", GATEWAY), query.get("after", "")
        names = sorted(name for name in self._known(role) if name > after)
        page = names[:limit]
        next_after = page[-1] if len(names) > limit else None
        gateways = [self._describe(role, name) for name in page]
        return JSONResponse({"gateways": gateways, "next": next_after})

    async def _forget(self, request: Request) -> Response:
        body = await api.body_of(request, "role", "name")
        role, name = body["role"], body["name"]
        subject = f"the {role} {name!r}"
        if name not in {*self._known(role)}:
            message = f"no {role} {name!r} is known: "
            raise api.ApiError(
                404, message + "`liveness gateways list` shows those that are"
            )
        reason = self._registry.why_in_use(role, name)
        if reason is not None:
            raise api.ApiError(409, f"{subject} {reason}")
        forgotten = self._describe(role, name)
        self._engine.forget(role, name)
        await api.written(
            self._log_writer, f"{subject} will be forgotten once the disk writes"
        )
        return JSONResponse(forgotten)

    def _known(self, role: str) -> Iterator[str]:
        """Names that have a cursor, and linked names without one."""
        cursors = self._log_writer.cursors
        yield from (name for known, name in cursors if known == role)
        for known, name in self._registry.named:
            if known == role and (known, name) not in cursors:
                yield name

    def _describe(self, role: str, name: str) -> dict[str, Any]:
        """A name's data as JSON, without keys that do not apply."""
        cursor = self._log_writer.cursors.get((role, name))
        link = self._registry.named.get((role, name))
        described: dict[str, Any] = {
            "name": name,
            "role": role,
            "linked": link is not None,
        }
        if cursor is not None:
            used = cursor.used_ms + self._engine.clock.wall_ahead_ms()
            described |= {"seq": cursor.seq, "used": used}
        if link is not None:
            described |= {"pid": link.peer.pid, "unix_user": link.peer.unix_user}
            described["unacked"] = link.outbox.unacked
        if role == GATEWAY:
            gateway = self._gateways.by_name.get(name)
            described["users"] = 0 if gateway is None else gateway.users
            if gateway is not None and gateway.timeout is not None:
                described["timeout"] = gateway.timeout
            if gateway is not None and gateway.ping is not None:
                described |= {"ping": gateway.ping, "mutes": gateway.mutes}
        return described
