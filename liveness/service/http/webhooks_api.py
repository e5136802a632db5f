"""Webhooks over HTTP, for operators: how they are, a test, and their dead letters.

    GET  /v1/webhooks             each webhook: settings without secrets, and how it is
    GET  /v1/webhooks/dead        dead letters, newest first, a page at a time
    POST /v1/webhooks/test        {"webhook": …}: sends a test event
    POST /v1/webhooks/retry       {"id": …}: sends a dead letter again
    POST /v1/webhooks/retry-all   {"webhook": …}: all of a webhook, the oldest first
    POST /v1/webhooks/drop        {"id": …}: deletes a dead letter for good
    POST /v1/webhooks/drop-all    {"webhook": …}: all of a webhook

The client waits for the request to the receiver, for the webhook's `timeout_s` at most. A
failing receiver is no error here: the answer says `"accepted": false`, and why.
"""

import json
import sqlite3
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.core.records import KINDS
from liveness.core.wire.uids import MAX_INTEGER
from liveness.errors import LivenessError
from liveness.service.http.api import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    ApiError,
    BoundedPage,
    answering,
    body_of,
    json_text,
    number_in,
    query_of,
)
from liveness.service.outlets.webhooks.answers import DeadLetter, SendResult, Unfinished

if TYPE_CHECKING:
    from liveness.service.outlets.webhooks.dead_letters import DeadLetters
    from liveness.service.outlets.webhooks.webhook_outlet import WebhookOutlet

# `retry-all` begins no further request after this time.
RETRY_ALL_S: Final = 20.0
# Pages of dead letters in memory at a time for each listener.
PAGES_AT_ONCE: Final = 2

T = TypeVar("T")


class WebhooksApi:
    """The routes of webhooks.

    The letters are also those of removed webhooks; None: there is no outlet.
    """

    def __init__(
        self, webhooks: "Sequence[WebhookOutlet]", letters: "DeadLetters | None"
    ) -> None:
        self._letters = letters
        self._webhooks = {
            webhook.name.removeprefix("webhooks."): webhook for webhook in webhooks
        }
        self._changing = set[str]()

    def routes(self, *, may_change: bool) -> list[Route]:
        """The routes for a listener; those that change something only if *may_change*."""
        limiter = trio.CapacityLimiter(PAGES_AT_ONCE)
        routes = [
            Route("/v1/webhooks", answering(self._list), methods=["GET"]),
            Route(
                "/v1/webhooks/dead",
                BoundedPage(answering(self._dead), limiter),
                methods=["GET"],
            ),
        ]
        if may_change:
            routes += [
                Route(f"/v1/webhooks/{name}", answering(endpoint), methods=["POST"])
                for name, endpoint in (
                    ("test", self._test),
                    ("retry", self._retry),
                    ("retry-all", self._retry_all),
                    ("drop", self._drop),
                    ("drop-all", self._drop_all),
                )
            ]
        return routes

    async def _list(self, request: Request) -> Response:
        query_of(request)
        shown = [_shown(name, webhook) for name, webhook in self._webhooks.items()]
        return JSONResponse({"webhooks": shown})

    async def _dead(self, request: Request) -> Response:
        query = query_of(request, "webhook", "before", "limit")
        limit = number_in(query, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        before = number_in(query, "before", MAX_INTEGER, MAX_INTEGER)
        name = query.get("webhook")
        page = list[tuple[str, DeadLetter]]()
        if self._letters is not None:
            page = await _answered(self._letters.page(name, before, limit + 1))
        if name is not None and not page:
            self._named(name)
        has_more = len(page) > limit
        shown = ", ".join(_letter(letter, name) for name, letter in page[:limit])
        following = json.dumps(str(page[limit - 1][1].number) if has_more else None)
        return json_text(f'{{"dead": [{shown}], "next": {following}}}')

    async def _test(self, request: Request) -> Response:
        name = (await body_of(request, "webhook"))["webhook"]
        result = await _answered(self._named(name).send_test())
        return JSONResponse({"webhook": name, **_result(result)})

    async def _retry(self, request: Request) -> Response:
        body = await body_of(request, "id")
        number = _letter_number(body)
        name = await self._owner_of(number)
        webhook = self._webhooks.get(name)
        if webhook is None:
            raise ApiError(
                409,
                f"the dead letter {number} is of the webhook {name!r}, which is not in the "
                f"settings: put [webhooks.{name}] back to send it, or drop it",
            )
        with self._alone(name):
            result = await _answered(webhook.retry(number))
        if result is None:
            raise _no_letter(number)
        return JSONResponse({"webhook": name, "id": number, **_result(result)})

    async def _retry_all(self, request: Request) -> Response:
        body = await body_of(request, "webhook", optional=["after"])
        name = body["webhook"]
        webhook = self._named(name)
        number: int | None = number_in(body, "after", 0, MAX_INTEGER, where="body")
        accepted, refused, failed = 0, 0, None
        until = trio.current_time() + RETRY_ALL_S
        with self._alone(name):
            while failed is None and trio.current_time() < until:
                assert number is not None
                try:
                    number = await webhook.next_dead(number)
                    if number is None:
                        break
                    result = await webhook.retry(number)
                except (OSError, sqlite3.Error, LivenessError) as error:
                    before = (
                        f"{accepted} were accepted and {refused} refused before that"
                    )
                    raise ApiError(503, f"{error}; {before}") from error
                if result is None:  # it was deleted just now, to make room
                    continue
                if result.is_accepted:
                    accepted += 1
                elif result.is_refused:
                    refused += 1
                else:
                    failed = {"id": number, **_result(result)}
        is_over = number is None or failed is not None
        return JSONResponse(
            {
                "webhook": name,
                "accepted": accepted,
                "refused": refused,
                "left": webhook.now().dead_kept,
                "failed": failed,
                "next": None if is_over else str(number),
            }
        )

    async def _drop(self, request: Request) -> Response:
        number = _letter_number(await body_of(request, "id"))
        name = await self._owner_of(number)
        assert self._letters is not None
        with self._alone(name):
            left = await _answered(self._letters.drop(name, number))
            self._note_dead(name, left)
        return JSONResponse({"webhook": name, "id": number, "left": left})

    async def _drop_all(self, request: Request) -> Response:
        name = (await body_of(request, "webhook"))["webhook"]
        deleted = left = 0
        if self._letters is not None:
            with self._alone(name):
                drop = self._letters.drop_all(name, partial(self._note_dead, name))
                deleted, left = await _answered(drop)
        if not deleted:
            self._named(name)
        return JSONResponse({"webhook": name, "deleted": deleted, "left": left})

    def _note_dead(self, name: str, kept: int) -> None:
        if name in self._webhooks:
            self._webhooks[name].note_dead(kept)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Allow one change of a webhook at a time, so that no letter is sent twice."""
        if name in self._changing:
            message = f"dead letters of the webhook {name!r} are being sent or dropped"
            raise ApiError(409, f"{message} already; try again when that has ended")
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.remove(name)

    async def _owner_of(self, number: int) -> str:
        """The name of the webhook that has a dead letter."""
        name = None
        if self._letters is not None:
            name = await _answered(self._letters.owner(number))
        if name is None:
            raise _no_letter(number)
        return name

    def _named(self, name: str) -> "WebhookOutlet":
        found = self._webhooks.get(name)
        if found is None:
            known = "there are " + ", ".join(sorted(self._webhooks))
            if not self._webhooks:
                known = "the settings have no [webhooks.NAME]"
            raise ApiError(404, f"there is no webhook {name!r:.80}; {known}")
        return found


async def _answered(call: Awaitable[T]) -> T:
    """The result of a call of a webhook.

    Raises:
        ApiError: It cannot be made now.
    """
    try:
        return await call
    except Unfinished as error:
        raise ApiError(503, str(error)) from error
    except (OSError, sqlite3.Error, LivenessError) as error:
        raise ApiError(503, f"{error}; nothing was changed, ask again") from error


def _letter_number(body: dict[str, str]) -> int:
    """The number of a dead letter, in a body."""
    # The number above it must fit into an integer of SQLite, too.
    return number_in(body, "id", 0, MAX_INTEGER - 1, where="body")


def _no_letter(number: int) -> ApiError:
    message = f"there is no dead letter {number}: `liveness webhooks dead` shows those"
    return ApiError(404, f"{message} that there are")


def _shown(name: str, webhook: "WebhookOutlet") -> dict[str, Any]:
    """The settings of a webhook, without secrets, and its status."""
    settings = webhook.settings
    return {
        "webhook": name,
        # The query may contain a key.
        "url": settings.parts._replace(query="").geturl(),
        "kinds": [kind for kind in KINDS if kind in settings.kind_set],
        "gateways": sorted(settings.gateway_set),
        "users_only": settings.users_only,
        "settle_s": settings.settle_s,
        "batch": settings.batch,
        **webhook.now().as_map(),
    }


def _letter(letter: DeadLetter, name: str) -> str:
    """A dead letter as JSON; its record is JSON already."""
    shown = {
        "id": letter.number,
        "webhook": name,
        "log": letter.log,
        "seq": letter.seq,
        "webhook_id": letter.id,
        "attempts": letter.attempts,
        "at": letter.at_ms,
        "status": letter.status,
        "answer": letter.answer,
    }
    return f'{json.dumps(shown)[:-1]}, "record": {letter.record}}}'


def _result(result: SendResult) -> dict[str, Any]:
    return {
        "accepted": result.is_accepted,
        "status": result.status,
        "answer": result.answer,
        "seconds": round(result.seconds, 3),
    }
