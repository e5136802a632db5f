"""Situations of connections and their activity."""

from typing import Final

import trio

from liveness.lab.conformance.situation import situation
from liveness.lab.conformance.stage import FLUSH_S, SOON_S, Stage
from liveness.lab.conformance.tape import ACTIVITY

TALK_S: Final = 1.2
LINE_EVERY_S: Final = 0.02
# An activity may be sent after 0.7 flushes, and one more at each end of the talk.
MOST_ACTIVITIES: Final = round(TALK_S / (0.7 * FLUSH_S)) + 2
# The sidecar calls a gateway mute after its `ping` and the larger of that and 1 s.
LEAST_LATE_S: Final = 1.0
LONGEST_PING_S: Final = 5.0  # that a run waits for
# Between an ack and the end of the connection that this run sees: both come at once from
# a gateway that handles first, over two sockets.
ACK_BEFORE_S: Final = 0.15


@situation(1, 30, 31, users=False)
async def the_first_hello(stage: Stage) -> None:
    """What it says of its clock, and of its own silence."""
    (hello, *_) = stage.tape.received_since(0, "hello")
    options = hello.frame[1]
    stage.check(30, "clock" in options, "hello has no clock", "clock in hello", since=0)
    ping = options.get("ping")
    if ping is None:
        stage.check(31, False, "hello has no ping", "a promise", since=0)
    elif ping > stage.timeout_s / 4:
        text = f"ping {ping:g} with a timeout of {stage.timeout_s:g} s"
        stage.check(31, False, text, "a quarter of the timeout, or less", since=0)
    elif ping > LONGEST_PING_S:
        why = f"its ping of {ping:g} s takes too long"
        stage.findings.untried.setdefault(31, []).append(why)
    else:
        await _promise_kept(stage, ping)


async def _promise_kept(stage: Stage, ping_s: float) -> None:
    most_s = ping_s + max(ping_s, LEAST_LATE_S)
    mark, link = stage.tape.mark, stage.link
    names = ("ping", "keepalive", "message", "login", "logout", "ack", "where", "list")
    came = await stage.until(lambda: stage.tape.received_since(mark, *names), most_s)
    stage.check(
        31,
        came,
        f"nothing on link {link} for {most_s:g} s",
        f"a frame each {ping_s:g} s",
        since=0,
    )


@situation(2, 3, 9, 11, 14, 27)
async def users_log_in_and_out(stage: Stage) -> None:
    """One says so, one hangs up."""
    mark = stage.tape.mark
    ada = await stage.joins("ada")
    came = await stage.until(lambda: stage.logins_of(ada.uid))
    stage.check(9, came, "no login of a user who has logged in", "login with its conn")
    await ada.close()
    leaver, breaker = await stage.enter("leaver"), await stage.enter("breaker")
    pinged = await stage.until(lambda: stage.tape.received_since(mark, "ping"))
    stage.check(27, pinged, "no ping behind what it reported", "ping")
    await leaver.ping()
    await stage.until(lambda: stage.tape.received_since(mark, *ACTIVITY))
    await leaver.send({"logout": 1})
    reported = await stage.reports(leaver, "logout")
    stage.check(14, reported, "no logout of a user who has logged out", "logout")
    await breaker.close()
    reported = await stage.reports(breaker, "logout")
    stage.check(14, reported, "no logout of a connection that has closed", "logout")
    named = await stage.joins("zoé")
    came = await stage.until(lambda: stage.logins_of(named.uid))
    text = "no login of a user whose name is not ASCII"
    stage.check(2, came, text, f"login of {named.uid}, in UTF-8")


@situation(12, 13, 16, 17, 19)
async def one_talks_and_one_is_silent(stage: Stage) -> None:
    """Activity is collected, and only of the one who talks."""
    talker, silent = await stage.enter("4711"), await stage.enter("4712")
    mark, began = stage.tape.mark, trio.current_time()
    for _ in range(round(TALK_S / LINE_EVERY_S)):
        await talker.ping()
        await trio.sleep(LINE_EVERY_S)
    await stage.quiet(2)
    count = len(stage.reported(talker, *ACTIVITY, since=mark))
    took_s = trio.current_time() - began  # longer than planned if the machine is busy
    most = MOST_ACTIVITIES * took_s / TALK_S
    expected = f"at most {most:.0f}: once a flush of {FLUSH_S:g} s"
    talk = f"{count} activities of a conn in {took_s:.1f} s"
    stage.check(12, 0 < count <= most, talk, expected, since=mark)
    said = stage.reported(silent, *ACTIVITY, since=mark)
    stage.check(13, not said, "activity of a user who said nothing", "none", since=mark)
    await stage.sidecar.pass_time(stage.timeout_s / 2)
    mark = stage.tape.mark
    await talker.ping()
    stage.need(await stage.reports(talker, *ACTIVITY, since=mark), "no activity came")
    await stage.sidecar.pass_time(stage.timeout_s / 2 + 1)
    ended = stage.ended(silent, mark)
    stage.need(ended, "the silent user was not reported")
    closed = await stage.closed(silent)
    stage.check(17, closed, "a silent user stays connected", "closed", since=mark)
    stage.check(16, talker.is_open, "the other user was closed", "open", since=mark)
    acked = await stage.acked(max(ended), mark)
    stage.check(19, acked, "no ack of a record", f"ack {max(ended)}", since=mark)


@situation(15)
async def activity_behind_the_end(stage: Stage) -> None:
    """Activity is collected when a user logs out, and when a record ends it."""
    leaver, silent = await stage.enter("leaver"), await stage.enter("silent")
    await leaver.send(*[{"ping": 1}] * 5, {"logout": 1})
    mark = stage.tape.mark
    pongs = silent.pongs
    await silent.ping()
    await stage.until(lambda: silent.pongs > pongs)
    await stage.sidecar.pass_time(stage.timeout_s + 1)
    stage.need(await stage.reports(leaver, "logout"), "no logout came")
    await stage.acked(stage.sidecar.newest_seq, mark, SOON_S / 2)
    await stage.quiet()
    stage.findings.passed.add(15)  # `FrameRules` finds what comes behind an end


@situation(14, 17)
async def activity_crosses_a_record(stage: Stage) -> None:
    """It is read after the decision, and before the record can be sent."""
    user = await stage.enter("crosses")
    with stage.sidecar.disk_full():
        await stage.sidecar.pass_time(stage.timeout_s + 1)
        mark = stage.tape.mark
        await user.ping()
        spoke = await stage.reports(user, *ACTIVITY, since=mark)
        stage.need(spoke and user.uid in stage.sidecar.users, "no activity came")
    closed = await stage.closed(user)
    stage.check(17, closed, "a silent user stays connected", "closed", since=mark)
    reported = await stage.reports(user, "logout", since=mark)
    text = "activity had opened a session again, and no logout ended it"
    stage.check(14, reported, text, "logout behind the record", since=mark)


@situation(17, 16)
async def a_second_connection_of_a_user(stage: Stage) -> None:
    """The sidecar says `moved`, within the gateway."""
    older = await stage.enter("4713")
    newer = await stage.enter("4713")
    stage.need(older.conn != newer.conn, "both connections have one conn")
    came = await stage.until(lambda: stage.ended(older, stage.began))
    stage.need(came, "the older connection was not reported")
    closed = await stage.closed(older)
    stage.check(17, closed, "the older connection stays open", "moved: closed")
    stage.check(16, newer.is_open, "the newer connection was closed", "open")


@situation(17, 16, 19)
async def a_user_moves_to_another_gateway(stage: Stage) -> None:
    """And comes back, when the records of its first connection are old.

    The other gateway names it by an integer, and so does the record.
    """
    mover = await stage.enter("4714")
    mark = stage.tape.mark
    async with stage.rival("gw-other") as send:
        await send("login", int(mover.uid), {"conn": 1})
        reported = await stage.until(lambda: stage.ended(mover, mark))
        stage.need(reported, "the moved was not sent")
        closed = await stage.closed(mover)
        stage.check(
            17, closed, "a user who moved away stays open", "closed", since=mark
        )
        seq = stage.sidecar.newest_seq
        acked = await stage.acked(seq, mark)
        stage.check(19, acked, "no ack of a moved", f"ack {seq}", since=mark)
        back = await stage.enter("4714")
        await stage.quiet()
        stage.check(
            16, back.is_open, "the new connection was closed", "open", since=mark
        )


@situation(19)
async def many_fall_silent_at_once(stage: Stage) -> None:
    """More than the window holds: each part waits for an ack."""
    users = await stage.enter_all([f"crowd-{n}" for n in range(50)])
    mark = stage.tape.mark
    await stage.sidecar.pass_time(stage.timeout_s + 1)
    await stage.until(lambda: not any(user.is_open for user in users))
    reported = sum(bool(stage.ended(user, mark)) for user in users)
    stage.need(reported, "the silent users were not reported")
    what = f"{reported} of {len(users)} records could be sent for want of acks"
    stage.check(19, reported == len(users), what, "acks of all records", since=mark)
    _acked_after_closing(stage, mark)


def _acked_after_closing(stage: Stage, mark: int) -> None:
    """Whether no ack came before the connections that it covers were closed."""
    ended: dict[object, int] = {}
    for seen in stage.tape.sent_since(mark, "notices"):
        ended |= {record["conn"]: record["seq"] for record in seen.frame[1]}
    for user in stage.users:
        for ack in stage.acks_since(mark):
            if user.conn in ended and ack.frame[1] >= ended[user.conn]:
                late_s = (user.closed_at or 0) - stage.tape.began - ack.at
                text = f"ack {ack.frame[1]} came {late_s:.2f} s before it closed a user"
                is_after = user.closed_at is not None and late_s < ACK_BEFORE_S
                stage.check(19, is_after, text, "ack after closing", since=mark)
                break
