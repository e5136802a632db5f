"""Runs the demo as its command line says: checks that, shows it, ends all that it began."""

import os
import resource
import signal
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trio

from liveness.console.terminal import is_for_pictures, tell
from liveness.demo.picture import Picture
from liveness.demo.plans import joining_s
from liveness.demo.processes import ChildLost
from liveness.demo.screen import Plain, say, summary
from liveness.demo.script import ScriptError, Step, parsed
from liveness.demo.stage import MOST_GUESTS, Stage
from liveness.demo.tty import Terminal
from liveness.errors import LivenessError

USAGE: Final = 2
# Joining, a timeout, the flush and a second until somebody would be missed: with less
# time than that no silence is seen for certain.
LEAST_MORE_S: Final = 2.0
# All users share this process and each speaks a few times within its timeout; the
# connection of each is an open file here, and another in the gateway.
MOST_USERS_PER_TIMEOUT_S: Final = 500
OTHER_FILES: Final = 100


class Stopped(LivenessError):
    """Somebody ended the demo by a signal. Nothing of it is left behind."""


async def run(
    *,
    seconds: float,
    users: int,
    timeout: float,  # noqa: ASYNC109 - of a silence, not of this function
    script: str = "",
) -> int:
    """Runs the demo and shows what happens.

    Args:
        seconds: From the opening of the gateway to the account at the end.
        users: How many are simulated.
        timeout: The silence after which a user is offline, in seconds.
        script: What is made to happen, and when; see `script.py`.
    Returns:
        0 if everyone was reported when due, 1 if anyone was missed or reported early or
        falsely, 2 if these numbers do not go together or the script is none.
    Raises:
        ChildLost: Sidecar or gateway did not start, or ended; its last lines are printed.
        Stopped: By SIGTERM or SIGHUP.
    """
    try:
        steps = parsed(script, seconds=seconds)
    except ScriptError as error:
        why_not = str(error)
    else:
        why_not = _impossible(seconds, users, timeout)
    if why_not:
        tell(why_not)
        return USAGE
    await say(
        f"a sidecar, a chat gateway and {users} users, for {seconds:g} s: whoever is "
        f"silent for {timeout:g} s is offline"
    )
    is_picture = is_for_pictures(sys.stdout)
    terminal = Terminal(sys.stdout, sys.stdin) if is_picture else None
    show = Picture(terminal) if terminal else Plain()
    with TemporaryDirectory(prefix="liveness-demo-") as name:
        folder = Path(name)
        stage = Stage(folder, show, users=users, seconds=seconds, timeout_s=timeout)
        try:
            await _play(stage, steps, terminal)
        except* ChildLost:
            for child in (stage.sidecar, stage.gateway):
                if child.is_lost:
                    print(child.last_lines(), file=sys.stderr)
            raise
    await say(*summary(stage.referee, stage.director.done))
    return 1 if stage.referee.faults else 0


async def _play(stage: Stage, steps: list[Step], terminal: Terminal | None) -> None:
    """Lets it all happen, unless a signal comes."""
    async with trio.open_nursery() as nursery:
        await nursery.start(_mind_signals, terminal)
        with terminal or nullcontext():
            await stage.play(steps)
        nursery.cancel_scope.cancel()


async def _mind_signals(
    terminal: Terminal | None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Ends the demo from here, not where the interpreter just is, as it does itself."""
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        wanted.append(signal.SIGHUP)
    if terminal:
        wanted.append(signal.SIGTSTP)  # Ctrl-Z
    with trio.open_signal_receiver(*wanted) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            if number != signal.SIGTSTP:
                raise Stopped(f"ended by {signal.Signals(number).name}")
            assert terminal is not None
            terminal.pause(partial(os.kill, os.getpid(), signal.SIGSTOP))


def _impossible(seconds: float, users: int, timeout: float) -> str:
    """Why these numbers do not go together and what would; nothing if they do."""
    most_users = int(MOST_USERS_PER_TIMEOUT_S * timeout)
    if users > most_users:
        return (
            f"{users} users with a timeout of {timeout:g} s speak more often than one "
            f"process can read; use --users {most_users} or less, or a longer --timeout"
        )
    least_s = joining_s(users) + timeout + LEAST_MORE_S
    if seconds < least_s:
        return (
            f"{seconds:g} s are too short to show {users} users and a timeout of "
            f"{timeout:g} s; use --seconds {least_s:g} or more, or a shorter --timeout"
        )
    files = users + MOST_GUESTS + OTHER_FILES
    allowed, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files > most_files:
        return (
            f"{users} users need {files} open files here, and {most_files} are allowed; "
            "use fewer --users, or raise the limit (ulimit -Hn)"
        )
    # The gateway inherits it.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, files), most_files))
    return ""
