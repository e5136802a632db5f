"""Situations in which a link ends, or does not begin."""

from statistics import median
from typing import Final

import trio

from liveness.core.conversation import ConversationLimits
from liveness.lab.conformance.situation import situation
from liveness.lab.conformance.stage import LINK_S, Stage
from liveness.lab.conformance.tape import ENDED, OPENED, Seen
from liveness.lab.conformance.tcp_users import TcpUser

# A gateway that comes back within a second may be late by this: the machine may be busy.
BYE_S: Final = 1.0
LATE_S: Final = 0.5
# Pauses that are random and grow do not let so many links come within so long.
OVERLOADED_S: Final = 0.4
SLOWLY_S: Final = 2.0
MOST_LINKS: Final = 6
SLOW_CODES: Final = ("bad-hello", "unsupported-protocol", "not-allowed")
# A declaration of the crowd is some 10 KB; a socket takes some 200 KB.
CROWD: Final = 200
MOST_GAPS: Final = 60
GAP_EVERY_S: Final = 0.03  # logins are collected for some milliseconds
FULL_TIMES: Final = 4
MOST_ATTEMPTS: Final = 5
RETURNING: Final = 12
SMALL_BATCH: Final = 4
AWAY_S: Final = 1.2  # long enough for an age that is not 0
LONGEST_PAUSE_S: Final = 1.0  # after the end of a stream
# Of pauses that the machine alone makes different. Random ones over 0.4 s need three such
# spans after six breaks as a rule, and after 24 in all but one of 100,000 runs.
SAME_PAUSE_S: Final = 0.1
LEAST_SPREADS: Final = 3
MOST_BREAKS: Final = 24
# A pause of up to 1 s, and what the machine may add. Random pauses up to 2 s, 4 s, 8 s and
# then 10 s are all below that in one of 200,000 runs.
GROWN_S: Final = 1.5
MOST_ERRORS: Final = 9


async def witness(stage: Stage) -> TcpUser | None:
    """A user who stays connected; None if no users can connect."""
    return None if stage.address is None else await stage.enter("stays")


async def still_served(
    stage: Stage, user: TcpUser | None, while_: str, mark: int
) -> None:
    """Check that the gateway runs, and that a user stays connected and is answered."""
    if stage.has_ended:
        stage.check(24, False, f"it ended {while_}", "it serves on", since=mark)
    elif user is not None:
        served = await stage.served(user)
        what = f"a user was not served {while_}"
        stage.check(24, served, what, "each connection stays open", since=mark)


def links_since(stage: Stage, mark: int) -> list[Seen]:
    """The links that the gateway has made since a mark."""
    return stage.tape.received_since(mark, OPENED)


@situation(3)
async def the_welcome_takes_its_time(stage: Stage) -> None:
    """Users log in and talk between hello and welcome."""
    talker = await stage.enter("talker")
    mark = stage.tape.mark
    with stage.sidecar.disk_full():
        stage.sidecar.drop(stage.name)
        said = await stage.until(
            lambda: stage.tape.received_since(mark, "hello"), LINK_S
        )
        stage.need(said, "no hello came")
        await talker.ping()
        newcomer = await stage.joins("newcomer")
        await stage.quiet()
    stage.need(await stage.linked(), "the gateway has no link")
    came = await stage.until(lambda: stage.logins_of(newcomer.uid))
    stage.check(3, came, "no login after the welcome", "login", since=mark)


@situation(9, 19, 20, 24, 26)
async def the_link_breaks(stage: Stage) -> None:
    """A user logs in meanwhile."""
    user = await stage.enter("4715")
    mark = stage.tape.mark
    with stage.sidecar.not_accepting():
        stage.sidecar.drop(stage.name)
        await still_served(stage, user, "while the link was broken", mark)
        newcomer = await stage.joins("newcomer")
        await trio.sleep(AWAY_S)
    back = await stage.linked()
    stage.check(20, back, "no link after one had ended", "a link in a second or two")
    came = await stage.until(lambda: stage.logins_of(newcomer.uid))
    stage.need(came, "no login after the reconnect")
    (login, *_) = stage.logins_of(newcomer.uid)
    age = login.seen.options.get("age", 0)
    is_aged = isinstance(age, int | float) and AWAY_S / 2 <= age <= AWAY_S + LINK_S
    text = f"a login that was sent {AWAY_S:g} s or more late has age {age!r:.20}"
    stage.check(9, is_aged, text, f"at least {AWAY_S:g}", since=mark)


@situation(20, users=False)
async def the_link_breaks_again_and_again(stage: Stage) -> None:
    """The pauses differ, so that a thousand gateways do not all come back at once."""
    mark, pauses = stage.tape.mark, list[float]()
    while len(pauses) < MOST_BREAKS and _spreads(pauses) < LEAST_SPREADS:
        stage.sidecar.drop(stage.name)
        stage.need(await stage.linked(), "the gateway has no link")
        pauses.append(_latest_pause(stage))
    text = f"{len(pauses)} pauses of {min(pauses):.2f} to {max(pauses):.2f} s"
    is_random = _spreads(pauses) >= LEAST_SPREADS
    stage.check(20, is_random, text, "random ones", since=mark)
    is_short = median(pauses) < LONGEST_PAUSE_S + LATE_S
    expected = f"at most {LONGEST_PAUSE_S:g} s"
    stage.check(20, is_short, text, expected, since=mark)


def _latest_pause(stage: Stage) -> float:
    """Seconds from the end of the link before to the latest link."""
    ended, opened = (
        next(seen.at for seen in reversed(stage.tape.frames) if seen.name == name)
        for name in (ENDED, OPENED)
    )
    return opened - ended


def _spreads(pauses: list[float]) -> int:
    """How many spans of `SAME_PAUSE_S` hold all these pauses."""
    count, until = 0, -1.0
    for pause in sorted(pauses):
        if pause > until:
            count, until = count + 1, pause + SAME_PAUSE_S
    return count


@situation(20, users=False)
async def each_link_is_overloaded(stage: Stage) -> None:
    """It is welcomed, and ends by a fatal error, again and again."""
    mark, pauses = stage.tape.mark, list[float]()
    error = {"code": "overloaded", "message": "made by the script", "fatal": True}
    while len(pauses) < MOST_ERRORS and max(pauses, default=0.0) < GROWN_S:
        stage.sidecar.end_with(stage.name, ("error", {**error, "n": 1}))
        stage.need(await stage.linked(), "the gateway has no link")
        pauses.append(_latest_pause(stage))
    text = f"after {len(pauses)} errors behind a welcome no pause above {GROWN_S:g} s"
    has_grown = max(pauses) >= GROWN_S
    stage.check(20, has_grown, text, "pauses up to 1 s, 2 s, 4 s", since=mark)


@situation(14)
async def two_connections_of_a_user_wait_for_a_link(stage: Stage) -> None:
    """Of one age, if the gateway says no more: then their order tells which is newer.

    A gateway may round ages, and two connections of one moment lie on both sides of a step
    now and then, so this is tried until they have one age.
    """
    for attempt in range(MOST_ATTEMPTS):
        uid = await _log_in_twice(stage, f"twice-{attempt}")
        if len({login.seen.options.get("age") for login in stage.logins_of(uid)}) == 1:
            break


async def _log_in_twice(stage: Stage, name: str) -> str:
    with stage.sidecar.not_accepting():
        stage.sidecar.drop(stage.name)
        older, newer = await stage.joins(name), await stage.joins(name)
    stage.need(await stage.linked(), "the gateway has no link")
    await stage.until(lambda: not (older.is_open and newer.is_open))
    what = "of two logins that waited, the older connection's won"
    stage.check(14, newer.is_open, what, "logins in their order")
    return newer.uid


@situation(14)
async def a_user_reconnects_twice_without_a_link(stage: Stage) -> None:
    """Its second connection comes and goes before anything of it can be reported."""
    first = await stage.enter("again")
    await stage.confirmed()
    mark = stage.tape.mark
    with stage.sidecar.not_accepting():
        stage.sidecar.drop(stage.name)
        second = await stage.joins("again")
        await stage.leaves(first)
        third = await stage.joins("again")
        await stage.leaves(second)
    stage.need(await stage.linked(), "the gateway has no link")
    came = await stage.reports(first, "logout", since=mark)
    stage.need(came and stage.logins_of(third.uid)[1:], "no login and logout came")
    await stage.check_never_offline(mark, third)


@situation(14)
async def users_reconnect_without_a_link_in_several_batches(stage: Stage) -> None:
    """The last to come back is in the last batch of logins, and the first to be logged out.

    So it is offline if a gateway writes logouts while logins still wait.
    """
    names = [f"returns-{n}" for n in range(RETURNING)]
    older = [await stage.enter(name) for name in names]
    await stage.confirmed()
    usual = ConversationLimits()
    stage.sidecar.crash()
    newer = [await stage.joins(name) for name in names]
    for user in reversed(older):
        await stage.leaves(user)
    stage.sidecar.limit(max_batch=SMALL_BATCH, max_frame=usual.max_frame_bytes)
    mark = await stage.start_sidecar()
    left = await stage.until(lambda: stage.reported_all(older, mark, "logout"))
    text = "no logout of a connection that has ended without a link"
    stage.check(14, left, text, "logout", since=mark)
    await stage.check_never_offline(mark, *newer)
    stage.sidecar.limit(max_batch=usual.max_batch, max_frame=usual.max_frame_bytes)
    await stage.restart_sidecar()


@situation(21, 24, users=False)
async def the_sidecar_says_bye(stage: Stage) -> None:
    """And is back at once."""
    user = await witness(stage)
    mark = stage.tape.mark
    stage.sidecar.stop()
    stage.sidecar.start()
    back = await stage.until(lambda: links_since(stage, mark), LINK_S)
    stage.need(not stage.has_ended, "the gateway has ended")
    took_s = stage.tape.now - stage.tape.sent_since(mark, "bye")[0].at
    text = f"back {took_s:.1f} s after bye" if back else "not back after bye"
    stage.check(21, back and took_s < BYE_S + LATE_S, text, "within 1 s", since=mark)
    stage.need(await stage.linked(), "the gateway has no link")
    await still_served(stage, user, "after bye", mark)


@situation(7, 20, 24, users=False)
async def fatal_errors_that_pass(stage: Stage) -> None:
    """A code that is unknown; then `overloaded`, for a while."""
    user, mark = await witness(stage), stage.tape.mark
    error = {"code": "no-such-code", "message": "made by the script", "fatal": True}
    stage.sidecar.end_with(stage.name, ("error", {**error, "n": 1}))
    back = await stage.linked()
    text = "no link after a fatal error of an unknown code"
    stage.check(7, back, text, "a link after a pause", since=mark)
    stage.need(back, "the gateway has no link")
    mark = stage.tape.mark
    stage.sidecar.refuse(stage.name, "overloaded")
    with stage.sidecar.refusing(stage.name, "overloaded"):
        await trio.sleep(OVERLOADED_S)
        links = links_since(stage, mark)
        text = f"{len(links)} links within {OVERLOADED_S:g} s after overloaded"
        few = len(links) <= MOST_LINKS
        stage.check(20, few, text, "pauses up to 1 s, 2 s, 4 s", since=mark)
    back = await stage.linked()
    stage.check(
        20, back, "no link after overloaded", "a link after a pause", since=mark
    )
    await still_served(stage, user, "after overloaded", mark)


@situation(22, 24, users=False)
async def the_hello_is_refused(stage: Stage) -> None:
    """By codes that only a person can end."""
    user, mark = await witness(stage), stage.tape.mark
    with stage.sidecar.refusing(stage.name, *SLOW_CODES):
        stage.sidecar.drop(stage.name)
        refused = await stage.until(lambda: links_since(stage, mark), LINK_S)
        stage.need(refused, "no link came")
        await trio.sleep(SLOWLY_S)
        links = links_since(stage, mark)
        text = f"{len(links)} links within {SLOWLY_S:g} s after {SLOW_CODES[0]}"
        few = len(links) <= MOST_LINKS
        stage.check(22, few, text, "pauses that grow to 30 s", since=mark)
        await still_served(stage, user, "while its hello was refused", mark)
    back = await stage.linked()
    stage.need(back or not stage.has_ended, "the gateway has ended")
    stage.check(22, back, "it does not come back once it may", "a link", since=mark)


@situation(25)
async def users_are_lost_while_it_is_shut_out(stage: Stage) -> None:
    """One is offline, and one moves, before its hello is accepted again."""
    user, mover = await stage.enter("stays"), await stage.enter("moves")
    mark = stage.tape.mark
    async with stage.rival("gw-other") as send:
        with stage.sidecar.not_accepting():
            stage.sidecar.drop(stage.name)
            await send("login", mover.uid, {"conn": 1})
            await stage.sidecar.pass_time(2 * stage.timeout_s)
            stage.sidecar.refuse(stage.name, SLOW_CODES[0])
        refused = await stage.until(
            lambda: stage.tape.sent_since(mark, "error"), LINK_S
        )
    stage.need(refused and await stage.served(user), "the user was not served")
    stage.need(await stage.linked(), "the gateway has no link")
    (welcome, *_) = stage.tape.sent_since(mark, "welcome")
    declared = await stage.reports(user, "login", since=mark)
    text = "an open connection was not declared"
    stage.check(25, declared, text, "login", since=mark)
    came = await stage.until(lambda: stage.ended(mover, mark))
    stage.need(came, "the moved was not sent")
    closed = await stage.closed(mover)
    text = "a connection whose user has moved stays open"
    stage.check(25, closed, text, "closed", since=mark)
    await stage.quiet()
    text = f"an offline with a seq below next {welcome.frame[1]['next']} closed a user"
    stage.check(25, user.is_open, text, "open", since=mark)


@situation(5)
async def the_sidecar_does_not_read(stage: Stage) -> None:
    """The gateway writes until the socket takes no more; then a record comes."""
    users = await stage.enter_all([f"talker-{n}".ljust(32, "-") for n in range(CROWD)])
    mark, mover = stage.tape.mark, users[0]
    async with stage.rival("gw-other") as send:
        newest = stage.sidecar.newest_seq
        await send("login", [f"elsewhere-{n}" for n in range(MOST_GAPS)])
        await stage.until(lambda: stage.sidecar.newest_seq > newest)
        with stage.sidecar.not_reading_from(stage.name):
            await _fill(stage, stage.sidecar.newest_seq - MOST_GAPS)
            await send("login", mover.uid, {"conn": 1})
            came = await stage.until(lambda: stage.ended(mover, mark))
            stage.need(came, "the moved was not sent")
            closed = await stage.closed(mover)
            text = "a record was not acted on while its writes waited"
            stage.check(5, closed, text, "closed", since=mark)
            served = await stage.served(users[1])
            stage.check(
                5, served, "a user was not served meanwhile", "it is", since=mark
            )
            newcomer = await stage.joins("newcomer")
    came = await stage.until(lambda: stage.logins_of(newcomer.uid))
    stage.check(5, came, "what it collected did not come later", "login", since=mark)
    is_one = not links_since(stage, mark)
    stage.check(5, is_one, "the link ended", "it goes on", since=mark)


async def _fill(stage: Stage, after: int) -> None:
    """Have the gateway write until its socket takes no more: after a gap it declares."""
    before, same = -1, 0
    for seq in range(after + 1, after + MOST_GAPS):
        if same == FULL_TIMES:
            return
        gap = {"seq": seq, "kind": "gap", "first": seq, "until": seq + 1, "at": 1}
        stage.sidecar.send(stage.name, ("notices", (gap,)))
        await trio.sleep(GAP_EVERY_S)
        unread = stage.sidecar.unread_bytes(stage.name)
        same = same + 1 if unread == before else 0
        before = unread
