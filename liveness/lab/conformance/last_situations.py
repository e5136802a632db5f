"""Situations after which the gateway has no link, or is another process: the last ones."""

from typing import Final

from liveness.lab.conformance.link_situations import (
    links_since,
    still_served,
    witness,
)
from liveness.lab.conformance.situation import situation
from liveness.lab.conformance.stage import Stage

PASSIVE_S: Final = 3.0  # a gateway that answers `replaced` by a link makes it by then


@situation(23, 24, users=False)
async def another_process_takes_the_name(stage: Stage) -> None:
    """The link ends as `replaced`, and stays so."""
    user = await witness(stage)
    mark = stage.tape.mark
    async with stage.rival(stage.name):
        replaced = await stage.until(lambda: stage.tape.sent_since(mark, "error"))
        stage.need(replaced, "the link was not replaced")
        await still_served(stage, user, "after replaced", mark)
        stage.need(not stage.has_ended, "the gateway has ended")
        again = await stage.until(lambda: links_since(stage, mark), PASSIVE_S)
        text = f"a new link {stage.tape.now - stage.tape.since(mark)[0].at:.1f} s later"
        stage.check(23, not again, text, "none until a person acts", since=mark)
    await still_served(stage, user, "after replaced", mark)


@situation(10, 24, 26, process=True, link=False)
async def killed_and_started_without_a_sidecar(stage: Stage) -> None:
    """A user logs in before the first hello of the new process."""
    assert stage.process is not None
    if stage.is_linked:
        await stage.enter("before")
    older = {conn for conn in stage.frame_rules.conns if isinstance(conn, int)}
    stage.sidecar.crash()
    stage.start_process()
    mark = stage.tape.mark
    newcomer = await stage.joins("newcomer")
    await still_served(stage, newcomer, "before the sidecar was there", mark)
    stage.sidecar.start()
    stage.need(await stage.linked(), "the new process has no link")
    came = await stage.until(lambda: stage.logins_of(newcomer.uid))
    text = "no login of a user who came before the first hello"
    stage.check(26, came, text, "login after the hello", since=mark)
    user = await stage.enter("after")
    stage.need(older, "no conn is known of the process before")
    text = f"conn {user.conn}, and the process before had {min(older)} to {max(older)}"
    stage.check(10, user.conn not in older, text, "conns that never repeat", since=mark)
