"""`liveness check-config`: the settings as `serve` would read them, as TOML."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from cyclopts import App

import liveness.compiled  # noqa: F401  # refuses its variable, as in `serve`
from liveness.cli.options import ConfigFile, path_of
from liveness.config.settings import SETTINGS
from liveness.config.sources import Loaded, load
from liveness.console.terminal import tell


def effective(loaded: Loaded) -> str:
    """Every setting with its value and where that came from; a file to keep, too."""
    return "".join(f"{line}\n" for line in _lines(loaded))


def _lines(loaded: Loaded) -> Iterator[str]:
    for section, settings in groupby(SETTINGS, lambda setting: setting.section):
        if section:
            yield f"\n[{section}]"
        for setting in settings:
            value = _toml(setting.value_in(loaded.config))
            yield f"{setting.key} = {value}  # {loaded.sources[setting.name]}"
            if setting.name == "flush_s":
                yield f"# in effect: {loaded.config.flush:g} s"


def _toml(value: object) -> str:
    if value is None:
        return '""'
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | Path):
        return str(value)
    # JSON's strings are TOML's, but for DEL, which JSON lets stand.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


command: Final = App(
    name="check-config",
    help_epilogue="Example: liveness check-config --config liveness.toml",
    version_flags=[],
)


@command.default
def show_settings(*, config: ConfigFile = None) -> None:
    """Print the settings in effect and where each is from; start nothing."""
    loaded = load(file=path_of(config))
    for text in loaded.ignored:
        tell(text)
    print(effective(loaded), end="")
