"""Holds what a file of ours runs and sets against the real command line and settings."""

from collections.abc import Mapping, Sequence
from inspect import BoundArguments
from pathlib import Path
from typing import get_args

from cyclopts import Parameter

from liveness.cli.main import app
from liveness.config.settings import SETTINGS, Config
from liveness.config.sources import load
from liveness.lab.demo import script

NOWHERE = Path("/nonexistent/liveness.toml")


def checked(
    command: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    unix_user: int = 0,
    file: Path | None = None,
) -> Config:
    """The settings that *command*, `liveness` and its arguments, would run with.

    Nothing is run. It fails for a command, a flag, a setting or a value that there is not.

    Args:
        command: As a unit, an image, a manifest or a page has it, without a shell.
        environ: Its environment.
        unix_user: The user that it runs as.
        file: What lies in the place of its `--config`, or of the default file.
    """
    program, *arguments = command
    assert Path(program).name == "liveness", command
    assert arguments, "it would show its help"
    _, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    given = bound.arguments
    assert file is not None or not given.get("config"), f"{command}: which file?"
    if "script" in given:
        script.parsed_script(
            given["script"],
            seconds=given.get("seconds", 40),
            actions=script.actions_of(given.get("hosts", 1)),
        )
    return load(
        _settings(bound),
        file=file,
        environ=dict(environ or {}),
        unix_user=unix_user,
        default_file=NOWHERE,
    )


def _settings(bound: BoundArguments) -> dict[str, str]:
    """The flags for settings. Some commands have a flag of the same name."""
    flags = {(setting.flag,) for setting in SETTINGS if setting.flag}
    given = {}
    for name, value in bound.arguments.items():
        for about in get_args(bound.signature.parameters[name].annotation)[1:]:
            if isinstance(about, Parameter) and about.name in flags:
                given[about.name[0]] = value
    return given
