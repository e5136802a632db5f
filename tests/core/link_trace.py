"""All that a link makes of a stream, as text, to compare two readers."""

from collections.abc import Iterable
from dataclasses import replace

from liveness.core.limits import Limits
from liveness.core.links.conversation import Conversation
from liveness.core.wire.framing import Reader
from liveness.core.wire.link_requests import ActivityBatch, Refusal, Request
from liveness.errors import Code


def told(reader: type[Reader], cut: Iterable[bytes], limits: Limits) -> list[str]:
    """The requests of a stream, each activity by itself, and the state of its link."""
    link = Conversation(limits, reader)
    flat: list[str] = []
    for piece in cut:
        for request in link.receive(piece, 0.0):
            flat += described(request, link.n)
    return [*flat, repr((link.n, link.is_closed, link.hello))]


def described(request: Request, n: int) -> list[str]:
    """A request of frame *n* as text; each keepalive or message of a run."""
    if isinstance(request, Refusal) and request.code is Code.TOO_LARGE:
        # The message says how many bytes were seen, which differs between readers.
        request = replace(request, message="")
    if not isinstance(request, ActivityBatch):
        return [repr((n, request))]
    each = [request.at(position) for position in range(len(request.uids))]
    columns = zip(request.uids, request.conns, request.events, strict=True)
    assert repr([*columns]) == repr(each)
    return [repr((sign, request.frame_at(at))) for at, sign in enumerate(each)]
