"""Situations in which a link ends, or does not begin."""

from collections.abc import Callable
from statistics import median
from typing import Final

import trio

from liveness.core.wire.framing import encode
from liveness.lab.conformance.frame_rules import BY_SCRIPT
from liveness.lab.conformance.stage import LINK_S, Stage, situation
from liveness.lab.conformance.tape import ENDED, OPENED
from liveness.lab.conformance.tcp_user import TcpUser

# Added to the second within which a gateway must be back: the machine may be busy.
BYE_S: Final = 1.0
LATE_S: Final = 0.5
# A gateway with growing random pauses makes no more than `MOST_LINKS` within `SLOWLY_S`.
OVERLOADED_S: Final = 0.4
SLOWLY_S: Final = 2.0
MOST_LINKS: Final = 6
SLOW_CODES: Final = ("bad-hello", "unsupported-protocol", "not-allowed")
# A declaration of the crowd is some 10 KB; a socket takes some 200 KB.
CROWD: Final = 200
GAP_EVERY_S: Final = 0.03  # logins are collected for some milliseconds
FULL_TIMES: Final = 4
MOST_ATTEMPTS: Final = 5
RETURNING: Final = 12
SMALL_BATCH: Final = 4
AWAY_S: Final = 1.2  # long enough for an age that is not 0
LONGEST_PAUSE_S: Final = 1.0  # after the end of a stream
# The machine alone makes pauses differ by less than this. Random ones over 0.4 s need three
# such spans, mostly after six breaks, and after 24 in all but one of 100,000 runs.
SAME_PAUSE_S: Final = 0.1
LEAST_SPREADS: Final = 3
MOST_BREAKS: Final = 24
# A pause of up to 1 s, and what the machine may add. Random pauses of up to 2 s, 4 s, 8 s
# and then 10 s are all below this in one of 200,000 runs.
GROWN_S: Final = 1.5
MOST_ERRORS: Final = 9
PASSIVE_S: Final = 3.0  # a gateway that reconnects after `replaced` does so by then


async def witness(stage: Stage) -> TcpUser:
    """A user who stays connected, from the mark on."""
    user = await stage.enter("stays")
    stage.mark()
    return user


async def still_served(stage: Stage, user: TcpUser, while_: str) -> None:
    """Check that the gateway runs, and that a user stays connected and is answered."""
    if stage.has_ended:
        stage.check(24, False, f"it ended {while_}", "it serves on")
    else:
        await stage.check_served(24, user, f"a user was not served {while_}")


def end_by_error(stage: Stage, code: str) -> None:
    error = {"code": code, "message": BY_SCRIPT, "fatal": True, "n": 1}
    stage.sidecar.drop(stage.name, encode(("error", error)))


@situation(3)
async def the_welcome_takes_its_time(stage: Stage) -> None:
    """Users log in and talk between hello and welcome."""
    talker = await stage.enter("talker")
    stage.mark()
    with stage.sidecar.disk_full():
        stage.sidecar.drop(stage.name)
        said = await stage.until(lambda: stage.seen("hello"), LINK_S)
        stage.need(said, "no hello came")
        await talker.ping()
        newcomer = await stage.joins("newcomer")
        await stage.quiet()
    await stage.need_link()
    await stage.check_report(3, newcomer, "no login after the welcome", "login")


@situation(9, 19, 20, 24, 26)
async def the_link_breaks(stage: Stage) -> None:
    """A user logs in before the gateway is back."""
    user = await witness(stage)
    with stage.sidecar.shutting_out(stage.name):
        await still_served(stage, user, "while the link was broken")
        newcomer = await stage.joins("newcomer")
        await trio.sleep(AWAY_S)
    await stage.check_linked(20, "no link after one had ended")
    await stage.need_report(newcomer, "login")
    age = stage.reported_of(newcomer, "login")[0].seen.options.get("age", 0)
    is_aged = isinstance(age, int | float) and AWAY_S / 2 <= age <= AWAY_S + LINK_S
    text = f"a login that was sent {AWAY_S:g} s or more late has age {age!r:.20}"
    stage.check(9, is_aged, text, f"at least {AWAY_S:g}")


async def _pauses(
    stage: Stage,
    end_link: Callable[[], object],
    most: int,
    is_enough: Callable[[list[float]], bool],
) -> list[float]:
    """End the gateway's link again and again; the seconds after which it was back."""
    pauses = list[float]()
    while len(pauses) < most and not is_enough(pauses):
        end_link()
        await stage.need_link()
        ended, opened = (
            next(seen.at for seen in reversed(stage.tape.frames) if seen.name == name)
            for name in (ENDED, OPENED)
        )
        pauses.append(opened - ended)
    return pauses


@situation(20)
async def the_link_breaks_again_and_again(stage: Stage) -> None:
    """The pauses differ, so that a thousand gateways do not all come back at once."""
    pauses = await _pauses(
        stage, lambda: stage.sidecar.drop(stage.name), MOST_BREAKS, _are_random
    )
    text = f"{len(pauses)} pauses of {min(pauses):.2f} to {max(pauses):.2f} s"
    stage.check(20, _are_random(pauses), text, "random ones")
    is_short = median(pauses) < LONGEST_PAUSE_S + LATE_S
    stage.check(20, is_short, text, f"at most {LONGEST_PAUSE_S:g} s")


def _are_random(pauses: list[float]) -> bool:
    """Whether these pauses do not fit into `LEAST_SPREADS` spans of `SAME_PAUSE_S`."""
    count, until = 0, -1.0
    for pause in sorted(pauses):
        if pause > until:
            count, until = count + 1, pause + SAME_PAUSE_S
    return count >= LEAST_SPREADS


@situation(20)
async def each_link_is_overloaded(stage: Stage) -> None:
    """It is welcomed, and ends by a fatal error, again and again."""
    pauses = await _pauses(
        stage, lambda: end_by_error(stage, "overloaded"), MOST_ERRORS, _have_grown
    )
    text = f"after {len(pauses)} errors behind a welcome no pause above {GROWN_S:g} s"
    stage.check(20, _have_grown(pauses), text, "pauses up to 1 s, 2 s, 4 s")


def _have_grown(pauses: list[float]) -> bool:
    return max(pauses, default=0.0) >= GROWN_S


@situation(14)
async def two_connections_of_a_user_wait_for_a_link(stage: Stage) -> None:
    """If the gateway states only ages, both have the same: their order shows the newer.

    A gateway may round ages, so two connections of one moment sometimes get two ages.
    This is repeated until they have the same.
    """
    for attempt in range(MOST_ATTEMPTS):
        with stage.sidecar.shutting_out(stage.name):
            older, newer = [await stage.joins(f"twice-{attempt}") for _ in range(2)]
        await stage.need_link()
        await stage.until_closed(older, newer)
        what = "of two logins that waited, the older connection's won"
        stage.check(14, newer.is_open, what, "logins in their order")
        logins = stage.reported_of(newer, "login")
        if len({login.seen.options.get("age") for login in logins}) == 1:
            break


@situation(14)
async def a_user_reconnects_twice_without_a_link(stage: Stage) -> None:
    """Its second connection begins and ends before the gateway can report either."""
    first = await stage.enter("again")
    await stage.confirmed()
    with stage.sidecar.shutting_out(stage.name):
        second = await stage.joins("again")
        await stage.leaves(first)
        third = await stage.joins("again")
        await stage.leaves(second)
    await stage.need_link()
    await stage.need_report(first, "logout")
    await stage.need_report(third, "login")
    await stage.check_never_offline(third)


@situation(14)
async def users_reconnect_without_a_link_in_several_batches(stage: Stage) -> None:
    """The last to come back is in the last batch of logins, and the first to be logged out.

    A gateway that writes logouts while logins still wait would make it offline.
    """
    names = [f"returns-{n}" for n in range(RETURNING)]
    older = [await stage.enter(name) for name in names]
    await stage.confirmed()
    stage.sidecar.crash()
    newer = [await stage.joins(name) for name in names]
    for user in reversed(older):
        await stage.leaves(user)
    stage.sidecar.limit(max_batch=SMALL_BATCH)
    await stage.start_sidecar()
    missing = await stage.all_reported(older, "logout")
    text = "no logout of a connection that has ended without a link"
    stage.check(14, not missing, text, "logout")
    await stage.check_never_offline(*newer)
    stage.sidecar.limit()
    await stage.start_sidecar()


@situation(21, 24)
async def the_sidecar_says_bye(stage: Stage) -> None:
    """It is back at once."""
    user = await witness(stage)
    stage.sidecar.stop()
    stage.sidecar.start()
    back = await stage.until(lambda: stage.seen(OPENED), LINK_S)
    stage.need(not stage.has_ended, "the gateway has ended")
    took_s = stage.tape.now - stage.seen("bye", is_sent=True)[0].at
    text = f"back {took_s:.1f} s after bye" if back else "not back after bye"
    stage.check(21, back and took_s < BYE_S + LATE_S, text, "within 1 s")
    await stage.need_link()
    await still_served(stage, user, "after bye")


@situation(7, 20, 24)
async def fatal_errors_that_pass(stage: Stage) -> None:
    """A code that is unknown; then `overloaded`, for a while."""
    user = await witness(stage)
    end_by_error(stage, "no-such-code")
    await stage.check_linked(7, "no link after a fatal error of an unknown code")
    stage.mark()
    with stage.sidecar.refusing(stage.name, "overloaded"):
        stage.sidecar.refuse(stage.name, "overloaded")
        await _check_few_links(stage, 20, OVERLOADED_S, "overloaded")
    await stage.check_linked(20, "no link after overloaded")
    await still_served(stage, user, "after overloaded")


async def _check_few_links(stage: Stage, rule: int, seconds: float, code: str) -> None:
    """Check that the pauses grow while the gateway's hellos are refused."""
    await trio.sleep(seconds)
    links = len(stage.seen(OPENED))
    text = f"{links} links within {seconds:g} s after {code}"
    stage.check(rule, links <= MOST_LINKS, text, "pauses that grow")


@situation(22, 24)
async def the_hello_is_refused(stage: Stage) -> None:
    """The codes are those of faults that only an operator can correct."""
    user = await witness(stage)
    with stage.sidecar.refusing(stage.name, *SLOW_CODES):
        stage.sidecar.drop(stage.name)
        refused = await stage.until(lambda: stage.seen(OPENED), LINK_S)
        stage.need(refused, "no link came")
        await _check_few_links(stage, 22, SLOWLY_S, SLOW_CODES[0])
        await still_served(stage, user, "while its hello was refused")
    stage.need(not stage.has_ended, "the gateway has ended")
    await stage.check_linked(22, "it does not come back once it may")


@situation(25)
async def users_are_lost_while_it_is_shut_out(stage: Stage) -> None:
    """One is offline, and one moves, before its hello is accepted again."""
    user, mover = await stage.enter("stays"), await stage.enter("moves")
    stage.mark()
    async with stage.rival("gw-other") as send:
        with stage.sidecar.shutting_out(stage.name):
            await send("login", mover.uid, {"conn": 1})
            await stage.sidecar.pass_time(2 * stage.timeout_s)
            stage.sidecar.refuse(stage.name, SLOW_CODES[0])
        refused = await stage.until(lambda: stage.seen("error", is_sent=True), LINK_S)
    stage.need(refused and await stage.served(user), "the user was not served")
    await stage.need_link()
    following = stage.seen("welcome", is_sent=True)[0].options["next"]
    what = "an open connection was not declared"
    await stage.check_report(25, user, what, "login")
    await stage.need_end(mover, "the moved")
    await stage.check_closed(25, mover, "a connection whose user moved stays open")
    await stage.quiet()
    text = f"an offline with a seq below next {following} closed a user"
    stage.check(25, user.is_open, text, "open")


@situation(5)
async def the_sidecar_does_not_read(stage: Stage) -> None:
    """The gateway writes until the socket takes no more; then a record comes."""
    users = await stage.enter_all([f"talker-{n}".ljust(32, "-") for n in range(CROWD)])
    stage.mark()
    async with stage.rival("gw-other") as send:
        with stage.sidecar.not_reading_from(stage.name):
            await _fill(stage)
            await send("login", users[0].uid, {"conn": 1})
            await stage.need_end(users[0], "the moved")
            text = "a record was not acted on while its writes waited"
            await stage.check_closed(5, users[0], text)
            await stage.check_served(5, users[1], "a user was not served meanwhile")
            newcomer = await stage.joins("newcomer")
    what = "what it collected did not come later"
    await stage.check_report(5, newcomer, what, "login")
    stage.check(5, not stage.seen(OPENED), "the link ended", "it goes on")


async def _fill(stage: Stage) -> None:
    """Have the gateway write until its socket takes no more: after a gap it declares."""
    before, same = -1, 0
    while same < FULL_TIMES:
        seq = stage.sidecar.record_others(1)
        gap = {"seq": seq, "kind": "gap", "first": seq, "until": seq + 1, "at": 1}
        stage.sidecar.send(stage.name, ("notices", (gap,)))
        await trio.sleep(GAP_EVERY_S)
        unread = stage.sidecar.unread_bytes(stage.name)
        same = same + 1 if unread == before else 0
        before = unread


# --- played last: they leave no link, or another process ------------------------------


@situation(23, 24)
async def another_process_takes_the_name(stage: Stage) -> None:
    """The link ends as `replaced`, and the gateway must not reconnect."""
    user = await witness(stage)
    began = stage.tape.now
    async with stage.rival(stage.name):
        replaced = await stage.until(lambda: stage.seen("error", is_sent=True))
        stage.need(replaced, "the link was not replaced")
        await still_served(stage, user, "after replaced")
        stage.need(not stage.has_ended, "the gateway has ended")
        again = await stage.until(lambda: stage.seen(OPENED), PASSIVE_S)
        text = f"a new link {stage.tape.now - began:.1f} s later"
        stage.check(23, not again, text, "none until a person acts")
    await still_served(stage, user, "after replaced")


@situation(10, 24, 26, process=True)
async def killed_and_started_without_a_sidecar(stage: Stage) -> None:
    """A user logs in before the first hello of the new process."""
    if stage.is_linked:
        await stage.enter("before")
    older = {conn for conn in stage.frame_rules.conns if isinstance(conn, int)}
    stage.sidecar.crash()
    stage.start_process()
    stage.mark()
    newcomer = await stage.joins("newcomer")
    await still_served(stage, newcomer, "before the sidecar was there")
    stage.sidecar.start()
    stage.need(await stage.linked(), "the new process has no link")
    what = "no login of a user who came before the first hello"
    await stage.check_report(26, newcomer, what, "login")
    user = await stage.enter("after")
    stage.need(older, "no conn is known of the process before")
    text = f"conn {user.conn}, and the process before had {min(older)} to {max(older)}"
    stage.check(10, user.conn not in older, text, "conns that never repeat")
