"""Situations in which reports or records may be lost."""

from typing import Final

from liveness.lab.conformance.stage import Stage, situation
from liveness.lab.conformance.tape import ACTIVITY
from liveness.lab.conformance.tcp_user import TcpUser

# Connections in one batch of logins have one age, so these batches stay small. Those of
# activity become large: with the longest names that the users' protocol allows, larger than
# the smallest frame that an operator can set.
CROWD: Final = 240
MAX_BATCH: Final = 10
MAX_FRAME: Final = 8_192


async def _check_declared(stage: Stage, users: list[TcpUser], why: str) -> None:
    missing = len(await stage.all_reported(users, "login"))
    text = f"{missing} of {len(users)} connections were not declared after {why}"
    stage.check(29, not missing, text, "login of each")


async def _check_again(stage: Stage, what: str, user: TcpUser, *events: str) -> None:
    await stage.check_report(28, user, f"{what} was not sent again", *events)


@situation(28)
async def a_crash_with_unconfirmed_reports(stage: Stage) -> None:
    """A login, a logout and activity, all without a pong after them."""
    leaver, talker = await stage.enter("leaver"), await stage.enter("talker")
    await stage.confirmed()
    with stage.sidecar.disk_full():
        await stage.quiet()
        stage.mark()
        newcomer = await stage.enter("newcomer")
        await leaver.connection.send({"logout": 1})
        await talker.ping()
        await stage.need_report(leaver, "logout")
        await stage.need_report(talker, *ACTIVITY)
        stage.sidecar.crash()
    await stage.start_sidecar()
    await _check_again(stage, "a lost login", newcomer, "login")
    await _check_again(stage, "a lost logout", leaver, "logout")
    await _check_again(stage, "lost activity", talker, "login", *ACTIVITY)


@situation(28)
async def a_crash_behind_a_pong(stage: Stage) -> None:
    """The pong of a ping that was sent before the newcomer's login."""
    await stage.enter("early")
    with stage.sidecar.disk_full():
        stage.mark()
        await stage.enter("covered")
        stage.need(await stage.until(lambda: stage.seen("ping")), "no ping came")
        ping = stage.seen("ping")[-1]
        newcomer = await stage.enter("newcomer")
        stage.sidecar.send(stage.name, ("pong", *ping.frame[1:]))
        await stage.quiet()
        stage.sidecar.crash()
    await stage.start_sidecar()
    await _check_again(stage, "a login behind the ping of a pong", newcomer, "login")


@situation(14, 28)
async def a_crash_after_a_user_has_reconnected_twice(stage: Stage) -> None:
    """The sidecar saw both, and remembers only the first connection."""
    first = await stage.enter("again")
    await stage.confirmed()
    with stage.sidecar.disk_full():
        second = await stage.enter("again")
        await stage.leaves(first)
        third = await stage.enter("again")
        await stage.leaves(second)
        await stage.need_report(first, "logout")
        await stage.need_report(second, "logout")
        stage.sidecar.crash()
    await stage.start_sidecar()
    await _check_again(stage, "a lost login", third, "login")
    await stage.check_never_offline(third)


@situation(29)
async def a_gap_in_the_records(stage: Stage) -> None:
    """Records were deleted before the gateway could read them."""
    user, _ = await stage.enter("stays"), await stage.enter("lost")
    await stage.confirmed()
    with stage.sidecar.shutting_out(stage.name):
        await stage.sidecar.pass_time(2 * stage.timeout_s)
        stage.sidecar.trim()
    stage.mark()
    await stage.need_link()
    await _check_declared(stage, [user], "a gap")


@situation(18, 29)
async def a_new_log(stage: Stage) -> None:
    """The sidecar comes back with an empty disk, and counts its records from 1."""
    user = await stage.enter("4714")
    await stage.confirmed()
    await stage.start_sidecar(new_log=True)
    await _check_declared(stage, [user], "a new log")
    stage.mark()
    await stage.sidecar.pass_time(stage.timeout_s + 1)
    stage.need(stage.ended(user), "the silent user was not reported")
    text = "a record of a new log was taken for a repeat of the old one"
    await stage.check_closed(18, user, text)


@situation(29)
async def a_log_that_has_lost_its_end(stage: Stage) -> None:
    """`next` is not above the last seq that the gateway has seen."""
    user, silent = await stage.enter("stays"), await stage.enter("silent")
    seq = stage.deliver(stage.silence_of(silent))
    stage.need(await stage.acked(seq), "no ack came")
    await stage.confirmed()
    stage.sidecar.crash()
    stage.sidecar.lose_end(2)
    await stage.start_sidecar()
    await _check_declared(stage, [user], "a log that has lost its end")


@situation(29)
async def a_name_that_was_forgotten(stage: Stage) -> None:
    """`known` is false at a reconnect."""
    user = await stage.enter("stays")
    await stage.confirmed()
    stage.sidecar.crash()
    stage.sidecar.forget(stage.name)
    await stage.start_sidecar()
    await _check_declared(stage, [user], "known: false")


@situation(4, 29)
async def small_limits(stage: Stage) -> None:
    """A gateway declares many connections at once to a sidecar with small limits."""
    names = [f"member-{n}".ljust(32, "-") for n in range(CROWD)]
    users = await stage.enter_all(names)
    await stage.confirmed()
    stage.sidecar.limit(max_batch=MAX_BATCH)
    await stage.start_sidecar(new_log=True)
    await _check_declared(stage, users, "a new log with a small max_batch")
    stage.sidecar.crash()
    for user in users:
        await stage.served(user)
    stage.sidecar.limit(max_frame_bytes=MAX_FRAME)
    await stage.start_sidecar()
    await stage.all_reported(users, *ACTIVITY, "login")
    errors = stage.seen("error", is_sent=True)
    large = [seen for seen in errors if seen.options["code"] == "too-large"]
    stage.check(4, not large, "frames were refused", "within the limits")
    stage.sidecar.limit()
    await stage.start_sidecar()
