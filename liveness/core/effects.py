"""Effects: plain values that the server's shell carries out in order.

Links are named by their number. Frames are not effects: they are in the outbox of a link,
which gives the shell each one once the commit that it depends on is durable. Records are
durable before anyone reads them. Only the last frame of a link that ends, an error or
`bye`, waits for no commit, as it depends on none.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from liveness.core.changes import Commit
from liveness.core.cursors import ReadPosition
from liveness.core.records import Uid
from liveness.core.wire.link_requests import Refusal


class WakeWriter(NamedTuple):
    """Write to a link: its outbox has another reply, or room for more records."""

    link: int


class Deliver(NamedTuple):
    """From now on, send the records after a position, as the outbox has room.

    The shell moves the position as it reads; the outbox reads it.
    """

    link: int
    position: ReadPosition


class Close(NamedTuple):
    """Read no more of a link; close it once its outbox is written."""

    link: int


class ReadFirst(NamedTuple):
    """Read what a link has sent up to now, then call `Server.replace`."""

    link: int


class SearchSkipped(NamedTuple):
    """Search the records that a gateway skipped for attempts (`SkippedRanges`)."""


class AskCluster(NamedTuple):
    """Ask the cluster about these users, then call `Server.cluster_answered`."""

    ticket: int
    uids: Sequence[Uid]


class LogRefusal(NamedTuple):
    """Log that a link, or a frame of it, was refused."""

    link: int
    name: str | None
    refusal: Refusal


class LogLine(NamedTuple):
    """Log a line for the operator."""

    area: str  # the logger
    level: Literal["info", "warning", "error"]
    message: str
    fields: dict[str, object]
    key: object = None  # with the same one it is logged once in ten seconds


Effect: TypeAlias = (
    Commit
    | WakeWriter
    | Deliver
    | Close
    | ReadFirst
    | SearchSkipped
    | AskCluster
    | LogRefusal
    | LogLine
)
