"""`liveness check-state`: what of the state directory is whole, and what is not."""

import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Final, TextIO

from cyclopts import App

from liveness.cli.options import BACKGROUND, Json, State
from liveness.config.sources import state_folder
from liveness.console.admin_client import CommandError
from liveness.service.storage.integrity import check

DAMAGED: Final = 3


def check_state(folder: Path, *, as_json: bool, out: TextIO) -> int:
    """Writes what was found of each part, as it is found.

    Args:
        folder: The state directory.
        as_json: Whether each is an object, and not for a person.
        out: Where each is a line.
    Returns:
        The exit code: 0 if all is whole.
    Raises:
        StateError: There is no state, it is of another version, or may not be read.
        CommandError: It cannot be read now.
    """
    code = 0
    try:
        for found in check(folder):
            if not found.is_whole:
                code = DAMAGED
            if as_json:
                file, part, is_whole, told, *_ = found
                shown = {"file": file, "part": part, "whole": is_whole, "told": told}
                out.write(f"{json.dumps(shown)}\n")
                continue
            told = found.told
            if not found.is_whole:
                told = f"damaged: {told}"
            elif told != "none":
                told = f"whole ({told})" if told else "whole"
            out.write(f"{found.file:<11}  {found.part:<14}  {told}\n")
    except sqlite3.Error as error:
        raise CommandError(
            f"{folder} cannot be read now ({error}); ask again, as the sidecar's user"
        ) from error
    return code


command: Final = App(
    name="check-state",
    help_epilogue="Example: liveness check-state --state /var/lib/liveness",
    version_flags=[],
)


@command.default
def check_folder(*, state: State = None, json: Json = False) -> int:
    """Read the whole state, and say what of it is damaged; a sidecar may run.

    The exit code is 0 if all of it is whole, 3 if not.
    """
    folder = state_folder(state)
    os.nice(BACKGROUND)

    return check_state(folder, as_json=json, out=sys.stdout)
