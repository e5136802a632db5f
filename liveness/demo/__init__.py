"""The whole line at work: simulated users, a chat gateway, its sidecar, and a referee.

    users ── TCP ── gateway ── Unix socket ── sidecar, a process of its own
                       └──────── referee ────────┘

To write a gateway of your own, read `gateway.py`, then `sidecar.py`. The rest makes the
demo: `users.py` simulates users, `process.py` runs the sidecar, `stage.py` brings them
together, `referee.py` judges what is decided, `screen.py` shows it.
"""

import resource
import signal
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trio

from liveness.demo.process import last_lines, run_sidecar, socket_in
from liveness.demo.screen import say
from liveness.demo.sidecar import SidecarLost, connected
from liveness.demo.stage import MOST_GUESTS, NAME, Stage
from liveness.demo.users import joining_s
from liveness.errors import LivenessError

USAGE: Final = 2
# Joining, a timeout, the flush and a second until somebody would be missed: with less
# time than that no silence is seen for certain.
LEAST_MORE_S: Final = 2.0
# Users and gateway share this process: each user speaks a few times within its timeout,
# and both ends of each connection are open files here.
MOST_USERS_PER_TIMEOUT_S: Final = 500
OTHER_FILES: Final = 100


class Stopped(LivenessError):
    """Somebody ended the demo by a signal. Nothing of it is left behind."""


async def run(
    *,
    seconds: float,
    users: int,
    timeout: float,  # noqa: ASYNC109 - of a silence, not of this function
) -> int:
    """Runs the demo and prints what happens.

    Args:
        seconds: From the opening of the gateway to the account at the end.
        users: How many are simulated.
        timeout: The silence after which a user is offline, in seconds.
    Returns:
        0 if everyone was reported when due, 1 if anyone was missed or reported early or
        falsely, 2 if these numbers do not go together.
    Raises:
        SidecarLost: The sidecar did not start or has ended; its last lines are printed.
        Stopped: By SIGTERM or SIGHUP.
    """
    if why_not := _impossible(seconds, users, timeout):
        print("liveness:", why_not, file=sys.stderr)
        return USAGE
    await say(
        f"a sidecar, a chat gateway and {users} users, for {seconds:g} s: whoever is "
        f"silent for {timeout:g} s is offline"
    )
    with TemporaryDirectory(prefix="liveness-demo-") as name:
        folder = Path(name)
        try:
            stage = await _play(folder, seconds=seconds, users=users, timeout_s=timeout)
        except* SidecarLost:
            print(last_lines(folder), file=sys.stderr)
            raise
    await say(*stage.account)
    return 1 if stage.referee.faults else 0


async def _play(folder: Path, *, seconds: float, users: int, timeout_s: float) -> Stage:
    """Starts a sidecar in *folder*, lets the demo happen, and stops what it started."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal)
        start = partial(run_sidecar, folder, timeout_s=timeout_s)
        http: str = await nursery.start(start)
        path = socket_in(folder)
        async with connected(path, name=NAME, timeout_s=timeout_s) as sidecar:
            stage = Stage(sidecar, users=users, seconds=seconds, timeout_s=timeout_s)
            await stage.play(
                f"    see every record:  liveness watch --socket {path}",
                f"    see its metrics:   curl http://{http}/metrics",
            )
        nursery.cancel_scope.cancel()
    return stage


async def _stop_on_signal() -> None:
    """Ends the demo from here, not where the interpreter just is, as it does itself."""
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        wanted.append(signal.SIGHUP)
    with trio.open_signal_receiver(*wanted) as signals:
        async for number in signals:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise Stopped(f"ended by {signal.Signals(number).name}")


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
    files = 2 * (users + MOST_GUESTS) + OTHER_FILES
    allowed, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files > most_files:
        return (
            f"{users} users need {files} open files here, and {most_files} are allowed; "
            "use fewer --users, or raise the limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, files), most_files))
    return ""
