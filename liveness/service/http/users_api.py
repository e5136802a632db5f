"""Users over HTTP: everyone who is online, or why one user is or is not.

    GET /v1/users                a line of JSON for each user online
    GET /v1/users/{uid}?limit=   what memory and log have of one user, and one sentence

The last line of the list has no `uid` but the `seq` at which the whole is true, and from
which the feed goes on; without that line the list is not whole. It is one read of the
database, spooled to a file, and sent from there however slowly it is taken. A thousand
lines are made by one statement, while others have the interpreter.

For one user the log is searched backwards, by one thread a listener: requests at one
listener wait for each other, not for those at the other, and the engine waits for none. A
search ends after a while, found or not; `liveness history` searches the whole log.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final
from urllib.parse import unquote_to_bytes

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.core.records import Uid
from liveness.explanation import RECORDS, Known, answer
from liveness.metrics import Counts
from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.engine.engine import Engine
from liveness.service.http.api import ApiError, answering, number_in, query_of
from liveness.service.http.event_stream import StreamKind, Streams, StreamWriter
from liveness.service.links.unread_replies import Spool, SpoolFull, Spools, TooLarge
from liveness.service.storage.database import reading
from liveness.service.storage.log_reader import LogReader
from liveness.service.storage.log_store import LogStore
from liveness.service.storage.log_tail import LogTail
from liveness.service.storage.log_writer import LogWriter
from liveness.text import uid_of

PAGE: Final = b"/v1/users/"
# In an answer, of at most 1 KiB each; a hundred answers may be in memory.
MOST_RECORDS: Final = 100
# How long a look back takes, about, if it finds less than it might.
LOOK_S: Final = 2.0


class UsersApi:
    """The page.

    Args:
        engine: Knows who is online.
        log_writer: Has the log.
        wall_ms: Unix milliseconds, for what is told.
    """

    def __init__(
        self, engine: Engine, log_writer: LogWriter, *, wall_ms: Callable[[], int]
    ) -> None:
        self._engine = engine
        self._log_writer = log_writer
        self._logbook = LogReader(
            partial(reading, log_writer.store.path), clock=perf_counter
        )
        self._wall_ms = wall_ms

    def routes(self, *, may_change: bool) -> list[Route]:
        """The routes of a door, whichever it is."""
        page = answering(partial(self._user, trio.CapacityLimiter(1)))
        return [Route("/v1/users/{uid:path}", page, methods=["GET"])]

    async def _user(self, readers: trio.CapacityLimiter, request: Request) -> Response:
        uid = _uid_in(request)
        query = query_of(request, "limit")
        limit = number_in(query, "limit", RECORDS, MOST_RECORDS)
        standing = self._engine.standing(uid)
        session = None if standing is None else standing.session
        try:
            look, opening = await in_thread(
                partial(
                    self._logbook.newest_with_opening,
                    uid,
                    session,
                    limit=limit,
                    within_s=LOOK_S,
                ),
                limiter=readers,
            )
        except sqlite3.Error as error:
            told = f"the log cannot be read ({error}); mend the disk, and ask again"
            raise ApiError(503, told) from error
        # As it is now: it may have gone, or come back, as the log was read.
        standing = self._engine.standing(uid)
        if standing is not None and standing.session != session:
            opening = None
        known = Known(standing, look.records, opening, look.back_to, look.oldest)
        page = answer(uid, known, now_ms=self._wall_ms())
        if standing is not None and standing.session > self._log_writer.durable_seq:
            page["session"] = None  # a crash may yet give that number to another
        return JSONResponse(page)


def _uid_in(request: Request) -> Uid:
    """Whom the path names.

    Taken from the bytes that came: of those that are no UTF-8 the server's own reading
    makes the name of somebody else.
    """
    name = unquote_to_bytes(request.scope["raw_path"]).removeprefix(PAGE)
    try:
        return uid_of(name.decode())
    except UnicodeDecodeError:
        told = f"{name!r:.80} is no uid: it is not UTF-8; write each byte of its UTF-8 as %XX"
        raise ApiError(400, told) from None
    except ValueError as error:
        raise ApiError(400, str(error)) from None


class OnlineUsersApi:
    """The pages.

    Args:
        log_writer: Has the file.
        feed: Whose readers of the disk these are as well.
        streams: Where the answers have their places.
        spools: Where they are until they are read.
        counts: Where it is counted that there was no room.
    """

    def __init__(
        self,
        log_writer: LogWriter,
        feed: LogTail,
        streams: Streams,
        spools: Spools,
        counts: Counts,
    ) -> None:
        self._store: LogStore = log_writer.store
        self._feed = feed
        self._streams = streams
        self._spools = spools
        self._counts = counts
        # One is put together at a time: between two of them the WAL can begin anew.
        self._turn = trio.CapacityLimiter(1)

    def routes(self, *, may_change: bool) -> list[Route]:
        """The routes of a door, whichever it is."""
        return [Route("/v1/users", answering(self._answer))]

    async def _answer(self, request: Request) -> Response:
        query_of(request)
        media = "application/x-ndjson"
        return self._streams.response(StreamKind.USERS, self._send_users, media=media)

    async def _send_users(self, writer: StreamWriter) -> None:
        async with self._turn:
            spool = await self._spool()
        with spool:
            while piece := await spool.read():
                await writer.send(piece)

    async def _spool(self) -> Spool:
        """Everyone, as they are to be told, in a file that has no name."""
        wake = Notifier()
        while not self._spools.may_fill(wake):
            await wake.wait()
        try:
            return await self._spools.make(
                self._store.spool_users, limiter=self._feed.guests
            )
        except (SpoolFull, TooLarge) as error:
            self._counts.limits_met["limits.max_spool_bytes"] += 1
            raise ApiError(503, str(error)) from error
        except (sqlite3.Error, OSError) as error:
            told = f"those online cannot be read ({error}); mend the disk, and ask"
            raise ApiError(503, f"{told} again") from error
