"""The users of all hosts over HTTP, by the data on Redis.

    GET  /v1/cluster/users/{uid}   one user: on which hosts it is online
    POST /v1/cluster/where         {"uids": [...]}: the ones online on any host
    GET  /v1/cluster/hosts         the hosts, and when each was last heard

Redis has this host's own users a moment later; `users_api` has them at once.
"""

from collections.abc import Awaitable, Iterable
from typing import Any, Final, TypeVar

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.cluster.format import Place
from liveness.cluster.questions import ClusterQuestions, Unanswered
from liveness.core.records import Uid
from liveness.service.http.api import ApiError, json_text, query_of, route
from liveness.service.http.users_api import (
    CLUSTER_WHERE,
    MOST_UIDS,
    UIDS_A_STEP,
    uid_of_path,
    uids_of_body,
)
from liveness.text import json_line, json_ready

_USERS: Final = "/v1/cluster/users/"

T = TypeVar("T")


class ClusterApi:
    """The routes."""

    def __init__(self, questions: ClusterQuestions | None) -> None:
        self._questions = questions

    def routes(self, *, may_change: bool) -> list[Route]:
        return [
            route(f"{_USERS}{{uid:path}}", self._user),
            route(CLUSTER_WHERE, self._where, "POST"),
            route("/v1/cluster/hosts", self._hosts),
        ]

    @property
    def _cluster(self) -> ClusterQuestions:
        if self._questions is None:
            message = "there is no cluster: this sidecar has neither cluster.url nor "
            raise ApiError(404, f"{message}cluster.nodes; ask /v1/users")
        return self._questions

    async def _user(self, request: Request) -> Response:
        cluster = self._cluster
        uid = uid_of_path(request, _USERS)
        query_of(request)
        places = await self._places(cluster, [uid])
        shown = [_shown(place) for place in places]
        page = json_ready({"uid": uid}) | {"online": bool(places), "hosts": shown}
        return JSONResponse(page)

    async def _where(self, request: Request) -> Response:
        cluster = self._cluster
        query_of(request)
        uids = await uids_of_body(request)
        lines = list[str]()
        for number, place in enumerate(await self._places(cluster, uids), 1):
            if number % UIDS_A_STEP == 0:
                await trio.lowlevel.checkpoint()
            lines.append(json_line(json_ready({"uid": place.uid}) | _session(place)))
        return json_text(f'{{"users":[{",".join(lines)}]}}')

    async def _hosts(self, request: Request) -> Response:
        cluster = self._cluster
        query_of(request)
        rows = await _answered(cluster.hosts())
        shown = [row._asdict() | {"state": row.state.name.lower()} for row in rows]
        return JSONResponse({"hosts": shown})

    @staticmethod
    async def _places(cluster: ClusterQuestions, uids: Iterable[Uid]) -> list[Place]:
        places = await _answered(cluster.places(uids, limit=MOST_UIDS + 1))
        if len(places) > MOST_UIDS:
            message = f"these users have more than {MOST_UIDS} sessions"
            raise ApiError(413, f"{message}; ask for fewer in one request")
        return places


async def _answered(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except Unanswered as error:
        message = f"{error}; /v1/users has the users of this host"
        raise ApiError(503, message) from error


def _session(place: Place) -> dict[str, Any]:
    return {
        "host": place.host,
        "gateway": place.gateway,
        "session": place.session,
        "since": place.since or None,
    }


def _shown(place: Place) -> dict[str, Any]:
    """A session of the requested user; its uid only if it is a device."""
    device = {"device": place.uid} if place.device else {}
    return _session(place) | device
