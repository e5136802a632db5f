"""The limits of links, users and memory: the section [limits] of the settings.

Those with bounds are settings. The others are fixed: no operator has had a reason to change
them, and only tests do.
"""

from dataclasses import dataclass, field
from typing import Final, TypeVar

Value = TypeVar("Value", int, float)

MIB: Final = 1024 * 1024


def limit(
    default: Value, meaning: str, bounds: tuple[float, float], unit: str
) -> Value:
    """A limit that is a setting; its metadata are those of `config.schema.Setting`."""
    metadata = {"meaning": meaning, "bounds": bounds, "unit": unit}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one link, and of all links together."""

    gateway_hold_s: float = limit(
        60.0,
        "longest that users of a mute or unread gateway are held",
        (1, 3600),
        "seconds",
    )
    max_spool_bytes: int = limit(
        256 * MIB,
        "most bytes on disk of answers to list and /v1/users, all together; never more "
        "than they leave free",
        (65_536, 1024**2 * MIB),
        "bytes",
    )
    max_links: int = limit(1_000, "most links at a time", (1, 100_000), "links")
    max_gateways: int = limit(
        500, "most gateways connected at a time", (1, 100_000), "gateways"
    )
    max_gateway_users: int = limit(
        2_000_000, "most users online through one gateway", (1, 100_000_000), "users"
    )
    max_users: int = limit(5_000_000, "most users online", (1, 100_000_000), "users")
    max_names: int = limit(
        10_000,
        "most names of gateways and watchers with a stored cursor",
        (1, 1_000_000),
        "names",
    )

    hello_s: float = 5.0  # for a new link to send its hello
    max_handshakes: int = 200  # links without a hello; above it, the oldest end
    max_frame_bytes: int = MIB
    max_batch: int = 4_000  # uids of one frame
    max_refused: int = 1_000  # frames of one link within ten seconds
    # Incomplete frames of all links; above it, the links with the oldest of them end.
    max_unfinished_bytes: int = 64 * MIB
    # Sessions in an answer to `where`, or one for each uid.
    max_where_rows: int = 10_000
    # Questions about all hosts that wait for Redis, of one link and of all. Beyond them,
    # answers lack the sessions on other hosts.
    max_link_questions: int = 16
    max_questions: int = 64
    window: int = 10_000  # records that a link has not acknowledged
    # Unread replies of one link, and of all. Above it, the worst links end.
    max_replies: int = 1_000
    max_reply_bytes: int = 16 * MIB
    max_unread_bytes: int = 64 * MIB
    # For a link that reads no reply, or whose list finds no room; for a gateway at least
    # `gateway_hold_s`.
    unread_s: float = 30.0
    # Decisions that are not durable: offlines at which few users a turn go offline (at
    # twice as many none), records at which no link is read, and commands of timers, of
    # which a gateway gets a share.
    pause_firing: int = 10_000
    pause_reading: int = 30_000
    max_pending: int = 30_000
    # Offlines that wait for `settle_s`, of one outlet, and of all HTTP streams together.
    max_settling: int = 100_000
    # Newest records in memory for live readers; a timer's counts once more for each 512
    # bytes of its payload.
    tail: int = 20_000
