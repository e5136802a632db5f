"""Everyone who is online, over HTTP: a line of JSON each.

    GET /v1/users   {"uid": …, "gateway": …, "session": …, "conn": …, "since": …}

The last line has no `uid` but the `seq` at which the whole is true, from where the feed
goes on; without that line it is not whole. It is one read of the database, spooled to a
file, and told from there however slowly it is taken. A thousand lines are made by one
statement, while others have the interpreter.
"""

import sqlite3
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryFile
from typing import BinaryIO, Final

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from liveness.service.feed import Feed
from liveness.service.journal import Journal
from liveness.service.pages import NotDone, answering, query_of
from liveness.service.store import Store
from liveness.service.streams import Kind, Listener, Streams

PIECE_BYTES: Final = 262_144


class OnlinePages:
    """The pages.

    Args:
        journal: Has the file.
        feed: Whose readers of the disk these are as well.
        streams: Where the answers have their places.
        lists: So many lists are put together at a time.
    """

    def __init__(
        self,
        journal: Journal,
        feed: Feed,
        streams: Streams,
        lists: trio.CapacityLimiter,
    ) -> None:
        self._store: Store = journal.store
        self._feed = feed
        self._streams = streams
        self._lists = lists

    def routes(self, *, may_change: bool) -> list[Route]:
        """The routes of a door, whichever it is."""
        return [Route("/v1/users", answering(self._answer))]

    async def _answer(self, request: Request) -> Response:
        query_of(request)
        media = "application/x-ndjson"
        if request.method == "HEAD":
            return self._streams.answer(Kind.USERS, _nothing, media=media)
        with ExitStack() as stack:
            spool = stack.enter_context(await self._spool())
            answer = self._streams.answer(
                Kind.USERS, partial(_tell, spool), media=media
            )
            stack.pop_all()  # it is the answer's now
            return answer

    async def _spool(self) -> BinaryIO:
        """Everyone, as they are to be told, in a file that has no name."""
        with ExitStack() as stack:
            try:
                spool = stack.enter_context(TemporaryFile(dir=self._store.folder))
                async with self._lists:
                    await trio.to_thread.run_sync(
                        self._store.spool_users, spool, limiter=self._feed.disk
                    )
                spool.seek(0)
            except (sqlite3.Error, OSError) as error:
                told = f"those online cannot be read ({error}); mend the disk, and ask"
                raise NotDone(503, f"{told} again") from error
            stack.pop_all()
            return spool


async def _tell(spool: BinaryIO, listener: Listener) -> None:
    with spool:
        while piece := await trio.to_thread.run_sync(spool.read, PIECE_BYTES):
            await listener.tell(piece)


async def _nothing(_: Listener) -> None:
    """What is told to HEAD."""
