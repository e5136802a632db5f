"""A run starts the sidecar and the gateway, plays the situations and collects verdicts."""

import re
import sys
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trio

from liveness.console.terminal import report_line
from liveness.errors import LivenessError
from liveness.lab.common.gateway_program import filled, gateway_words
from liveness.lab.common.processes import HOST, Program, first_error, free_port
from liveness.lab.common.signals import until_signal
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
NO_TIMERS: Final = "the users of this run have no way to ask for a timer"


class NoRun(LivenessError):
    """No gateway came. Nothing was tried."""


def run_command(command: str, *, name: str, rules: Collection[int]) -> RunResult:
    """Like `run`, of a command as typed in a shell, until a signal."""
    played = partial(run, gateway_words(command), name=name, rules=rules)
    result: RunResult = trio.run(until_signal, played)
    return result


async def run(
    words: Sequence[str], *, name: str = "gw-1", rules: Collection[int] = ()
) -> RunResult:
    """Play all situations for the requested rules; a terminal shows the progress."""
    findings = Findings()
    frame_rules = FrameRules(findings, name)
    tape = Tape(frame_rules.look)
    with TemporaryDirectory(prefix="liveness-lab-") as own:
        folder = Path(own)
        path, port = folder / "gateway.sock", free_port()
        values = {"socket": path, "name": name, "port": port, "most": MOST_CONNECTIONS}
        process = Program(
            name="gateway",
            command=filled(words, values),
            log=folder / "gateway.log",
            ready=re.compile(""),
            env={"LIVENESS_SOCKET_PATH": str(path)},
        )
        sidecar = StagedSidecar(path, tape)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sidecar.serve)
            with process:
                stage = Stage(
                    *(name, sidecar, tape, findings, frame_rules, process),
                    *((HOST, port), nursery),
                )
                stage.start_process()
                if not await stage.linked(START_S):
                    raise NoRun(
                        f"no hello came as {name!r}; correct --command. The gateway "
                        f"{stage.how_it_runs()}"
                    )
                for each in SITUATIONS:
                    if not rules or {*rules} & {*each.rules}:
                        await _play(each, stage)
            nursery.cancel_scope.cancel()
    findings.untried[32] = [NO_TIMERS]
    return RunResult(
        name,
        [findings.verdict(rule) for rule in rules or RULES],
        frozenset(findings.failed),
        findings.broken_off,
        tape.now,
    )


async def _play(situation: Situation, stage: Stage) -> None:
    findings = stage.findings
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
