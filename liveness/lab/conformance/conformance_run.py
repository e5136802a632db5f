"""A run starts the sidecar and the gateway, plays the situations and collects verdicts."""

import re
import socket
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trio

from liveness.console.gateway_program import filled
from liveness.console.terminal import report_line
from liveness.errors import LivenessError
from liveness.lab.common.processes import HOST, Program, first_error, free_port
from liveness.lab.conformance import (
    connection_situations,
    link_situations,
    log_situations,
    record_situations,
)
from liveness.lab.conformance.frame_rules import FrameRules
from liveness.lab.conformance.rules import RULES, BrokeOff, Findings, RunResult
from liveness.lab.conformance.stage import START_S, Situation, Stage
from liveness.lab.conformance.staged_sidecar import StagedSidecar
from liveness.lab.conformance.tape import Tape

# Their situations are played in this order.
MODULES: Final = (
    connection_situations,
    record_situations,
    log_situations,
    link_situations,
)
SITUATIONS: Final = [
    each
    for module in MODULES
    for each in vars(module).values()
    if isinstance(each, Situation)
]
# More connections than any situation opens at a time.
MOST_CONNECTIONS: Final = 1_000
PROBE_S: Final = 1.0
NO_USERS: Final = "no users can connect: use {port} in --command, or give --users"
NO_PROCESS: Final = "the gateway is not started by this run: use --command"
NO_TIMERS: Final = "the users of this run have no way to ask for a timer"


class NoRun(LivenessError):
    """The sidecar of the run cannot listen, or no gateway came. Nothing was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The rules to check, and the gateway to check."""

    name: str
    listen: Path | None  # the socket for a gateway that runs already
    words: tuple[str, ...]  # or the command that starts one
    users: tuple[str, int] | None  # where users connect; None: the command's port
    rules: tuple[int, ...]  # to report; empty: all


async def run(options: RunOptions) -> RunResult:
    """Play all situations for the requested rules; a terminal shows the progress.

    Raises:
        NoRun: No socket can be made there, or no gateway has connected.
    """
    findings, name = Findings(), options.name
    rules = FrameRules(findings, name)
    tape = Tape(rules.look)
    with TemporaryDirectory(prefix="liveness-lab-") as own:
        folder = Path(own)
        path = options.listen or folder / "gateway.sock"
        process, address = None, options.users
        if options.words:
            process, port = _program(options, path, folder)
            address = address or port
        sidecar = made_sidecar(path, tape)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sidecar.serve)
            with process or nullcontext():
                stage = Stage(
                    name, sidecar, tape, findings, rules, process, address, nursery
                )
                await _first_link(stage)
                for each in SITUATIONS:
                    if not options.rules or {*options.rules} & {*each.rules}:
                        await _play(each, stage)
            nursery.cancel_scope.cancel()
    findings.untried[32] = [NO_TIMERS]
    return RunResult(
        name,
        [findings.verdict(rule) for rule in options.rules or RULES],
        frozenset(findings.failed),
        findings.broken_off,
        tape.now,
    )


def _program(
    options: RunOptions, path: Path, folder: Path
) -> tuple[Program, tuple[str, int] | None]:
    """The gateway that the run starts, and where its users connect, if it has a port."""
    port = free_port()
    values = {"socket": path, "name": options.name, "port": port}
    program = Program(
        name="gateway",
        command=filled(options.words, {**values, "most": MOST_CONNECTIONS}),
        log=folder / "gateway.log",
        ready=re.compile(""),
        env={"LIVENESS_SOCKET_PATH": str(path)},
    )
    has_port = any("{port}" in word for word in options.words)
    return program, (HOST, port) if has_port else None


def made_sidecar(path: Path, tape: Tape) -> StagedSidecar:
    """A sidecar that listens at *path*, which may only hold an abandoned socket.

    Raises:
        NoRun: It cannot.
    """
    try:
        if path.is_socket():
            with (
                socket.socket(socket.AF_UNIX) as probe,
                suppress(ConnectionRefusedError),
            ):
                probe.settimeout(PROBE_S)
                probe.connect(str(path))
                raise NoRun(f"{path}: a program listens there; name another path")
        return StagedSidecar(path, tape)
    except OSError as error:  # also the timeout, if a program there hangs
        why = error.strerror or error
        raise NoRun(f"{path}: {why}; name another path") from None


async def _first_link(stage: Stage) -> None:
    if stage.process is not None:
        stage.start_process()
    if await stage.linked(START_S):
        return
    if stage.process is None:
        raise NoRun(
            f"no gateway {stage.name!r} said hello at {stage.sidecar.path} within "
            f"{START_S:g} s; start it with this socket, and see --name"
        )
    raise NoRun(
        f"no hello came as {stage.name!r}; correct --command. The gateway "
        f"{stage.how_it_runs()}"
    )


async def _play(situation: Situation, stage: Stage) -> None:
    findings = stage.findings
    if situation.needs_users and stage.address is None:
        findings.leave_out(NO_USERS, *situation.rules)
        return
    if situation.starts_process and stage.process is None:
        findings.leave_out(NO_PROCESS, *situation.rules)
        return
    if sys.stderr.isatty():
        report_line(situation.name)
    findings.situation = situation.name
    stage.mark()
    stage.played += 1
    try:
        if not situation.starts_process:
            await stage.ready()
        await situation.play(stage)
    except* BrokeOff as errors:
        why = f"{situation.name} broke off: {first_error(errors)}"
        findings.broken_off.append(why)
        findings.unfinished.update(situation.rules)
        findings.leave_out(why, *situation.rules)
    await stage.clear()
