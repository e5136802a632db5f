"""`liveness conformance`: whether a gateway keeps the rules of the protocol."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import trio
from cyclopts import Parameter, Token

from liveness.cli.options import Json, as_written, declared, file_at, name_of
from liveness.console.gateway_program import gateway_words
from liveness.console.terminal import report_line
from liveness.lab.common.signals import until_signal
from liveness.lab.conformance.conformance_report import json_report, text_report
from liveness.lab.conformance.conformance_run import RunOptions, run
from liveness.lab.conformance.rules import RULES, RunResult

MOST_PORT: Final = 65_535
EXAMPLE: Final = "conformance --command './gateway {socket} {name} {port}'"

command: Final = declared("conformance", EXAMPLE)


def _address(_kind: Any, tokens: Sequence[Token]) -> tuple[str, int]:
    text = tokens[0].value
    found = re.fullmatch(r"(\[[0-9a-f:]+\]|[^:\s\[\]]+):(\d{1,5})", text)
    if found is None or not 1 <= int(found[2]) <= MOST_PORT:
        raise ValueError(f"{text!r} is no HOST:PORT, such as 127.0.0.1:7000")
    return found[1].strip("[]"), int(found[2])


def _rules(_kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    numbers = {f"G{number}": number for number in RULES}
    for token in tokens:
        if token.value not in numbers:
            raise ValueError(f"{token.value!r} is no rule, G1 to G{max(RULES)}")
    return tuple(sorted({numbers[token.value] for token in tokens}))


def _flag(help: str, metavar: str, converter: Any, **more: Any) -> Parameter:
    return Parameter(help=help, metavar=metavar, converter=converter, **more)


_COMMAND = "starts your gateway; {socket}, {name}, {port} and {most} are filled in"
_LISTEN = "instead: the socket to which your gateway connects by itself"
_USERS = "where users connect to your gateway (default: {port} of the command)"
_RULE = "only this rule, such as G15; may be repeated"


@command.default
def conformance(
    *,
    command: Annotated[str | None, _flag(_COMMAND, "CMD", as_written)] = None,
    listen: Annotated[str | None, _flag(_LISTEN, "PATH", file_at)] = None,
    users: Annotated[
        tuple[str, int] | None, _flag(_USERS, "HOST:PORT", _address, n_tokens=1)
    ] = None,
    name: Annotated[
        str, _flag("the name of your gateway (default gw-1)", "NAME", name_of)
    ] = "gw-1",
    rule: Annotated[tuple[int, ...], _flag(_RULE, "RULE", _rules)] = (),
    json: Json = False,
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
    if users is None and not rule and "{port}" not in (command or ""):
        report_line(
            "no user can connect to your gateway: write {port} into --command, or give "
            "--users HOST:PORT; or name the rules to try without users, by --rule"
        )
        return 2
    options = RunOptions(
        name=name,
        listen=None if listen is None else Path(listen),
        words=() if command is None else tuple(gateway_words(command, ())),
        users=users,
        rules=rule,
    )
    result: RunResult = trio.run(until_signal, partial(run, options))
    for line in [json_report(result)] if json else text_report(result):
        print(line)
    return 0 if result.is_kept else 1
