"""An operator's question about one user, over HTTP: is it online, and why?

    GET /v1/users/{uid}?limit=   what memory and log have of it, and one sentence

The log is looked through backwards, by one thread a door, so that those who ask at one
door wait for each other and for nobody at the other, and the engine for none. A look ends
after a while, found or not; `liveness history` looks through all there is.
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
from liveness.explain import RECORDS, Known, answer
from liveness.service.database import reading
from liveness.service.engine import Engine
from liveness.service.journal import Journal
from liveness.service.logbook import Logbook
from liveness.service.pages import NotDone, answering, number_in, query_of
from liveness.service.threads import in_thread
from liveness.text import uid_of

PAGE: Final = b"/v1/users/"
# In an answer, of at most 1 KiB each; a hundred answers may be in memory.
MOST_RECORDS: Final = 100
# How long a look back takes, about, if it finds less than it might.
LOOK_S: Final = 2.0


class UserPages:
    """The page.

    Args:
        engine: Knows who is online.
        journal: Has the log.
        wall_ms: Unix milliseconds, for what is told.
    """

    def __init__(
        self, engine: Engine, journal: Journal, *, wall_ms: Callable[[], int]
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._logbook = Logbook(
            partial(reading, journal.store.path), clock=perf_counter
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
            raise NotDone(503, told) from error
        # As it is now: it may have gone, or come back, as the log was read.
        standing = self._engine.standing(uid)
        if standing is not None and standing.session != session:
            opening = None
        known = Known(standing, look.records, opening, look.back_to, look.oldest)
        page = answer(uid, known, now_ms=self._wall_ms())
        if standing is not None and standing.session > self._journal.durable_seq:
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
        raise NotDone(400, told) from None
    except ValueError as error:
        raise NotDone(400, str(error)) from None
