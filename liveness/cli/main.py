"""The command line: arguments in, exit code out.

A user error is one line on stderr that says what is wrong, where, and what to do; wrong
settings are a line each. A traceback means a bug in liveness. `serve` logs what ends it,
if its log is JSON.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Final

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from liveness.console.terminal import Output, OutputError, report_line
from liveness.errors import ConfigError, LivenessError
from liveness.text import printable

USAGE: Final = 2
INTERRUPTED: Final = 130  # as a shell reports SIGINT
NO_READER: Final = 141  # as a shell reports SIGPIPE
HELP: Final = ("--help", "-h")

# The exit code of a failed command, and the lines for its user.
Mistake = tuple[int, tuple[str, ...]]

# Each is defined in the module of its name, which is imported only when needed, so that
# `version` does not load an HTTP server.
COMMANDS: Final = (
    "serve", "watch", "status", "explain", "history", "log", "compare", "timers",
    "gateways", "webhooks", "cluster", "backup", "demo", "conformance",
    "bench", "check-config", "check-state", "version",
)  # fmt: skip


# These modules have another name than their command, as no two files may share a name.
MODULES: Final = {name: f"{name}_command" for name in ("cluster", "webhooks")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: Without the program's name; None: those of the process.
    Returns:
        What the command returned, else 0; 2 for a wrong command line, 78 for wrong
        settings, 130 after Ctrl-C, 141 if the reader of the output has gone, 1 for any
        other failure.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        if not arguments or arguments[0] in HELP:
            for name in COMMANDS:
                app[name]  # imports it: the list of commands shows its docstring
        with redirect_stdout(Output(sys.stdout)) as output:
            code: int | None = app(arguments)
            output.flush()  # within the `try`, which reports its failure
        return code or 0
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        mistake = _mistake_in(error)
        if mistake is None:
            raise
        code, lines = mistake
        if arguments[:1] != ["serve"] or not _logged(code, lines):
            for line in lines:
                report_line(line)
        return code


def _mistake_in(error: BaseException) -> Mistake | None:
    """What *error*, or each exception in its groups, reports; None: it is a bug."""
    if isinstance(error, BaseExceptionGroup):
        mistakes = [_mistake_in(inner) for inner in error.exceptions]
        return None if None in mistakes else mistakes[0]
    match error:
        case UnusedCliTokensError():
            unused = " ".join(error.unused_tokens or ())
            return _usage(error, f"unexpected argument: {unused}")
        case CycloptsError():
            return _usage(error, str(error).rstrip(",. "))
        case ConfigError():
            return os.EX_CONFIG, error.faults
        case OutputError(__cause__=BrokenPipeError()):
            return NO_READER, ()
        case LivenessError():
            return 1, (str(error),)
        case KeyboardInterrupt():
            return INTERRUPTED, ()
        case _:
            return None


def _usage(error: CycloptsError, line: str) -> Mistake:
    command = " ".join(["liveness", *(error.command_chain or ())])
    return USAGE, (f"{line}; see `{command} --help`",)


def _logged(code: int, lines: Sequence[str]) -> bool:
    """Log what ends the sidecar; False if its log is text, as a terminal gets it."""
    from liveness.service.common import logs

    if not logs.is_json():
        return False
    if lines:
        logs.log_failure("\n".join(map(printable, lines)), code)
    return True


app: Final = App(
    name="liveness",
    help="Tells TCP gateways which of their users have fallen silent.",
    help_epilogue="Example: liveness serve --timeout 30",
    version_flags=[],  # there is a command for it
    default_parameter=Parameter(negative=(), show_default=False),
    exit_on_error=False,
    print_error=False,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
for _name in COMMANDS:
    _module = MODULES.get(_name, _name.replace("-", "_"))
    app.command(f"liveness.cli.{_module}:command", name=_name)
