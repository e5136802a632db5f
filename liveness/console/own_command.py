"""How the user calls this program, for commands that are printed to be typed."""

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

NAME: Final = "liveness"
WIDTH: Final = 80  # columns of a usual terminal


def own_command() -> str:
    """The words before the name of a command, quoted for a shell.

    `liveness` if that is what the PATH leads to; else the path, or the Python and its
    `-m liveness`, by which this process was started.
    """
    called = sys.argv[0]
    if Path(called).name == NAME:
        found = shutil.which(NAME)
        if found is None or not _is_same(found, called):
            return shlex.quote(called)
    python, *options = sys.orig_argv
    if options[:2] == ["-m", NAME]:
        return shlex.join([python, *options[:2]])
    return NAME


def as_typed(arguments: Sequence[str], *, indent: int = 0) -> Iterator[str]:
    r"""One of our commands, as lines that can be pasted into a shell together.

    One line if that fits a usual terminal; else a line for each flag, with `\` between.
    """
    indented, line = " " * indent, own_command()
    whole = f"{indented}{line} {shlex.join(arguments)}"
    if len(whole) <= WIDTH:
        yield whole
        return
    for argument in map(shlex.quote, arguments):
        if argument.startswith("-"):
            yield f"{indented}{line} \\"
            line = f"  {argument}"
        else:
            line = f"{line} {argument}"
    yield f"{indented}{line}"


def _is_same(path: str, other: str) -> bool:
    try:
        return Path(path).samefile(other)
    except OSError:
        return False
