"""Users over HTTP: everyone who is online, or why one user is online or offline.

    GET  /v1/users                 a line of JSON for each user online
    GET  /v1/users/{uid}?limit=    one user: the session, the newest records, one sentence
    POST /v1/where                 {"uids": [...]}: the online ones, and their gateways
    POST /v1/cluster/where         {"uids": [...]}: the ones online on any host

The last line of the list has no `uid`. It has the `seq` at which the list is true, and from
which the feed continues; a list without it is incomplete. The list is one read of the
database, written to a temporary file and sent from there, however slowly the client reads.
SQLite formats a thousand lines a statement, in a thread, without the GIL.

For one user the log is searched backwards, in one thread for each listener: requests at one
listener wait for each other, not for those at the other, and the engine waits for none. A
search ends after `SEARCH_S`, found or not; `liveness history` searches the whole log.

The answers about all hosts are from Redis, which has this host's own users a moment later.
"""

import json
import re
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.cluster.connection import CallError
from liveness.cluster.questions import ClusterQuestions
from liveness.core.records import Uid, identity
from liveness.core.wire.uids import bad_uid_text, is_natural
from liveness.metrics.counts import Counts
from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.engine.engine import Engine
from liveness.service.http import api
from liveness.service.http.event_stream import USERS, Stream, Streams
from liveness.service.http.explanation import (
    DEVICES,
    RECORDS,
    Known,
    answer,
)
from liveness.service.storage import online_list
from liveness.service.storage.database import reading
from liveness.service.storage.log_reader import LogReader
from liveness.service.storage.online_list import Spool, SpoolFull, Spools
from liveness.text import json_line, json_ready, uid_of

_USERS: Final = "/v1/users/"
# Most records in an answer. One has at most 1 KiB; a hundred answers may be in memory.
MAX_RECORDS: Final = 100
# Roughly the longest time of a search that does not find enough records.
SEARCH_S: Final = 2.0
WHERE: Final = "/v1/where"
CLUSTER_WHERE: Final = "/v1/cluster/where"
# Asked by POST, for their long bodies; they change nothing.
QUESTIONS: Final = frozenset({WHERE, CLUSTER_WHERE})
# Most uids of a request, and sessions in its answer: a page of a large chat, not all users.
MOST_UIDS: Final = 10_000
# Room for that many uids of 255 bytes without escapes.
WHERE_BYTES: Final = 3 * 1024 * 1024
# Uids read, or rows written, between two turns of the event loop: about a millisecond.
UIDS_A_STEP: Final = 500
# A string in JSON, the last one perhaps without its end.
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


class UsersApi:
    """The routes of users. *questions* are asked of the cluster, if there is one."""

    def __init__(
        self,
        engine: Engine,
        streams: Streams,
        counts: Counts,
        spools: Spools,
        questions: ClusterQuestions | None,
    ) -> None:
        parts = engine.parts
        self._engine = engine
        self._presence = parts.presence
        self._log_writer = log_writer = engine.log_writer
        self._log_reader = LogReader(
            partial(reading, log_writer.store.path),
            separator=parts.presence.device_separator,
        )
        self._questions = questions
        self._streams = streams
        self._spools = spools
        self._counts = counts
        # One list is read at a time: between two of them SQLite can reset the WAL.
        self._turn = trio.CapacityLimiter(1)

    def routes(self) -> list[Route]:
        return [
            Route(
                f"{_USERS}{{uid:path}}", partial(self._user, trio.CapacityLimiter(1))
            ),
            Route(WHERE, self._where, methods=["POST"]),
            Route("/v1/users", self._list),
            Route(CLUSTER_WHERE, self._cluster_where, methods=["POST"]),
        ]

    async def _where(self, request: Request) -> Response:
        api.query_of(request)
        uids = await uids_of_body(request)
        # The answer has every decision up to here, and maybe some later ones.
        seq = self._log_writer.durable_seq
        lines = dict[str, None]()  # a request may name a user and one of its devices
        for start in range(0, len(uids), UIDS_A_STEP):
            await trio.lowlevel.checkpoint()
            durable = self._log_writer.durable_seq
            part = uids[start : start + UIDS_A_STEP]
            left = MOST_UIDS - len(lines)
            found = self._presence.where(part, limit=left + 1)
            if len(found) > left:
                message = f"these users have more than {MOST_UIDS} devices online"
                raise api.ApiError(413, f"{message}; ask for fewer in one request")
            for number, (uid, gateway, session, conn) in enumerate(found, 1):
                if number % UIDS_A_STEP == 0:  # one uid may have thousands of devices
                    await trio.lowlevel.checkpoint()
                row = {"uid": uid, "gateway": gateway, "session": session, "conn": conn}
                if session > durable:
                    row["session"] = None  # as in `_user`
                lines[json_line(json_ready(row))] = None
        users, log = ",".join(lines), self._log_writer.log
        return api.json_text(f'{{"users":[{users}],"log":"{log}","seq":{seq}}}')

    async def _user(self, readers: trio.CapacityLimiter, request: Request) -> Response:
        uid = uid_of_path(request)
        query = api.query_of(request, "limit")
        limit = api.number_in(query, "limit", RECORDS, MAX_RECORDS)
        search = partial(
            self._log_reader.newest_of, uid, limit=limit, within_s=SEARCH_S
        )
        try:
            found = await in_thread(search, limiter=readers)
        except sqlite3.Error as error:
            message = (
                f"the log cannot be read ({error}); repair the disk, and ask again"
            )
            raise api.ApiError(503, message) from error
        status_of, user = self._engine.status_of, self._presence.user_of(uid)
        devices = [] if user is None else self._presence.wheel.devices_of(user, DEVICES)
        known = Known(
            uid,
            status_of(uid),
            found.records,
            found.back_to,
            found.oldest,
            user,
            {device: status for device in devices if (status := status_of(device))},
        )
        page = answer(known, now_ms=self._engine.clock.wall_ms())
        for shown in (page, *page.get("devices", ())):
            if (shown["session"] or 0) > self._log_writer.durable_seq:
                shown["session"] = None  # after a crash another record may get this seq
        return JSONResponse(page)

    async def _list(self, request: Request) -> Response:
        api.query_of(request)
        media = "application/x-ndjson"
        return Stream(self._streams, USERS, self._send_users, media)

    async def _send_users(self, stream: Stream) -> None:
        async with self._turn:
            spool = await self._spool()
        with spool:
            while piece := await spool.read():
                await stream.send(piece)

    async def _spool(self) -> Spool:
        """The whole list, in a temporary file without a name."""
        wake = Notifier()
        while not self._spools.may_fill(wake):
            await wake.wait()
        try:
            return await self._spools.make(
                partial(online_list.write_lines, self._log_writer.store),
                limiter=self._engine.feed.guests,
            )
        except SpoolFull as error:
            self._counts.limits_met["limits.max_spool_bytes"] += 1
            raise api.ApiError(503, str(error)) from error
        except (sqlite3.Error, OSError) as error:
            message = f"the users online cannot be read ({error}); "
            raise api.ApiError(
                503, f"{message}repair the disk, and ask again"
            ) from error

    async def _cluster_where(self, request: Request) -> Response:
        if self._questions is None:
            message = "there is no cluster: this sidecar has neither cluster.url nor "
            raise api.ApiError(404, f"{message}cluster.nodes; ask /v1/users")
        api.query_of(request)
        uids = await uids_of_body(request)
        try:
            places = await self._questions.places(uids, limit=MOST_UIDS + 1)
        except CallError as error:
            message = f"{error}; /v1/users has the users of this host"
            raise api.ApiError(503, message) from error
        if len(places) > MOST_UIDS:
            message = f"these users have more than {MOST_UIDS} sessions"
            raise api.ApiError(413, f"{message}; ask for fewer in one request")
        lines = list[str]()
        for number, place in enumerate(places, 1):
            if number % UIDS_A_STEP == 0:
                await trio.lowlevel.checkpoint()
            row = {
                "uid": place.uid,
                "host": place.host,
                "gateway": place.gateway,
                "session": place.session,
                "since": place.since or None,
            }
            lines.append(json_line(json_ready(row)))
        return api.json_text(f'{{"users":[{",".join(lines)}]}}')


async def uids_of_body(request: Request) -> list[Uid]:
    """The uids in the body, each user once.

    Raises:
        ApiError: It has no such array, or an item is no uid.
    """
    raw = await request.body()
    # Before it is parsed: millions of small values would take a tenth of a second.
    count = _STRING.sub(b"", raw, count=MOST_UIDS + 1).count(b",")
    body: Any = None
    given: Any = None
    if count <= MOST_UIDS:
        with suppress(ValueError, RecursionError):
            # Long numbers are cut: converting them takes quadratic time.
            body = json.loads(raw.decode(), parse_int=lambda digits: int(digits[:20]))
        given = body.get("uids") if isinstance(body, dict) and len(body) == 1 else None
        if not isinstance(given, list):
            message = 'the body must be JSON with exactly this key: {"uids": [...]}, '
            raise api.ApiError(400, f"{message}an array of strings and integers")
        count = len(given)
    if count > MOST_UIDS:
        message = f"the body has more than {MOST_UIDS} uids; ask in several requests"
        raise api.ApiError(413, message)
    uids = dict[str, Uid]()
    for start in range(0, len(given), UIDS_A_STEP):
        await trio.lowlevel.checkpoint()
        part = given[start : start + UIDS_A_STEP]
        uids.update((identity(uid), uid) for uid in _checked_uids(part, start))
    return [*uids.values()]


def _checked_uids(given: Iterable[Any], start: int) -> Iterable[Uid]:
    for index, uid in enumerate(given, start):
        try:
            if not isinstance(uid, str) and not is_natural(uid):
                raise ValueError(bad_uid_text(uid))
            yield uid_of(uid) if isinstance(uid, str) else uid
        except ValueError as error:
            raise api.ApiError(400, f"uids[{index}]: {error}") from None


def uid_of_path(request: Request) -> Uid:
    """The uid in the path, behind `_USERS`.

    It is parsed from the raw bytes: Starlette replaces invalid UTF-8, which could yield the
    name of another user.
    """
    name = unquote_to_bytes(request.scope["raw_path"]).removeprefix(_USERS.encode())
    try:
        return api.uid_in(name.decode())
    except UnicodeDecodeError:
        message = f"{name!r:.80} is no uid: it is not UTF-8; "
        message += "write each byte of its UTF-8 as %XX"
        raise api.ApiError(400, message) from None
