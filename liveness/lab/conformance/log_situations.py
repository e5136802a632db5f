"""Situations in which reports or records may be lost."""

from typing import Final

from liveness.core.conversation import ConversationLimits
from liveness.lab.conformance.situation import situation
from liveness.lab.conformance.stage import Stage
from liveness.lab.conformance.tape import ACTIVITY
from liveness.lab.conformance.tcp_users import TcpUser

# Connections in one batch of logins have one age. So batches of logins stay small by
# themselves, and those of activity become large: with names as long as the users'
# protocol allows, longer than the smallest frame that an operator can set.
CROWD: Final = 240
MAX_BATCH: Final = 10
MAX_FRAME: Final = 8_192


async def _declared(stage: Stage, users: list[TcpUser], why: str, mark: int) -> None:
    """Check that all these connections are declared after a mark."""
    await stage.until(lambda: stage.reported_all(users, mark, "login"))
    missing = [user for user in users if not stage.reported(user, "login", since=mark)]
    text = f"{len(missing)} of {len(users)} connections were not declared after {why}"
    stage.check(29, not missing, text, "login of each", since=mark)


@situation(28)
async def a_crash_with_unconfirmed_reports(stage: Stage) -> None:
    """A login, a logout and activity that no pong covered."""
    leaver, talker = await stage.enter("leaver"), await stage.enter("talker")
    await stage.confirmed()
    with stage.sidecar.disk_full():
        await stage.quiet()
        mark = stage.tape.mark
        newcomer = await stage.enter("newcomer")
        await leaver.send({"logout": 1})
        await talker.ping()
        stage.need(await stage.reports(leaver, "logout"), "no logout came")
        spoke = await stage.reports(talker, *ACTIVITY, since=mark)
        stage.need(spoke, "no activity came")
        stage.sidecar.crash()
    mark = await stage.start_sidecar()
    again = await stage.reports(newcomer, "login", since=mark)
    stage.check(28, again, "a lost login was not sent again", "login", since=mark)
    again = await stage.reports(leaver, "logout", since=mark)
    stage.check(28, again, "a lost logout was not sent again", "logout", since=mark)
    again = await stage.reports(talker, "login", *ACTIVITY, since=mark)
    stage.check(28, again, "lost activity was not sent again", "keepalive", since=mark)


@situation(28)
async def a_crash_behind_a_pong(stage: Stage) -> None:
    """The pong of a ping that was sent before the newcomer's login."""
    await stage.enter("early")
    with stage.sidecar.disk_full():
        mark = stage.tape.mark
        await stage.enter("covered")
        pinged = await stage.until(lambda: stage.tape.received_since(mark, "ping"))
        stage.need(pinged, "no ping came")
        ping = stage.tape.received_since(mark, "ping")[-1]
        newcomer = await stage.enter("newcomer")
        stage.sidecar.send(stage.name, ("pong", *ping.frame[1:]))
        await stage.quiet()
        stage.sidecar.crash()
    mark = await stage.start_sidecar()
    again = await stage.reports(newcomer, "login", since=mark)
    text = "a login behind the ping was not sent again after its pong"
    stage.check(28, again, text, "login", since=mark)


@situation(14, 28)
async def a_crash_after_a_user_has_reconnected_twice(stage: Stage) -> None:
    """The sidecar has seen all of it, and remembers only the first connection."""
    first = await stage.enter("again")
    await stage.confirmed()
    with stage.sidecar.disk_full():
        second = await stage.enter("again")
        await stage.leaves(first)
        third = await stage.enter("again")
        await stage.leaves(second)
        left = await stage.reports(second, "logout")
        stage.need(left and stage.reported(first, "logout"), "no logout came")
        stage.sidecar.crash()
    mark = await stage.start_sidecar()
    again = await stage.reports(third, "login", since=mark)
    stage.check(28, again, "a lost login was not sent again", "login", since=mark)
    await stage.check_never_offline(mark, third)


@situation(29)
async def a_gap_in_the_records(stage: Stage) -> None:
    """Records were deleted before the gateway could read them."""
    user, _ = await stage.enter("stays"), await stage.enter("lost")
    await stage.confirmed()
    with stage.sidecar.not_accepting():
        stage.sidecar.drop(stage.name)
        await stage.sidecar.pass_time(2 * stage.timeout_s)
        stage.sidecar.trim()
    mark = stage.tape.mark
    stage.need(await stage.linked(), "the gateway has no link")
    await _declared(stage, [user], "a gap", mark)


@situation(18, 29)
async def a_new_log(stage: Stage) -> None:
    """The sidecar comes back with an empty disk, and counts its records from 1."""
    user = await stage.enter("4714")
    await stage.confirmed()
    mark = await stage.restart_sidecar(new_log=True)
    await _declared(stage, [user], "a new log", mark)
    mark = stage.tape.mark
    await stage.sidecar.pass_time(stage.timeout_s + 1)
    stage.need(stage.ended(user, mark), "the silent user was not reported")
    what = "a record of a new log was taken for a repeat of the old one"
    stage.check(18, await stage.closed(user), what, "closed", since=mark)


@situation(29)
async def a_log_that_has_lost_its_end(stage: Stage) -> None:
    """`next` is not above the last seq that the gateway has seen."""
    user, silent = await stage.enter("stays"), await stage.enter("silent")
    seq = await stage.deliver(stage.silence_of(silent))
    stage.need(await stage.acked(seq, stage.began), "no ack came")
    await stage.confirmed()
    stage.sidecar.crash()
    stage.sidecar.lose_end(2)
    mark = await stage.start_sidecar()
    await _declared(stage, [user], "a log that has lost its end", mark)


@situation(29)
async def a_name_that_was_forgotten(stage: Stage) -> None:
    """`known` is false at a reconnect."""
    user = await stage.enter("stays")
    await stage.confirmed()
    stage.sidecar.crash()
    stage.sidecar.forget(stage.name)
    mark = await stage.start_sidecar()
    await _declared(stage, [user], "known: false", mark)


@situation(4, 29)
async def small_limits(stage: Stage) -> None:
    """Many connections are declared at once to a sidecar that takes little at a time."""
    names = [f"member-{n}".ljust(32, "-") for n in range(CROWD)]
    users = await stage.enter_all(names)
    await stage.confirmed()
    usual = ConversationLimits()
    stage.sidecar.limit(max_batch=MAX_BATCH, max_frame=usual.max_frame_bytes)
    mark = await stage.restart_sidecar(new_log=True)
    await _declared(stage, users, "a new log with a small max_batch", mark)
    stage.sidecar.crash()
    for user in users:
        await stage.served(user)
    stage.sidecar.limit(max_batch=usual.max_batch, max_frame=MAX_FRAME)
    mark = await stage.start_sidecar()
    await stage.until(lambda: stage.reported_all(users, mark))
    errors = stage.tape.sent_since(mark, "error")
    large = [seen for seen in errors if seen.frame[1]["code"] == "too-large"]
    stage.check(4, not large, "frames were refused", "within the limits", since=mark)
    stage.sidecar.limit(max_batch=usual.max_batch, max_frame=usual.max_frame_bytes)
    stage.sidecar.crash()
    stage.sidecar.start()
    stage.need(await stage.linked(), "the gateway has no link")
