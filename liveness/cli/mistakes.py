"""Distinguishes errors of the user or the environment from bugs in liveness.

An error is one line on stderr that says what is wrong, where, and what to do. A bug is a
traceback.
"""

import os
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final, NamedTuple

from cyclopts import CycloptsError, UnknownCommandError, UnusedCliTokensError

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
    mistakes = [_mistake(cause) for cause in _causes(error)]
    return None if None in mistakes else mistakes[0]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in the groups that trio's nurseries raise, or *error* itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error


def _mistake(error: BaseException) -> Mistake | None:
    match error:
        case UnusedCliTokensError():
            unused = " ".join(error.unused_tokens or ())
            return _usage(error, f"unexpected argument: {unused}")
        case UnknownCommandError():
            return _usage(error, _unknown_command(error))
        case CycloptsError():
            return _usage(error, str(error).rstrip("."))
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


def _unknown_command(error: UnknownCommandError) -> str:
    """The command, and the one that is like it or else all of them.

    The text of cyclopts ends the list after eight.
    """
    (asked, *_), commands = error.unused_tokens or [""], list(error.app or ())
    names = [name for name in commands if name and not name.startswith("-")]
    like = get_close_matches(asked, names, 1)
    if like:
        return f'Unknown command "{asked}". Did you mean "{like[0]}"?'
    known = ", ".join(f'"{name}"' for name in names)
    what = f'Unknown command "{asked}"' if asked else "The command is empty"
    return f"{what}. Choose from: {known}" if known else what
