"""Situations of records and other frames that are easy to handle wrongly."""

from typing import Final

from liveness.core.wire.framing import encode
from liveness.lab.conformance.frame_rules import BY_SCRIPT
from liveness.lab.conformance.stage import Stage, situation

UNUSED: Final = 2**52  # a conn that no gateway has given
# So much of this frame is missing that a gateway that waits for the rest sees nothing else.
LONG_TEXT: Final = "x" * 1_000_000
FIRST_BYTES: Final = 64


@situation(16, 19)
async def records_of_other_connections(stage: Stage) -> None:
    """They name the user, but not this connection of this gateway."""
    user = await stage.enter("stays")
    offline = stage.silence_of(user)
    moved = {**offline, "kind": "moved", "reason": "login"}
    for what, record in {
        "offline of another conn": offline | {"conn": UNUSED},
        "offline without a conn": {k: v for k, v in offline.items() if k != "conn"},
        "offline of another gateway": offline | {"gateway": "gw-other"},
        "moved from another gateway": moved
        | {"from": "gw-other", "from_conn": user.conn},
        "moved from another conn": moved | {"from": stage.name, "from_conn": UNUSED},
    }.items():
        await stage.check_acked(19, stage.deliver(record), what)
        await stage.check_served(16, user, f"the connection was closed by: {what}")


@situation(17)
async def other_ways_to_lose_a_user(stage: Stage) -> None:
    """`gateway_lost`, and a `moved` that began no session."""
    moved = {"kind": "moved", "gateway": "gw-other", "conn": 1, "reason": "login"}
    for what, record in (
        ("an offline, gateway_lost,", {"reason": "gateway_lost"}),
        ("a moved without from_session", moved | {"from": stage.name}),
    ):
        user = await stage.enter("lost")
        stage.deliver(stage.silence_of(user) | record | {"from_conn": user.conn})
        await stage.check_closed(17, user, f"{what} ended nothing")


@situation(18)
async def a_record_comes_again(stage: Stage) -> None:
    """The gateway has had its seq, so it ends no connection, whatever else it says."""
    user = await stage.enter("stays")
    record = stage.silence_of(user)
    seq = stage.deliver({**record, "conn": UNUSED})
    await stage.acked(seq, 1)
    stage.deliver({**record, "seq": seq})
    await stage.quiet()
    await stage.check_served(18, user, f"the repeat of record {seq} closed a user")


@situation(7, 17)
async def unknown_frames_keys_and_kinds(stage: Stage) -> None:
    """As a later version of the sidecar may send them."""
    user, link = await stage.enter("stays"), stage.link
    stage.mark()

    def check_link(what: str) -> None:
        is_same = stage.link == link and stage.is_linked
        stage.check(7, is_same, f"{what} ended the link", "it goes on")

    stage.sidecar.send(stage.name, ("weather", {"sun": (1, 2.5, None)}), ("rain",))
    await stage.quiet(2)
    check_link("an unknown frame")
    await stage.need_link()
    link = stage.link
    seq = stage.deliver({**stage.silence_of(user), "conn": UNUSED})
    stage.need(await stage.acked(seq), "the gateway does not acknowledge")
    seq = stage.deliver({**stage.silence_of(user), "kind": "holiday"})
    await stage.check_acked(7, seq, "an unknown kind")
    await stage.check_served(7, user, "an unknown frame or kind closed a user")
    record = stage.silence_of(user) | {"seq": stage.sidecar.record_others(1)}
    record |= {"reason": "sunset", "moon": {"full": True}}
    stage.sidecar.send(stage.name, ("notices", (record,), {"trailing": 1}))
    await stage.check_closed(7, user, "an unknown reason ended nothing")
    check_link("an unknown kind or key")


@situation(8, 7)
async def errors_that_are_not_fatal(stage: Stage) -> None:
    """The sidecar sends known and unknown ones."""
    user = await stage.enter("stays")
    for rule, code in ((8, "bad-uid"), (8, "too-many-users"), (7, "no-such-code")):
        stage.mark()
        await stage.need_link()
        link = stage.link
        # The error names a frame without users: a gateway may drop users that are refused.
        error = {"code": code, "message": BY_SCRIPT, "fatal": False, "n": 1}
        stage.sidecar.send(stage.name, ("error", {**error, "frame": "hello"}))
        newcomer = await stage.joins(f"after-{code}")
        what = f"after an error {code}, not fatal, the link did not go on"
        await stage.check_report(rule, newcomer, what, "login")
        is_same = stage.link == link and stage.is_linked
        stage.check(rule, is_same, what, "it goes on")
        await stage.check_served(rule, user, f"an error {code} closed a user")


@situation(6)
async def frames_in_pieces_and_together(stage: Stage) -> None:
    """Records come in pieces of a few bytes; then two frames come in one."""
    users = await stage.enter_all(["one", "two", "three", "four"])
    for size, user in ((1, users[0]), (7, users[1])):
        record = stage.silence_of(user) | {"seq": stage.sidecar.record_others(1)}
        stage.mark()
        await stage.sidecar.send_in_pieces(stage.name, size, ("notices", (record,)))
        what = f"a record in pieces of {size} bytes was not acted on"
        await stage.check_closed(6, user, what)
    stage.need(stage.is_linked, "the link has ended")
    stage.deliver(*(stage.silence_of(user) for user in users[2:]))
    for user in users[2:]:
        what = "one of two frames that came together was not acted on"
        await stage.check_closed(6, user, what)


@situation(6)
async def a_link_ends_within_a_frame(stage: Stage) -> None:
    """The next link's first frame must not begin with the part that arrived."""
    user = await stage.enter("half")
    stage.mark()
    frame = encode(("made-by-the-script", LONG_TEXT))
    stage.sidecar.drop(stage.name, frame[:FIRST_BYTES])
    await stage.check_linked(6, "no link after one had ended within a frame")
    stage.deliver(stage.silence_of(user))
    what = "a record was not acted on after a link had ended within a frame"
    await stage.check_closed(6, user, what)
