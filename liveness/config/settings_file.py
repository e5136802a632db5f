"""Reads the settings file, as tables of TOML."""

import stat
import tomllib
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any, Final

from liveness.errors import ConfigError

FILE_VARIABLE: Final = "LIVENESS_CONFIG"
# All settings with comments take a few KiB. A wrong file, such as a log, may be large.
MAX_FILE_BYTES: Final = 1_048_576
TOO_DEEP: Final = "not settings: nested too deeply"


def read_tables(path: Path, *, must_exist: bool, is_reload: bool) -> dict[str, Any]:
    """The tables of a settings file; none if it is missing and need not exist.

    See `sources.load` for *is_reload*.

    Raises:
        ConfigError: It cannot be read, or is not TOML.
    """
    data = _bytes(path, must_exist=must_exist, is_reload=is_reload)
    try:
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"over {MAX_FILE_BYTES} bytes")
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        wrong = f"not UTF-8 (at line {line})"
    except ValueError as error:  # tomllib names the line and column
        wrong = f"not TOML: {error}"
    except RecursionError:
        wrong = TOO_DEEP
    raise ConfigError(f"{path}: {wrong}; correct it there")


def _bytes(path: Path, *, must_exist: bool, is_reload: bool) -> bytes:
    try:
        if is_reload and not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(
                f"{path}: it is no regular file, which can be read once only; restart the "
                "sidecar, with a file for --config"
            )
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1).removeprefix(BOM_UTF8)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not must_exist:
            return b""
        message = f"{path}: the settings cannot be read ({error.strerror})"
        raise ConfigError(f"{message}; correct --config or {FILE_VARIABLE}") from None
    if is_reload and not data.strip():
        raise ConfigError(
            f"{path}: it is empty, perhaps about to be written; put a comment into it if "
            "the defaults are wanted"
        )
    return data
