"""Everyone who is online, over HTTP: a line of JSON each.

    GET /v1/users   {"uid": …, "gateway": …, "session": …, "conn": …, "since": …}

The last line has no `uid` but the `seq` at which the whole is true, from where the feed
goes on; without that line it is not whole. It is one read of the database, spooled to a
file, and told from there however slowly it is taken. A thousand lines are made by one
statement, while others have the interpreter.
"""

import sqlite3

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from liveness.metrics import Counts
from liveness.service.feed import Feed
from liveness.service.journal import Journal
from liveness.service.pages import NotDone, answering, query_of
from liveness.service.store import Store
from liveness.service.streams import Kind, Listener, Streams
from liveness.service.unread import NoRoom, Spool, Spools, TooLarge
from liveness.service.wake import Wake


class OnlinePages:
    """The pages.

    Args:
        journal: Has the file.
        feed: Whose readers of the disk these are as well.
        streams: Where the answers have their places.
        spools: Where they are until they are read.
        counts: Where it is counted that there was no room.
    """

    def __init__(
        self,
        journal: Journal,
        feed: Feed,
        streams: Streams,
        spools: Spools,
        counts: Counts,
    ) -> None:
        self._store: Store = journal.store
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
        return self._streams.answer(Kind.USERS, self._tell, media=media)

    async def _tell(self, listener: Listener) -> None:
        async with self._turn:
            spool = await self._spool()
        with spool:
            while piece := await spool.read():
                await listener.tell(piece)

    async def _spool(self) -> Spool:
        """Everyone, as they are to be told, in a file that has no name."""
        wake = Wake()
        while not self._spools.may_fill(wake):
            await wake.wait()
        try:
            return await self._spools.make(
                self._store.spool_users, limiter=self._feed.guests
            )
        except (NoRoom, TooLarge) as error:
            self._counts.limits_met["limits.max_spool_bytes"] += 1
            raise NotDone(503, str(error)) from error
        except (sqlite3.Error, OSError) as error:
            told = f"those online cannot be read ({error}); mend the disk, and ask"
            raise NotDone(503, f"{told} again") from error
