"""What a link makes of a stream, as text that differs where anything does."""

from collections.abc import Iterable
from dataclasses import replace

from liveness.core.link import Link, LinkLimits
from liveness.core.records import ListedSigns, Refusal, Request, SignsOfLife
from liveness.core.uids import is_uid
from liveness.core.wire import Reader
from liveness.errors import Code


def told(reader: type[Reader], cut: Iterable[bytes], limits: LinkLimits) -> list[str]:
    """What a link makes of a stream, with every sign of life for itself."""
    link = Link(limits, reader)
    flat: list[str] = []
    for piece in cut:
        for request in link.receive(piece, 0.0):
            flat += told_apart(request)
    return [*flat, repr((link.n, link.is_closed, link.hello))]


def told_apart(request: Request) -> list[str]:
    """A request as text; each sign of life of a run."""
    assert isinstance(request, Request)
    if isinstance(request, Refusal) and request.code is Code.TOO_LARGE:
        # How much of the frame was seen is told, and is the reader's affair.
        request = replace(request, message="")
    if not isinstance(request, SignsOfLife):
        return [repr(request)]
    # Whatever is wrong with a uid is found before it is packed.
    assert isinstance(request, ListedSigns) or all(map(is_uid, request.uids))
    each = [request.at(position) for position in range(len(request.uids))]
    columns = zip(request.uids, request.conns, request.events, strict=True)
    assert repr([*columns]) == repr(each)
    return [repr((one, request.frame_at(at))) for at, one in enumerate(each)]
