"""`liveness conformance`: whether a gateway keeps the rules of the protocol."""

import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import trio
from cyclopts import Parameter, Token

from liveness.cli.options import Json, as_written, declared, file_at, name_of
from liveness.console.gateway_program import gateway_words
from liveness.console.terminal import report_line
from liveness.lab.conformance.conformance_report import (
    json_report,
    text_report,
    write_junit,
)
from liveness.lab.conformance.conformance_run import (
    RunOptions,
    RunResult,
    run,
)
from liveness.lab.conformance.rules import RULES
from liveness.lab.demo.launcher import Stopped

MOST_PORT: Final = 65_535
EXAMPLE: Final = "conformance --command './gateway {socket} {name} {port}'"

command: Final = declared("conformance", EXAMPLE)


def _address(_kind: Any, tokens: Sequence[Token]) -> str:
    text = tokens[0].value
    found = re.fullmatch(r"(\[[0-9a-f:]+\]|[^:\s]+):(\d{1,5})", text)
    if found is None or not 1 <= int(found[2]) <= MOST_PORT:
        raise ValueError(f"{text!r} is no HOST:PORT, such as 127.0.0.1:7000")
    return text


def _rule(_kind: Any, tokens: Sequence[Token]) -> list[str]:
    for token in tokens:
        if token.value not in {f"G{number}" for number in RULES}:
            raise ValueError(f"{token.value!r} is no rule, G1 to G{max(RULES)}")
    return [token.value for token in tokens]


@command.default
def conformance(
    *,
    command: Annotated[
        str | None,
        Parameter(
            help="starts your gateway; {socket}, {name}, {port} and {most} are filled in",
            metavar="CMD",
            converter=as_written,
        ),
    ] = None,
    listen: Annotated[
        str | None,
        Parameter(
            help="instead: the socket to which your gateway connects by itself",
            metavar="PATH",
            converter=file_at,
        ),
    ] = None,
    users: Annotated[
        str | None,
        Parameter(
            help="where users connect to your gateway (default: {port} of the command)",
            metavar="HOST:PORT",
            converter=_address,
        ),
    ] = None,
    name: Annotated[
        str,
        Parameter(
            help="the name of your gateway (default gw-1)",
            metavar="NAME",
            converter=name_of,
        ),
    ] = "gw-1",
    rule: Annotated[
        list[str] | None,
        Parameter(
            help="only this rule, such as G15; may be repeated",
            metavar="RULE",
            converter=_rule,
        ),
    ] = None,
    json: Json = False,
    junit: Annotated[
        str | None,
        Parameter(
            help="also write JUnit XML to this file", metavar="FILE", converter=file_at
        ),
    ] = None,
) -> int:
    """Play situations to a gateway in any language, and report each rule of the protocol.

    It serves as the sidecar, by a script: links break, records repeat, users fall silent.
    Users are TCP connections that speak the lines of the demo's gateway. The exit code is 0
    if no rule was broken and all could be played, 1 if not, and 2 or 78 for a wrong
    command line.
    """
    if (command is None) == (listen is None):
        report_line(
            "give either --command CMD or --listen PATH; see `liveness conformance --help`"
        )
        return 2
    if users is None and rule is None and "{port}" not in (command or ""):
        report_line(
            "no user can connect to your gateway: write {port} into --command, or give "
            "--users HOST:PORT; or name the rules to try without users, by --rule"
        )
        return 2
    words = [] if command is None else gateway_words(command, ())
    options = RunOptions(
        name=name,
        listen=None if listen is None else Path(listen),
        words=tuple(words),
        users=None if users is None else _host_and_port(users),
        rules=tuple(sorted({int(each[1:]) for each in rule or ()})),
    )
    result = trio.run(_until_signal, options)
    if junit is not None:
        write_junit(result, Path(junit))
    for line in [json_report(result)] if json else text_report(result):
        print(line)
    return 0 if result.is_kept else 1


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


async def _until_signal(options: RunOptions) -> RunResult:
    """Play to the end, or until SIGTERM: then the gateway is ended too."""
    async with trio.open_nursery() as nursery:
        await nursery.start(_wait_for_sigterm)
        result = await run(options, _progress)
        nursery.cancel_scope.cancel()
    return result


async def _wait_for_sigterm(
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        await anext(signals)
    raise Stopped("ended by SIGTERM")


def _progress(situation: str) -> None:
    if sys.stderr.isatty():
        report_line(situation)
