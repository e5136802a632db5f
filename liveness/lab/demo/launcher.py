"""Runs the demo as the command line asks: checks the options, shows it, cleans up."""

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import trio

from liveness.console.gateway_program import gateway_words
from liveness.console.terminal import can_move_cursor, report_line
from liveness.errors import LivenessError
from liveness.lab.demo.demo_host import MOST_GUESTS
from liveness.lab.demo.demo_run import DemoRun, Run
from liveness.lab.demo.picture import Picture
from liveness.lab.demo.plain_lines import PlainLines, say, summary
from liveness.lab.demo.plans import joining_s
from liveness.lab.demo.processes import ChildLost
from liveness.lab.demo.redis_program import found_redis
from liveness.lab.demo.script import ScriptError, Step, actions_of, parsed_script
from liveness.lab.demo.tty import Terminal

USAGE: Final = 2
# A silence can only be seen after joining, a timeout, the gateway's flush, and a second in
# which a missed one would be noticed.
LEAST_MORE_S: Final = 2.0
# All users share this process, and each writes several times in its timeout. Each
# connection is an open file here, and another in the gateway.
MOST_USERS_PER_TIMEOUT_S: Final = 500
OTHER_FILES: Final = 100


class Stopped(LivenessError):
    """The demo was ended by a signal. Everything is cleaned up."""


async def run(
    *,
    seconds: float,
    users: int,
    timeout: float,  # noqa: ASYNC109 - of a silence, not of this function
    hosts: int = 1,
    script: str = "",
    gateway: str = "",
) -> int:
    """Runs the demo and shows what happens.

    Args:
        seconds: From the opening of the gateway to the summary.
        users: Simulated users.
        timeout: The silence after which a user is offline, in seconds.
        hosts: Sidecars and gateways; more than one need Redis.
        script: The actions, and when they happen; see `script.py`.
        gateway: The command of another gateway than ours; see `gateway_program`.
    Returns:
        0 if every user was reported when due, 1 if one was missed or reported early or
        falsely, 2 if the options do not go together or the script is invalid.
    Raises:
        ChildLost: A process did not start, or ended; its last lines are printed.
        ConfigError: The gateway's command cannot be run.
        StartError: There is no Redis, or it is too old, or coredis is missing.
        Stopped: By SIGTERM or SIGHUP.
    """
    try:
        steps = parsed_script(script, seconds=seconds, actions=actions_of(hosts))
    except ScriptError as error:
        problem = str(error)
    else:
        problem = _impossible(seconds, users, timeout, hosts)
    if problem:
        report_line(problem)
        return USAGE
    words = gateway_words(gateway) if gateway else []
    redis_server = found_redis() if hosts > 1 else ""
    what = f"{hosts} hosts with Redis" if hosts > 1 else "a sidecar, a chat gateway"
    await say(
        f"{what} and {users} users, for {seconds:g} s:",
        f"a user silent for {timeout:g} s is offline",
    )
    terminal = Terminal(sys.stdout, sys.stdin) if can_move_cursor(sys.stdout) else None
    with TemporaryDirectory(prefix="liveness-demo-") as name:
        demo, summarize = _made(
            Path(name),
            terminal,
            hosts=hosts,
            redis_server=redis_server,
            users=users,
            seconds=seconds,
            timeout_s=timeout,
            gateway_words=words,
        )
        try:
            await _until_signal(demo, steps, terminal)
        except* ChildLost:
            for child in demo.children:
                if child.is_lost:
                    print(child.last_lines(), file=sys.stderr)
            raise
    await say(*summarize())
    return 1 if demo.has_faults else 0


def _made(
    folder: Path,
    terminal: Terminal | None,
    *,
    hosts: int,
    redis_server: str,
    **options: Any,
) -> tuple[Run, Callable[[], Iterator[str]]]:
    """A run of the demo, and its summary."""
    if hosts == 1:
        display = Picture(terminal) if terminal else PlainLines()
        demo = DemoRun(folder, display, **options)
        return demo, lambda: summary(demo.referee, demo.director.done)
    # Imported when it is asked for: this needs the extra "cluster".
    from liveness.lab.demo.cluster_run import ClusterRun
    from liveness.lab.demo.hosts_lines import HostsLines, hosts_summary
    from liveness.lab.demo.hosts_picture import HostsPicture

    show = HostsPicture(terminal) if terminal else HostsLines()
    cluster = ClusterRun(
        folder, show, hosts=hosts, redis_server=redis_server, **options
    )
    return cluster, lambda: hosts_summary(cluster)


async def _until_signal(
    demo: Run, steps: list[Step], terminal: Terminal | None
) -> None:
    """Runs the demo to its end, or until a signal."""
    async with trio.open_nursery() as nursery:
        await nursery.start(_handle_signals, terminal)
        with terminal or nullcontext():
            await demo.run(steps)
        nursery.cancel_scope.cancel()


async def _handle_signals(
    terminal: Terminal | None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Ends the demo from this task; Python would raise KeyboardInterrupt anywhere."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored under nohup
        numbers.append(signal.SIGHUP)
    if terminal:
        numbers.append(signal.SIGTSTP)  # Ctrl-Z
    with trio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            if number != signal.SIGTSTP:
                raise Stopped(f"ended by {signal.Signals(number).name}")
            assert terminal is not None
            terminal.pause(partial(os.kill, os.getpid(), signal.SIGSTOP))


def _impossible(seconds: float, users: int, timeout: float, hosts: int) -> str:
    """Why these numbers do not go together, and what to do; "" if they do."""
    most_users = int(MOST_USERS_PER_TIMEOUT_S * timeout / hosts)
    if users > most_users:
        return (
            f"{users} users with a timeout of {timeout:g} s write more often than one "
            f"process can read; use --users {most_users} or less, or a longer --timeout"
        )
    least_s = joining_s(users) + timeout + LEAST_MORE_S
    if hosts > 1:
        least_s += (
            LEAST_MORE_S  # as long again, until every reader of the cluster knows
        )
    if seconds < least_s:
        return (
            f"{seconds:g} s are too short to show {users} users and a timeout of "
            f"{timeout:g} s; use --seconds {least_s:g} or more, or a shorter --timeout"
        )
    # Of a user that hops, old connections stay open for a while.
    files = users * min(hosts, 3) + MOST_GUESTS + OTHER_FILES
    allowed, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files > most_files:
        return (
            f"{users} users need {files} open files here, and {most_files} are allowed; "
            "use fewer --users, or raise the limit (ulimit -Hn)"
        )
    # The gateway inherits it.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, files), most_files))
    return ""
