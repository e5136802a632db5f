"""Distinguishes errors of the user or the environment from bugs in liveness.

An error is one line on stderr that says what is wrong, where, and what to do. A bug is a
traceback.
"""

import os
from typing import Final, NamedTuple

from cyclopts import CycloptsError, UnusedCliTokensError

from liveness.console.terminal import OutputError
from liveness.errors import ConfigError, LivenessError

USAGE: Final = 2
INTERRUPTED: Final = 130  # as a shell reports SIGINT
NO_READER: Final = 141  # as a shell reports SIGPIPE


class Mistake(NamedTuple):
    """The exit code of a failed command, and the lines for its user."""

    code: int
    lines: tuple[str, ...] = ()


def mistake_in(error: BaseException) -> Mistake | None:
    """The mistake that *error*, or each exception in its groups, reports; None: a bug."""
    if isinstance(error, BaseExceptionGroup):
        mistakes = [mistake_in(inner) for inner in error.exceptions]
        return None if None in mistakes else mistakes[0]
    match error:
        case UnusedCliTokensError():
            unused = " ".join(error.unused_tokens or ())
            return _usage(error, f"unexpected argument: {unused}")
        case CycloptsError():
            return _usage(error, str(error).rstrip(",. "))
        case ConfigError():
            return Mistake(os.EX_CONFIG, error.faults)
        case OutputError(__cause__=BrokenPipeError()):
            return Mistake(NO_READER)
        case LivenessError():
            return Mistake(1, (str(error),))
        case KeyboardInterrupt():
            return Mistake(INTERRUPTED)
        case _:
            return None


def _usage(error: CycloptsError, line: str) -> Mistake:
    command = " ".join(["liveness", *(error.command_chain or ())])
    return Mistake(USAGE, (f"{line}; see `{command} --help`",))
