"""`liveness check-state`: says which parts of the state directory are damaged."""

import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Final, TextIO

from liveness.cli.options import BACKGROUND, Json, State, declared
from liveness.config.sources import state_folder
from liveness.console.admin_client import CommandError
from liveness.service.backups.integrity import check


def check_state(folder: Path, *, as_json: bool, out: TextIO) -> int:
    """Writes a line for each part of the state to *out* as soon as it is checked.

    Returns:
        The exit code: 0 if everything is whole, else 3.
    Raises:
        StateError: There is no state, it is of another version, or may not be read.
        CommandError: It cannot be read now.
    """
    code = 0
    try:
        for file, part, is_whole, told in check(folder):
            if not is_whole:
                code = 3
            if as_json:
                shown = {"file": file, "part": part, "whole": is_whole, "told": told}
                out.write(f"{json.dumps(shown)}\n")
                continue
            whole = f"whole ({told})" if told else "whole"
            result = whole if is_whole else f"damaged: {told}"
            out.write(f"{file:<11}  {part:<9}  {result}\n")
    except sqlite3.Error as error:
        raise CommandError(
            f"{folder} cannot be read now ({error}); try again, as the sidecar's user"
        ) from error
    return code


command: Final = declared("check-state", "check-state --state /var/lib/liveness")


@command.default
def check_folder(*, state: State = None, json: Json = False) -> int:
    """Read the whole state and say which parts are damaged; the sidecar may run.

    The exit code is 0 if everything is whole, 3 if not.
    """
    os.nice(BACKGROUND)
    return check_state(state_folder(state), as_json=json, out=sys.stdout)
