"""A run: starts the sidecar and the gateway, plays the situations, collects verdicts."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import trio

from liveness.errors import LivenessError
from liveness.lab.conformance import (
    connection_situations,
    last_situations,
    link_situations,
    log_situations,
    record_situations,
)
from liveness.lab.conformance.findings import FAIL, BrokeOff, Findings, RuleVerdict
from liveness.lab.conformance.frame_rules import FrameRules
from liveness.lab.conformance.gateway_process import HOST, GatewayProcess
from liveness.lab.conformance.rules import RULES
from liveness.lab.conformance.situation import SITUATIONS, Situation
from liveness.lab.conformance.stage import (
    FLUSH_S,
    SOON_S,
    START_S,
    TIMEOUT_S,
    Stage,
)
from liveness.lab.conformance.staged_sidecar import StagedSidecar
from liveness.lab.conformance.tape import Tape

# Their situations are played in this order.
MODULES: Final = (
    connection_situations,
    record_situations,
    log_situations,
    link_situations,
    last_situations,
)
MAX_SOCKET_PATH_BYTES: Final = 107  # sun_path, without its terminating 0
PROBE_S: Final = 1.0
NO_USERS: Final = "no users can connect: use {port} in --command, or give --users"
NO_PROCESS: Final = "the gateway is not started by this run: use --command"
NO_TIMERS: Final = "the users of this run have no way to ask for a timer"


class BadSocket(LivenessError):
    """The sidecar of the run cannot listen there. Nothing was tried, nothing changed."""


class NoGateway(LivenessError):
    """No gateway has connected. Nothing was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What to play, and to whom."""

    name: str
    listen: Path | None  # the socket of a gateway that runs already
    words: tuple[str, ...]  # or the command that starts one
    users: tuple[str, int] | None  # where users connect; None: the port of the command
    rules: tuple[int, ...]  # to report; empty: all


class RunResult(NamedTuple):
    """The verdicts of a run."""

    name: str
    verdicts: list[RuleVerdict]  # of the rules that were wanted
    failed: frozenset[int]  # all rules that were broken, advised ones too
    broken_off: list[str]
    seconds: float

    @property
    def is_kept(self) -> bool:
        """Whether no rule was broken, and each situation was played to its end."""
        failed = any(verdict.outcome == FAIL for verdict in self.verdicts)
        return not failed and not self.broken_off


async def run(options: RunOptions, progress: Callable[[str], object]) -> RunResult:
    """Play all situations for the rules that are wanted.

    Args:
        options: What to play, and to whom.
        progress: Is called with the name of each situation.
    Raises:
        BadSocket: No socket can be made there.
        NoGateway: It did not connect.
    """
    with TemporaryDirectory(prefix="liveness-") as folder:
        path = options.listen or Path(folder) / "gateway.sock"
        check_free(path)
        process = None
        if options.words:
            process = GatewayProcess(
                options.words,
                socket_path=path,
                name=options.name,
                log=Path(folder) / "gateway.log",
            )
        return await _run(options, path, process, progress)


async def _run(
    options: RunOptions,
    path: Path,
    process: GatewayProcess | None,
    progress: Callable[[str], object],
) -> RunResult:
    findings = Findings()
    frame_rules = FrameRules(findings, options.name)
    tape = Tape(frame_rules.look)
    address = options.users
    if address is None and process is not None and process.has_port:
        address = (HOST, process.port)
    async with trio.open_nursery() as nursery:
        sidecar = StagedSidecar(
            path, tape, timeout=TIMEOUT_S, flush=FLUSH_S, within=SOON_S
        )
        nursery.start_soon(sidecar.serve)
        if process is not None:
            frame_rules.new_process()
        with process.running() if process else nullcontext():
            stage = Stage(
                options.name,
                sidecar,
                tape,
                findings,
                frame_rules,
                process,
                address,
                nursery,
            )
            await _first_link(stage)
            for situation in _chosen(options.rules):
                await _play(situation, stage, progress)
        nursery.cancel_scope.cancel()
    findings.untried[32] = [NO_TIMERS]
    wanted = [*options.rules] or [*RULES]
    return RunResult(
        options.name,
        findings.verdicts(wanted),
        frozenset(findings.failed),
        findings.broken_off,
        tape.now,
    )


def check_free(path: Path) -> None:
    """Check that a socket can be made at *path*, without loss of what is there.

    Raises:
        BadSocket: It cannot.
    """
    why = ""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        why = f"has more than {MAX_SOCKET_PATH_BYTES} bytes; name a shorter path"
    elif not path.parent.is_dir():
        why = "is in no folder that exists; make the folder, or name another path"
    elif path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
            probe.settimeout(PROBE_S)
            try:
                probe.connect(str(path))
                why = "has a program that listens, maybe a sidecar; name another path"
            except TimeoutError:
                why = "has a program that hangs; name another path"
    elif os.path.lexists(path):
        why = "is there already, and is no socket; name a path that is free"
    if why:
        raise BadSocket(f"{path} {why}")


def _chosen(rules: tuple[int, ...]) -> Iterator[Situation]:
    """The situations of these rules, or all, in order."""
    for module in MODULES:
        for situation in SITUATIONS:
            is_wanted = not rules or {*rules} & {*situation.rules}
            if is_wanted and situation.play.__module__ == module.__name__:
                yield situation


def _first_cause(error: BaseException) -> BaseException:
    """An exception in groups within groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _first_link(stage: Stage) -> None:
    if await stage.linked(START_S):
        return
    if stage.process is None:
        raise NoGateway(
            f"no gateway {stage.name!r} said hello at {stage.sidecar.path} within "
            f"{START_S:g} s; start it with this socket, and see --name"
        )
    why = f"did not say hello as {stage.name!r} within {START_S:g} s"
    if stage.has_ended:
        why = "has ended"
    output = " | ".join(stage.process.last_lines()) or "none"
    raise NoGateway(f"the gateway {why}; correct --command. Its output: {output}")


async def _play(
    situation: Situation, stage: Stage, progress: Callable[[str], object]
) -> None:
    findings, why = stage.findings, ""
    if situation.needs_users and stage.address is None:
        why = NO_USERS
    elif situation.needs_process and stage.process is None:
        why = NO_PROCESS
    else:
        progress(situation.name)
        findings.situation = situation.name
        stage.began = stage.tape.mark
        stage.played += 1
        try:
            if situation.needs_link:
                await stage.ready()
            await situation.play(stage)
        except* BrokeOff as errors:
            why = f"{situation.name} broke off: {_first_cause(errors)}"
            findings.broken_off.append(why)
            findings.unfinished.update(situation.rules)
        await stage.clear()
    if why:
        for rule in situation.rules:
            findings.untried.setdefault(rule, []).append(why)
