"""The command line: arguments in, exit code out.

A user error is one line on stderr that says what is wrong, where, and what to do. A
traceback means a bug in liveness.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from typing import Final

from cyclopts import (
    App,
    CycloptsError,
    Parameter,
    UnknownCommandError,
    UnusedCliTokensError,
)

from liveness.console.terminal import Output, OutputError, open_closed, report_line
from liveness.errors import ConfigError, LivenessError

HELP: Final = ("--help", "-h")
USAGE: Final = 2
INTERRUPTED: Final = 130  # as a shell reports SIGINT
NO_READER: Final = 141  # as a shell reports SIGPIPE

# Each is defined in the module of its name, which is imported only when needed, so that
# `version` does not load an HTTP server.
COMMANDS: Final = (
    "serve", "watch", "status", "explain", "history", "log", "compare", "timers",
    "gateways", "guard", "backup", "demo", "bench", "check-config", "check-state",
    "version",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: Without the program's name; None: those of the process.
    Returns:
        What the command returned, else 0; 2 for a wrong command line, 78 for wrong
        settings, 130 after Ctrl-C, 141 if the reader of the output has gone, 1 for any
        other failure.
    """
    open_closed()
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
        mistakes = [_mistake(cause) for cause in _causes(error)]
        if None in mistakes:
            raise
        code, line = mistakes[0] or (1, "")
        if line:
            report_line(line)
        return code


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in the groups that trio's nurseries raise, or *error* itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error


def _mistake(error: BaseException) -> tuple[int, str] | None:
    """Exit code and line for a user error; None for a bug of ours."""
    match error:
        case UnusedCliTokensError():
            unused = " ".join(error.unused_tokens or ())
            return _usage(error, f"unexpected argument: {unused}")
        case UnknownCommandError():  # cyclopts lists only eight commands behind it
            line, _, _ = str(error).partition(" Available commands:")
            return _usage(error, line.rstrip("."))
        case CycloptsError():
            return _usage(error, str(error).rstrip("."))
        case ConfigError():
            return os.EX_CONFIG, str(error)
        case OutputError(__cause__=BrokenPipeError()):
            return NO_READER, ""
        case LivenessError():
            return 1, str(error)
        case KeyboardInterrupt():
            return INTERRUPTED, ""
        case _:
            return None


def _usage(error: CycloptsError, line: str) -> tuple[int, str]:
    command = " ".join(["liveness", *(error.command_chain or ())])
    return USAGE, f"{line}; see `{command} --help`"


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
    app.command(f"liveness.cli.{_name.replace('-', '_')}:command", name=_name)
