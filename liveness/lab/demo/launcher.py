"""Runs the demo as the command line asks: checks the options, shows it, cleans up."""

import importlib.util
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trio

from liveness.console.gateway_program import gateway_words
from liveness.console.terminal import report_line
from liveness.errors import LivenessError, StartError
from liveness.lab.common.processes import ProgramError, first_error
from liveness.lab.demo.demo_host import MOST_GUESTS
from liveness.lab.demo.demo_run import DemoOptions, DemoRun
from liveness.lab.demo.picture import Picture, Terminal, can_take
from liveness.lab.demo.plain_lines import PlainLines, report, say
from liveness.lab.demo.plans import joining_s
from liveness.lab.demo.script import ScriptError, actions_of, parsed_script

USAGE: Final = 2
# Seconds that a run needs besides joining, a timeout and the gateway's flush: in them a
# missed offline is noticed. With several hosts twice: every reader of the cluster must have
# it.
LEAST_MORE_S: Final = 2.0
# All users share this process, and each writes several times within its timeout. Each
# connection is an open file here, and another in the gateway.
MOST_USERS_PER_TIMEOUT_S: Final = 500
OTHER_FILES: Final = 100
LEAST_REDIS: Final = 7  # the first version with functions
REDIS_PROGRAMS: Final = ("redis-server", "valkey-server")


class Stopped(LivenessError):
    """The demo was ended by a signal. Everything is cleaned up."""


async def run(options: DemoOptions) -> int:
    """Runs the demo and shows what happens.

    Returns:
        0 if every user was reported when due, 1 if one was missed or reported early or
        falsely, 2 if the options do not go together or the script is invalid.
    Raises:
        ProgramError: A program did not start, or ended; its last lines are printed.
        ConfigError: The gateway's command cannot be run.
        StartError: There is no Redis, or it is too old, or coredis is missing.
        Stopped: By SIGTERM or SIGHUP.
    """
    hosts, seconds, actions = options.hosts, options.seconds, actions_of(options.hosts)
    try:
        steps = parsed_script(options.script, seconds=seconds, actions=actions)
    except ScriptError as error:
        problem = str(error)
    else:
        problem = _impossible(options)
    if problem:
        report_line(problem)
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
            await _until_signal(partial(demo.run, steps, display.run), terminal)
        except* ProgramError as errors:
            lost = first_error(errors)
            assert isinstance(lost, ProgramError)
            print(lost.last_lines, file=sys.stderr)
            raise
    last = display.lines() if isinstance(display, PlainLines) else []
    await say(*last, *report(demo))
    return 1 if demo.faults or demo.faults_anywhere else 0


async def _until_signal(
    run: Callable[[], Awaitable[None]], terminal: Terminal | None
) -> None:
    """Ends the demo from a task; Python would raise KeyboardInterrupt anywhere."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored under nohup
        numbers.append(signal.SIGHUP)
    if terminal:
        numbers.append(signal.SIGTSTP)  # Ctrl-Z
    # A terminal stopped by Ctrl-S blocks its cleanup: another signal ends the process then.
    with terminal or nullcontext(), trio.open_signal_receiver(*numbers) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_handle, signals, terminal)
            await run()
            nursery.cancel_scope.cancel()


async def _handle(signals: AsyncIterator[int], terminal: Terminal | None) -> None:
    async for number in signals:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number != signal.SIGTSTP:
            raise Stopped(f"ended by {signal.Signals(number).name}")
        assert terminal is not None
        terminal.pause(partial(os.kill, os.getpid(), signal.SIGSTOP))


def _impossible(options: DemoOptions) -> str:
    """Why these options contradict each other, and what to do; "" if they do not."""
    users, timeout, hosts = options.users, options.timeout, options.hosts
    most_users = int(MOST_USERS_PER_TIMEOUT_S * timeout / hosts)
    if users > most_users:
        return (
            f"{users} users with a timeout of {timeout:g} s write more often than one "
            f"process can read; use --users {most_users} or less, or a longer --timeout"
        )
    least_s = joining_s(users) + timeout + LEAST_MORE_S * min(hosts, 2)
    if options.seconds < least_s:
        return (
            f"{options.seconds:g} s are too short to show {users} users and a timeout of "
            f"{timeout:g} s; use --seconds {least_s:g} or more, or a shorter --timeout"
        )
    # Old connections of a user that hops stay open for a while.
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


def found_redis() -> str:
    """The path of redis-server, or of valkey-server.

    Raises:
        StartError: There is none, or it is too old, or its client is missing.
    """
    needs = "the demo with several hosts needs"
    if importlib.util.find_spec("coredis") is None:
        install = "pip install 'liveness-sidecar[sidecar,cluster]'"
        raise StartError(f"{needs} the package coredis; run {install}")
    path = next(filter(None, map(shutil.which, REDIS_PROGRAMS)), None)
    if path is None:
        install = "run apt install redis-server"
        raise StartError(f"{needs} redis-server, which is not on the PATH; {install}")
    shown = subprocess.run([path, "--version"], capture_output=True, encoding="utf-8")
    found = re.search(r"\bv=(\d+)", shown.stdout)
    if found is None or int(found[1]) < LEAST_REDIS:
        raise StartError(
            f"{needs} version {LEAST_REDIS} or newer of {path}; install a newer Redis, "
            "or Valkey"
        )
    return path
