"""Situations of records and other frames that a gateway has to take with care."""

from functools import partial
from typing import Final

from liveness.lab.conformance.situation import situation
from liveness.lab.conformance.stage import HAND_MADE, Stage

UNUSED: Final = 2**52  # a conn that no gateway has given
# So much of it is missing that a gateway which waits for the rest sees nothing else.
LONG_TEXT: Final = "x" * 1_000_000


@situation(16, 19)
async def records_of_other_connections(stage: Stage) -> None:
    """They name the user, but not this connection of this gateway."""
    user = await stage.enter("stays")
    offline: dict[str, object] = {
        "kind": "offline",
        "uid": user.uid,
        "reason": "silence",
    }
    moved: dict[str, object] = {"kind": "moved", "uid": user.uid, "reason": "login"}
    ours, other = {"gateway": stage.name}, {"gateway": "gw-other"}
    for what, record in {
        "offline of another conn": offline | ours | {"conn": UNUSED},
        "offline without a conn": offline | ours,
        "offline of another gateway": offline | other | {"conn": user.conn},
        "moved from another gateway": moved
        | ours
        | {"conn": user.conn, "from": "gw-other", "from_conn": user.conn},
        "moved from another conn": moved
        | ours
        | {"conn": user.conn, "from": stage.name, "from_conn": UNUSED},
    }.items():
        mark = stage.tape.mark
        seq = await stage.deliver(record)
        acked = await stage.acked(seq, mark)
        stage.check(19, acked, f"no ack of: {what}", f"ack {seq}", since=mark)
        closed = f"the connection was closed by: {what}"
        stage.check(16, await stage.served(user), closed, "open", since=mark)


@situation(17)
async def other_ways_to_lose_a_user(stage: Stage) -> None:
    """`gateway_lost`, and a `moved` by which no session began."""
    moved = {"kind": "moved", "gateway": "gw-other", "conn": 1, "reason": "login"}
    for what, record in (
        ("an offline, gateway_lost,", {"reason": "gateway_lost"}),
        ("a moved without from_session", moved | {"from": stage.name}),
    ):
        user = await stage.enter("lost")
        mark = stage.tape.mark
        await stage.deliver(stage.silence_of(user) | record | {"from_conn": user.conn})
        closed = await stage.closed(user)
        stage.check(17, closed, f"{what} ended nothing", "closed", since=mark)


@situation(18)
async def a_record_comes_again(stage: Stage) -> None:
    """With a seq that the gateway has had, so it ends nothing, whatever it says."""
    user = await stage.enter("stays")
    record = stage.silence_of(user)
    mark = stage.tape.mark
    seq = await stage.deliver({**record, "conn": UNUSED})
    await stage.acked(seq, mark, 1)
    mark = stage.tape.mark
    await stage.deliver({**record, "seq": seq})
    await stage.quiet()
    served = await stage.served(user)
    stage.check(
        18, served, f"the repeat of record {seq} closed a user", "open", since=mark
    )


@situation(7, 17)
async def unknown_frames_keys_and_kinds(stage: Stage) -> None:
    """As a later version of the sidecar may send them."""
    user, link = await stage.enter("stays"), stage.link
    mark = stage.tape.mark
    stage.sidecar.send(stage.name, ("weather", {"sun": (1, 2.5, None)}), ("rain",))
    await stage.quiet(2)
    is_same = stage.link == link and stage.is_linked
    stage.check(7, is_same, "an unknown frame ended the link", "it goes on", since=mark)
    stage.need(await stage.linked(), "the gateway has no link")
    link = stage.link
    seq = await stage.deliver({**stage.silence_of(user), "conn": UNUSED})
    stage.need(await stage.acked(seq, mark), "the gateway does not acknowledge")
    mark = stage.tape.mark
    seq = await stage.deliver({**stage.silence_of(user), "kind": "holiday"})
    acked = await stage.acked(seq, mark)
    stage.check(7, acked, "no ack of an unknown kind", f"ack {seq}", since=mark)
    served = await stage.served(user)
    stage.check(7, served, "an unknown frame or kind closed a user", "open", since=mark)
    record = {**HAND_MADE, **stage.silence_of(user), "seq": await stage.unused_seqs()}
    record |= {"reason": "sunset", "moon": {"full": True}}
    stage.sidecar.send(stage.name, ("notices", (record,), {"trailing": 1}))
    closed = await stage.closed(user)
    stage.check(7, closed, "an unknown reason ended nothing", "closed", since=mark)
    is_same = stage.link == link and stage.is_linked
    stage.check(
        7, is_same, "an unknown kind or key ended the link", "it goes on", since=mark
    )


@situation(8, 7)
async def errors_that_are_not_fatal(stage: Stage) -> None:
    """Known and unknown ones."""
    user = await stage.enter("stays")
    for rule, code in ((8, "bad-uid"), (8, "too-many-users"), (7, "no-such-code")):
        mark = stage.tape.mark
        stage.need(await stage.linked(), "the gateway has no link")
        link = stage.link
        # Of a frame that is none of the users': a gateway may drop those whom it refuses.
        error = {"code": code, "message": "made by the script", "fatal": False, "n": 1}
        stage.sidecar.send(stage.name, ("error", {**error, "frame": "hello"}))
        newcomer = await stage.joins(f"after-{code}")
        came = await stage.until(partial(stage.logins_of, newcomer.uid))
        is_same = stage.link == link and stage.is_linked
        what = f"after an error {code}, not fatal, the link did not go on"
        stage.check(rule, came and is_same, what, "it goes on", since=mark)
        served = await stage.served(user)
        stage.check(rule, served, f"an error {code} closed a user", "open", since=mark)


@situation(6)
async def frames_in_pieces_and_together(stage: Stage) -> None:
    """Records come in pieces of a few bytes; then two frames come in one."""
    users = await stage.enter_all(["one", "two", "three", "four"])
    for size, user in zip((1, 7), users, strict=False):
        record = {**HAND_MADE, **stage.silence_of(user)}
        record["seq"] = await stage.unused_seqs()
        mark = stage.tape.mark
        await stage.sidecar.send_in_pieces(stage.name, size, ("notices", (record,)))
        closed = await stage.closed(user)
        what = f"a record in pieces of {size} bytes was not acted on"
        stage.check(6, closed, what, "closed", since=mark)
    stage.need(stage.is_linked, "the link has ended")
    mark = stage.tape.mark
    await stage.deliver(*(stage.silence_of(user) for user in users[2:]))
    for user in users[2:]:
        closed = await stage.closed(user)
        what = "one of two frames that came together was not acted on"
        stage.check(6, closed, what, "closed", since=mark)


@situation(6)
async def a_link_ends_within_a_frame(stage: Stage) -> None:
    """What has arrived of the frame is no part of the next link's first."""
    user = await stage.enter("half")
    mark = stage.tape.mark
    stage.sidecar.end_within(stage.name, ("made-by-the-script", LONG_TEXT))
    is_linked = await stage.linked()
    what = "no link after one had ended within a frame"
    stage.check(6, is_linked, what, "a link that begins anew", since=mark)
    stage.need(is_linked, "the gateway has no link")
    await stage.deliver(stage.silence_of(user))
    closed = await stage.closed(user)
    what = "a record was not acted on after a link had ended within a frame"
    stage.check(6, closed, what, "closed", since=mark)
