"""Webhooks over HTTP, for operators: a test, and their dead letters.

    GET  /v1/webhooks/dead    dead letters, newest first, a page at a time
    POST /v1/webhooks/test    {"webhook": …}: sends a test event
    POST /v1/webhooks/retry   {"webhook": …, "after": …}: sends its oldest dead letter again
    POST /v1/webhooks/drop    {"webhook": …}: deletes its dead letters for good

The client waits for the request to the receiver, for the webhook's `timeout_s` at most. A
failing receiver is no error here: the answer says `"accepted": false`, and why.
"""

import json
import sqlite3
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.core.wire.uids import MAX_INTEGER
from liveness.errors import LivenessError
from liveness.service.http import api
from liveness.service.outlets.common.outlet_store import OutletStore
from liveness.service.outlets.webhooks import batch_store
from liveness.service.outlets.webhooks.batch_store import DeadLetter

if TYPE_CHECKING:
    from liveness.service.outlets.webhooks.sender import PostAnswer
    from liveness.service.outlets.webhooks.webhook_outlet import WebhookOutlet

_KIND: Final = "webhooks."

T = TypeVar("T")


class WebhooksApi:
    """The routes of webhooks.

    *store* also has the letters of removed webhooks; None: there is no outlet.
    """

    def __init__(
        self, webhooks: "Sequence[WebhookOutlet]", store: OutletStore | None
    ) -> None:
        self._store = store
        self._webhooks = {
            webhook.name.removeprefix(_KIND): webhook for webhook in webhooks
        }

    def routes(self) -> list[Route]:
        return [
            Route("/v1/webhooks/dead", self._dead),
            Route("/v1/webhooks/test", self._test, methods=["POST"]),
            Route("/v1/webhooks/retry", self._retry, methods=["POST"]),
            Route("/v1/webhooks/drop", self._drop, methods=["POST"]),
        ]

    async def _dead(self, request: Request) -> Response:
        query = api.query_of(request, "webhook", "before", "limit")
        limit = api.number_in(query, "limit", api.DEFAULT_LIMIT, api.MAX_LIMIT)
        before = api.number_in(query, "before", MAX_INTEGER, MAX_INTEGER)
        name = query.get("webhook")
        outlet = None if name is None else _KIND + name
        page = list[tuple[str, DeadLetter]]()
        if self._store is not None:
            page = await _answered(
                self._store.run(
                    lambda db: batch_store.letters(
                        db, outlet, before=before, limit=limit + 1
                    )
                )
            )
        if name is not None and not page:
            self._named(name)
        has_more = len(page) > limit
        shown = ", ".join(_letter(*row) for row in page[:limit])
        following = json.dumps(str(page[limit - 1][1].number) if has_more else None)
        return api.json_text(f'{{"dead": [{shown}], "next": {following}}}')

    async def _test(self, request: Request) -> Response:
        name = (await api.body_of(request, "webhook"))["webhook"]
        answer = await _answered(self._named(name).send_test())
        return JSONResponse({"webhook": name, **_result(answer)})

    async def _retry(self, request: Request) -> Response:
        body = await api.body_of(request, "webhook", optional=["after"])
        webhook = self._named(name := body["webhook"])
        after = api.number_in(body, "after", 0, MAX_INTEGER, where="body")
        found = await _answered(webhook.retry_next(after))
        letter = None if found is None else {"id": found[0], **_result(found[1])}
        return JSONResponse(
            {"webhook": name, "letter": letter, "left": webhook.now().dead_kept}
        )

    async def _drop(self, request: Request) -> Response:
        name = (await api.body_of(request, "webhook"))["webhook"]
        deleted = await _answered(self._named(name).drop())
        return JSONResponse({"webhook": name, "deleted": deleted})

    def _named(self, name: str) -> "WebhookOutlet":
        found = self._webhooks.get(name)
        if found is None:
            known = "there are " + ", ".join(sorted(self._webhooks))
            if not self._webhooks:
                known = "the settings have no [webhooks.NAME]"
            raise api.ApiError(404, f"there is no webhook {name!r:.80}; {known}")
        return found


async def _answered(call: Awaitable[T]) -> T:
    try:
        return await call
    except (OSError, sqlite3.Error, LivenessError) as error:
        raise api.ApiError(503, str(error)) from error


def _letter(outlet: str, letter: DeadLetter) -> str:
    """A dead letter as JSON; its record is JSON already."""
    shown = {
        "id": letter.number,
        "webhook": outlet.removeprefix(_KIND),
        "log": letter.log,
        "seq": letter.seq,
        "webhook_id": letter.id,
        "attempts": letter.attempts,
        "at": letter.at_ms,
        "status": letter.status,
        "answer": letter.answer,
    }
    return f'{json.dumps(shown)[:-1]}, "record": {letter.record}}}'


def _result(answer: "PostAnswer") -> dict[str, Any]:
    return {
        "accepted": answer.is_accepted,
        "refused": answer.is_refused,
        "status": answer.status,
        "answer": answer.text,
        "seconds": round(answer.seconds, 3),
    }
