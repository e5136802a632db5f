"""The settings that bound links, users and memory."""

from dataclasses import dataclass

from liveness.config.schema import KIB, MIB, TIB, fixed, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Limits of one link, and of all links together."""

    hello_s: float = fixed(5.0, "time that a new link has for its hello", "seconds")
    gateway_hold_s: float = setting(
        60.0,
        "longest that users of a mute or unread gateway are held",
        (1, 3600),
        "seconds",
    )
    # The largest timer takes 4.7 KB.
    max_frame_bytes: int = setting(MIB, "largest frame", (8 * KIB, 64 * MIB), "bytes")
    max_unfinished_bytes: int = fixed(
        64 * MIB,
        "most bytes of incomplete frames, over all links; above it, the links with "
        "the oldest of them end; max_frame_bytes at least",
        "bytes",
    )
    max_where_rows: int = fixed(
        10_000,
        "most sessions in an answer to where; with more, it is refused, as the users have "
        "too many devices",
        "sessions",
    )
    max_batch: int = setting(4_000, "most uids in one frame", (1, 100_000), "uids")
    window: int = setting(
        10_000,
        "most unacknowledged records in flight on one link",
        (1, 1_000_000),
        "records",
    )
    max_replies: int = fixed(
        1_000, "most replies that one link may leave unread", "replies"
    )
    max_reply_bytes: int = fixed(
        16 * MIB, "most bytes of replies that one link may leave unread", "bytes"
    )
    max_unread_bytes: int = fixed(
        64 * MIB,
        "most bytes of unread replies, over all links; above it, links that read "
        "nothing end; at twice as many, the link with the most ends",
        "bytes",
    )
    max_spool_bytes: int = setting(
        256 * MIB,
        "most bytes on disk of answers to list and /v1/users, all together; never more "
        "than they leave free",
        (64 * KIB, TIB),
        "bytes",
    )
    unread_s: float = fixed(
        30.0,
        "time after which a link ends that reads no answers, or whose list finds no "
        "room; for a gateway at least limits.gateway_hold_s",
        "seconds",
    )
    max_refused: int = fixed(
        1_000, "most refused frames of one link within ten seconds", "frames"
    )
    max_links: int = setting(1_000, "most links at a time", (1, 100_000), "links")
    max_gateways: int = setting(
        500, "most gateways connected at a time", (1, 100_000), "gateways"
    )
    max_handshakes: int = fixed(
        200, "most links at a time without a hello; above it, the oldest end", "links"
    )
    max_gateway_users: int = setting(
        2_000_000, "most users online through one gateway", (1, 100_000_000), "users"
    )
    max_users: int = setting(5_000_000, "most users online", (1, 100_000_000), "users")
    max_names: int = setting(
        10_000,
        "most names of gateways and watchers with a stored cursor",
        (1, 1_000_000),
        "names",
    )
    pause_firing: int = fixed(
        10_000,
        "offlines not yet durable at which only 50 users a pass go offline; at "
        "twice as many none",
        "offlines",
    )
    pause_reading: int = fixed(
        30_000, "records not yet durable at which sockets are no longer read", "records"
    )
    max_settling: int = setting(
        100_000,
        "offlines that wait for settle_s, of one outlet, and of all HTTP streams together; "
        "above it, the oldest is passed on early",
        (100, 10_000_000),
        "records",
    )
    tail: int = setting(
        20_000,
        "newest records kept in memory for live readers; a timer's counts once more for "
        "each 512 bytes of its payload",
        (1_000, 1_000_000),
        "records",
    )
