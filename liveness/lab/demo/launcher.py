"""Runs the demo as the command line asks: checks the options, shows it, cleans up."""

import resource
import shutil
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from liveness.console.terminal import report_line
from liveness.errors import StartError
from liveness.lab.common.gateway_program import gateway_words
from liveness.lab.common.processes import (
    ProgramError,
    first_error,
    missing_package,
    missing_program,
)
from liveness.lab.common.signals import until_signal
from liveness.lab.demo.demo_host import MOST_GUESTS
from liveness.lab.demo.demo_run import DemoOptions, DemoRun
from liveness.lab.demo.picture import Picture, Terminal, can_take
from liveness.lab.demo.plain_lines import PlainLines, report, say
from liveness.lab.demo.plans import joining_s
from liveness.lab.demo.script import actions_of, parsed_script

USAGE: Final = 2
# Seconds that a run needs besides joining, a timeout and the gateway's flush: in them a
# missed offline is noticed. With several hosts twice: every reader of the cluster must have
# it.
LEAST_MORE_S: Final = 2.0
# All users share this process, and each writes several times within its timeout. Each
# connection is an open file here, and another in the gateway.
MOST_USERS_PER_TIMEOUT_S: Final = 500
OTHER_FILES: Final = 100
REDIS_PROGRAMS: Final = ("redis-server", "valkey-server")


async def run(options: DemoOptions) -> int:
    """Runs the demo and shows what happens.

    Returns:
        0 if every user was reported when due, 1 if one was missed or reported early or
        falsely, 2 if the options do not go together or the script is invalid.
    """
    hosts, seconds, actions = options.hosts, options.seconds, actions_of(options.hosts)
    try:
        steps = parsed_script(options.script, seconds=seconds, actions=actions)
        _check(options)
    except ValueError as error:
        report_line(str(error))
        return USAGE
    words = gateway_words(options.gateway) if options.gateway else []
    redis = found_redis() if hosts > 1 else ""
    what = f"{hosts} hosts with Redis" if redis else "a sidecar, a chat gateway"
    await say(
        f"{what} and {options.users} users, for {seconds:g} s:",
        f"a user silent for {options.timeout:g} s is offline",
    )
    has_terminal = can_take(sys.stdout, sys.stdin)
    terminal = Terminal(sys.stdout, sys.stdin) if has_terminal else None
    display = Picture(terminal) if terminal else PlainLines()
    with TemporaryDirectory(prefix="liveness-demo-") as folder:
        demo = DemoRun(Path(folder), display.add, options, redis, words)
        try:
            with terminal or nullcontext():
                await until_signal(partial(demo.run, steps, display.run))
        except* ProgramError as errors:
            lost = first_error(errors)
            assert isinstance(lost, ProgramError)
            print(lost.last_lines, file=sys.stderr)
            raise
    last = display.lines() if isinstance(display, PlainLines) else []
    await say(*last, *report(demo))
    return 1 if demo.faults or demo.faults_anywhere else 0


def _check(options: DemoOptions) -> None:
    """Check that these options go together, and allow as many open files."""
    users, timeout, hosts = options.users, options.timeout, options.hosts
    most_users = int(MOST_USERS_PER_TIMEOUT_S * timeout / hosts)
    if users > most_users:
        raise ValueError(
            f"{users} users with a timeout of {timeout:g} s write more often than one "
            f"process can read; use --users {most_users} or less, or a longer --timeout"
        )
    least_s = joining_s(users) + timeout + LEAST_MORE_S * min(hosts, 2)
    if options.seconds < least_s:
        raise ValueError(
            f"{options.seconds:g} s are too short to show {users} users and a timeout of "
            f"{timeout:g} s; use --seconds {least_s:g} or more, or a shorter --timeout"
        )
    # Old connections of a user that hops stay open for a while. The gateway inherits it.
    files = users * min(hosts, 3) + MOST_GUESTS + OTHER_FILES
    allowed, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(max(allowed, files), most_files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most_files))


def found_redis() -> str:
    """The path of redis-server, or of valkey-server."""
    path = next(filter(None, map(shutil.which, REDIS_PROGRAMS)), "")
    problem = missing_package("coredis", "cluster")
    if not path:
        problem = problem or missing_program(REDIS_PROGRAMS[0])
    if problem:
        raise StartError(f"the demo with several hosts cannot start: {problem}")
    return path
