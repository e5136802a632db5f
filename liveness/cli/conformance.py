"""`liveness conformance`: whether a gateway keeps the rules of the protocol."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from cyclopts import Parameter, Token

from liveness.cli.options import Json, as_written, declared, name_of
from liveness.lab.conformance.conformance_report import json_report, text_report
from liveness.lab.conformance.conformance_run import run_command
from liveness.lab.conformance.rules import RULES

EXAMPLE: Final = "conformance --command './gateway {socket} {name} {port}'"

command: Final = declared("conformance", EXAMPLE)


def _rules(_kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    numbers = {f"G{number}": number for number in RULES}
    for token in tokens:
        if token.value not in numbers:
            raise ValueError(f"{token.value!r} is no rule, G1 to G{max(RULES)}")
    return tuple(sorted({numbers[token.value] for token in tokens}))


_COMMAND = "starts your gateway; {socket}, {name}, {port} and {most} are filled in"
_NAME = "the name of your gateway (default gw-1)"
_RULE = "only this rule, such as G15; may be repeated"


@command.default
def conformance(
    *,
    command: Annotated[
        str, Parameter(help=_COMMAND, metavar="CMD", converter=as_written)
    ],
    name: Annotated[
        str, Parameter(help=_NAME, metavar="NAME", converter=name_of)
    ] = "gw-1",
    rule: Annotated[
        tuple[int, ...], Parameter(help=_RULE, metavar="RULE", converter=_rules)
    ] = (),
    json: Json = False,
) -> int:
    """Play situations to a gateway in any language, and report each rule of the protocol.

    It serves as the sidecar, by a script: links break, records repeat, users fall silent.
    Users are TCP connections that speak the lines of the demo's gateway. The exit code is 0
    if no rule was broken and all could be played, 1 if not, and 2 or 78 for a wrong
    command line.
    """
    result = run_command(command, name=name, rules=rule)
    for line in [json_report(result)] if json else text_report(result):
        print(line)
    return 0 if result.is_kept else 1
