"""Situations of connections and their activity."""

from typing import Final

import trio

from liveness.lab.conformance.stage import Stage, situation
from liveness.lab.conformance.staged_sidecar import FLUSH_S, SOON_S
from liveness.lab.conformance.tape import ACTIVITY, EVENTS

TALK_S: Final = 1.2
LINE_EVERY_S: Final = 0.02
# An activity may be sent after 0.7 flushes, and one more at each end of the talk.
MOST_ACTIVITIES: Final = round(TALK_S / (0.7 * FLUSH_S)) + 2
# A flush may come between activity and logout of one user, and hardly of so many.
MOST_LEAVERS: Final = 10
# The sidecar calls a gateway mute after its `ping` and once more `ping` or 1 s, if longer.
LEAST_LATE_S: Final = 1.0
LONGEST_PING_S: Final = 5.0  # no run waits longer
# The most from an ack to the end of its connection, as this run sees them. A gateway that
# closes first sends both at once, over two sockets.
ACK_BEFORE_S: Final = 0.15


@situation(1, 30, 31)
async def the_first_hello(stage: Stage) -> None:
    """Its statements about its clock, and about its own silence."""
    stage.since = 0
    hello = stage.seen("hello")[0].options
    stage.check(30, "clock" in hello, "hello has no clock", "clock in hello")
    ping = hello.get("ping")
    if ping is None:
        stage.check(31, False, "hello has no ping", "a promise")
    elif ping > stage.timeout_s / 4:
        text = f"ping {ping:g} with a timeout of {stage.timeout_s:g} s"
        stage.check(31, False, text, "a quarter of the timeout, or less")
    elif ping > LONGEST_PING_S:
        stage.findings.leave_out(f"its ping of {ping:g} s takes too long", 31)
    else:
        stage.mark()
        most_s = ping + max(ping, LEAST_LATE_S)
        names = ("ping", *EVENTS, "ack", "where", "list")
        came = await stage.until(lambda: stage.seen(*names), most_s)
        text = f"nothing on link {stage.link} for {most_s:g} s"
        stage.since = 0
        stage.check(31, came, text, f"a frame each {ping:g} s")


@situation(2, 3, 9, 11, 14, 27)
async def users_log_in_and_out(stage: Stage) -> None:
    """One logs out, one just closes the connection."""
    ada = await stage.joins("ada")
    await stage.check_report(9, ada, "no login of a user who has logged in", "login")
    await ada.connection.close()
    leaver, breaker = await stage.enter("leaver"), await stage.enter("breaker")
    pinged = await stage.until(lambda: stage.seen("ping"))
    stage.check(27, pinged, "no ping behind what it reported", "ping")
    await leaver.ping()
    await stage.until(lambda: stage.seen(*ACTIVITY))
    await leaver.connection.send({"logout": 1})
    what = "no logout of a user who has logged out"
    await stage.check_report(14, leaver, what, "logout")
    await breaker.connection.close()
    what = "no logout of a connection that has closed"
    await stage.check_report(14, breaker, what, "logout")
    named = await stage.joins("zoé")
    what = "no login, in UTF-8, of a user whose name is not ASCII"
    await stage.check_report(2, named, what, "login")


@situation(12, 13, 16, 17, 19)
async def one_talks_and_one_is_silent(stage: Stage) -> None:
    """Activity is collected, and only for the user who talks."""
    talker, silent = await stage.enter("4711"), await stage.enter("4712")
    stage.mark()
    began = trio.current_time()
    for _ in range(round(TALK_S / LINE_EVERY_S)):
        await talker.ping()
        await trio.sleep(LINE_EVERY_S)
    await stage.quiet(2)
    count = len(stage.reported_of(talker, *ACTIVITY))
    took_s = trio.current_time() - began  # longer than planned if the machine is busy
    most = MOST_ACTIVITIES * took_s / TALK_S
    talk = f"{count} activities of a conn in {took_s:.1f} s"
    expected = f"at most {most:.0f}: once a flush of {FLUSH_S:g} s"
    stage.check(12, 0 < count <= most, talk, expected)
    said = stage.reported_of(silent, *ACTIVITY)
    stage.check(13, not said, "activity of a user who said nothing", "none")
    await stage.sidecar.pass_time(stage.timeout_s / 2)
    stage.mark()
    await talker.ping()
    await stage.need_report(talker, *ACTIVITY)
    await stage.sidecar.pass_time(stage.timeout_s / 2 + 1)
    ended = stage.ended(silent)
    stage.need(ended, "the silent user was not reported")
    await stage.check_closed(17, silent, "a silent user stays connected")
    stage.check(16, talker.is_open, "the other user was closed", "open")
    await stage.check_acked(19, max(ended), "a record")


@situation(15)
async def activity_behind_the_end(stage: Stage) -> None:
    """Activity is collected when users log out, and when a record ends a session."""
    for number in range(MOST_LEAVERS):
        leaver = await stage.enter(f"leaver-{number}")
        stage.mark()
        await leaver.connection.send(*[{"ping": 1}] * 5, {"logout": 1})
        await stage.need_report(leaver, "logout")
        if not stage.reported_of(leaver, *ACTIVITY):
            break  # at its logout its activity had not been flushed
    silent = await stage.enter("silent")
    pongs = silent.pongs
    await silent.ping()
    await stage.until(lambda: silent.pongs > pongs)
    await stage.sidecar.pass_time(stage.timeout_s + 1)
    await stage.acked(stage.sidecar.newest_seq, SOON_S / 2)
    await stage.quiet()
    stage.findings.passed.add(15)  # `FrameRules` finds activity after an end


@situation(14, 17)
async def activity_crosses_a_record(stage: Stage) -> None:
    """The sidecar reads it after the decision, and before it can send the record."""
    user = await stage.enter("crosses")
    with stage.sidecar.disk_full():
        await stage.sidecar.pass_time(stage.timeout_s + 1)
        stage.mark()
        await user.ping()
        await stage.need_report(user, *ACTIVITY)
        stage.need(user.uid in stage.sidecar.users, "activity opened no session")
    await stage.check_closed(17, user, "a silent user stays connected")
    what = "activity had opened a session again, and no logout ended it"
    await stage.check_report(14, user, what, "logout")


@situation(17, 16)
async def a_second_connection_of_a_user(stage: Stage) -> None:
    """The sidecar says `moved`, within the gateway."""
    older = await stage.enter("4713")
    newer = await stage.enter("4713")
    stage.need(older.conn != newer.conn, "both connections have one conn")
    await stage.need_end(older, "the moved of the older connection")
    await stage.check_closed(17, older, "the older connection stays open")
    stage.check(16, newer.is_open, "the newer connection was closed", "open")


@situation(17, 16, 19)
async def a_user_moves_to_another_gateway(stage: Stage) -> None:
    """Then it comes back, when the records of its first connection are old.

    The other gateway names it by an integer, and so does the record.
    """
    mover = await stage.enter("4714")
    stage.mark()
    async with stage.rival("gw-other") as send:
        await send("login", int(mover.uid), {"conn": 1})
        await stage.need_end(mover, "the moved")
        await stage.check_closed(17, mover, "a user who moved away stays open")
        await stage.check_acked(19, stage.sidecar.newest_seq, "a moved")
        back = await stage.enter("4714")
        await stage.quiet()
        stage.check(16, back.is_open, "the new connection was closed", "open")


@situation(19)
async def many_fall_silent_at_once(stage: Stage) -> None:
    """More records than fit into the window: each part waits for an ack."""
    users = await stage.enter_all([f"crowd-{n}" for n in range(50)])
    stage.mark()
    await stage.sidecar.pass_time(stage.timeout_s + 1)
    await stage.until(lambda: not any(user.is_open for user in users))
    reported = sum(bool(stage.ended(user)) for user in users)
    stage.need(reported, "the silent users were not reported")
    what = f"{reported} of {len(users)} records could be sent for want of acks"
    stage.check(19, reported == len(users), what, "acks of all records")
    for user in users:  # no ack came before its connections were closed
        for ack in stage.acks_of(max(stage.ended(user), default=2**63))[:1]:
            late_s = (user.closed_at or 0) - stage.tape.began - ack.at
            text = f"ack {ack.content} came {late_s:.2f} s before it closed a user"
            is_after = not user.is_open and late_s < ACK_BEFORE_S
            stage.check(19, is_after, text, "ack after closing")
