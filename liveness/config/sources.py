"""Where the settings come from: flag, environment, TOML file, default, in this order.

A name that is no setting is an error, wherever it stands: a typo must not quietly become
a default. Every error is one line that names the source.
"""

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from liveness.config.paths import default_socket, default_state
from liveness.config.schema import Setting, shown, variable_of
from liveness.config.settings import FIXED_LIMITS, SETTINGS, Config
from liveness.errors import ConfigError

DEFAULT_FILE: Final = Path("/etc/liveness/liveness.toml")
FILE_VARIABLE: Final = "LIVENESS_CONFIG"
# Variables of ours that are no settings, so that all others can be refused.
RESERVED: Final = frozenset({FILE_VARIABLE, "LIVENESS_PURE_WHEEL"})
# Every setting with its comment takes a few KiB; the limit keeps a wrong file, such as
# a log, from being read whole.
MAX_FILE_BYTES: Final = 1_048_576

_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
_BY_PLACE: Final = {(setting.section, setting.key): setting for setting in SETTINGS}
_BY_FLAG: Final = {setting.flag: setting for setting in SETTINGS if setting.flag}
_BY_VARIABLE: Final = {setting.variable: setting for setting in SETTINGS}
# What was a setting once, by each name that it may still be set by.
_FIXED: Final = {
    spelling: name for name in FIXED_LIMITS for spelling in (name, variable_of(name))
}
_SECTIONS: Final = frozenset(setting.section for setting in SETTINGS) - {""}
# Defaults that depend on the user and the machine.
_FOUND_HERE: Final = {"socket.path": default_socket, "state.dir": default_state}


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, beside the name of each where its value came from, and what was
    ignored, a line each."""

    config: Config
    sources: dict[str, str]
    ignored: tuple[str, ...] = ()


def load(
    flags: Mapping[str, str | None] | None = None,
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    uid: int | None = None,
    default_file: Path = DEFAULT_FILE,
    is_reload: bool = False,
) -> Loaded:
    """Reads the settings of this process.

    Args:
        flags: What stood on the command line, by flag; None: the flag was not given.
        file: The TOML file of `--config`; None: the environment's, or the default one.
        environ: In place of the process's environment.
        uid: The user whose default paths are meant, in place of the process's.
        default_file: Read if it is there and no other is named.
        is_reload: Whether a process that runs reads its settings again. Then a pipe and
            an empty file are refused: the pipe has been read before, and somebody may
            be about to write the file. Neither means that the defaults are wanted.
    Raises:
        ConfigError: A source has a name or a value that cannot be used.
    """
    environ = os.environ if environ is None else environ
    uid = os.geteuid() if uid is None else uid
    if file is None and FILE_VARIABLE in environ:
        file = Path(environ[FILE_VARIABLE])
    found = [*_from_flags(flags or {}), *_from_environment(environ)]
    path, must_exist = file or default_file, file is not None
    found += _from_file(path, must_exist=must_exist, is_reload=is_reload)
    values: dict[str, object] = {}
    ignored: list[str] = []
    sources: dict[str, str] = {}
    for given in found:
        if isinstance(given, _Ignored):
            ignored.append(str(given))
            continue
        name = given.setting.name
        if name not in values:  # an earlier source wins
            values[name], sources[name] = given.value(), given.source
    for name, setting in _BY_NAME.items():
        if name not in values:
            values[name], sources[name] = _default(setting, environ, uid), "default"
    return Loaded(_built(values), sources, tuple(ignored))


def socket_path(flag: str | None) -> Path:
    """Where a client command finds the sidecar: `--socket`, or as `serve` would.

    With the flag nothing else is read: a file that this user may not read, or a
    setting that only the sidecar needs, must not keep a client out.

    Raises:
        ConfigError: As `load`.
    """
    return load().config.socket.path if flag is None else _from_flag("--socket", flag)


def state_folder(flag: str | None) -> Path:
    """Where a command finds the state: `--state`, or as `serve` would.

    Raises:
        ConfigError: As `load`.
    """
    return load().config.state.dir if flag is None else _from_flag("--state", flag)


def _from_flag(flag: str, text: str) -> Path:
    (given,) = _from_flags({flag: text})
    return Path(str(given.value()))


@dataclass(frozen=True, slots=True)
class _Value:
    """What one source has for one setting."""

    setting: Setting
    raw: object
    source: str
    is_text: bool  # without a type yet, as flags and the environment are

    def value(self) -> object:
        try:
            if self.is_text:
                return self.setting.parse(str(self.raw))
            return self.setting.read(self.raw)
        except ValueError as error:
            told = f"{self.setting.name} is {shown(self.raw)} ({self.source})"
            raise ConfigError(f"{told}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Ignored:
    """A name that was a setting once, and where it stands."""

    name: str
    source: str

    def __str__(self) -> str:
        limit = FIXED_LIMITS[_FIXED[self.name]]
        return (
            f"{self.source}: {self.name} is ignored, as it is no setting any more: it is "
            f"always {limit.value} {limit.unit}; remove it"
        )


def _from_flags(flags: Mapping[str, str | None]) -> Iterator[_Value]:
    for flag, text in flags.items():
        if text is not None:
            yield _Value(_BY_FLAG[flag], text, f"flag {flag}", is_text=True)


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Value | _Ignored]:
    for name in sorted(environ):
        if name in _FIXED:
            yield _Ignored(name, "environment")
        elif name.startswith("LIVENESS_") and name not in RESERVED:
            if name not in _BY_VARIABLE:
                raise _unknown(name, "environment", [*_BY_VARIABLE, *RESERVED])
            source = f"environment {name}"
            yield _Value(_BY_VARIABLE[name], environ[name], source, is_text=True)


def _from_file(
    path: Path, *, must_exist: bool, is_reload: bool
) -> Iterator[_Value | _Ignored]:
    data = _bytes(path, must_exist=must_exist, is_reload=is_reload)
    for key, value in _tables(path, data).items():
        if key not in _SECTIONS:
            yield _placed(path, "", key, value)
        elif isinstance(value, dict):
            yield from (_placed(path, key, inner, value[inner]) for inner in value)
        else:
            told = f"{path}: {key} is a section"
            raise ConfigError(f"{told}; write [{key}] on a line above its settings")


def _placed(path: Path, section: str, key: str, value: object) -> _Value | _Ignored:
    name = f"{section}.{key}" if section else key
    if name in _FIXED:
        return _Ignored(name, str(path))
    if (section, key) not in _BY_PLACE:
        raise _unknown(name, str(path), [*_BY_NAME, *_SECTIONS])
    return _Value(_BY_PLACE[section, key], value, str(path), is_text=False)


def _bytes(path: Path, *, must_exist: bool, is_reload: bool) -> bytes:
    try:
        if is_reload and not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(
                f"{path}: it is no regular file, which can be read once only; restart the "
                "sidecar, with a file for --config"
            )
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not must_exist:
            return b""
        told = f"{path}: the settings cannot be read ({error.strerror})"
        raise ConfigError(f"{told}; correct --config or {FILE_VARIABLE}") from None
    if is_reload and not data.strip():
        raise ConfigError(
            f"{path}: it is empty, perhaps about to be written; put a comment into it if "
            "the defaults are wanted"
        )
    return data


def _tables(path: Path, data: bytes) -> dict[str, Any]:
    try:
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"over {MAX_FILE_BYTES} bytes")
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        wrong = f"not UTF-8 (at line {line})"
    except ValueError as error:  # tomllib's names the line and column
        wrong = f"not TOML: {error}"
    except RecursionError:
        wrong = "not settings: nested too deeply"
    raise ConfigError(f"{path}: {wrong}; correct it there")


def _unknown(name: str, where: str, known: list[str]) -> ConfigError:
    """Says so with the nearest known name, if any: the same key elsewhere, or alike."""
    from difflib import get_close_matches

    name = name[:100]  # a likeness is sought in quadratic time
    same_key = [one for one in known if one.split(".")[-1] == name.split(".")[-1]]
    # What all variables begin with is no likeness.
    alike = {one.removeprefix("LIVENESS_"): one for one in sorted(known)}
    nearest = get_close_matches(name.removeprefix("LIVENESS_"), alike, 1)
    quoted = name if name.isprintable() else shown(name)
    told = f"{where}: there is no setting {quoted}"
    for one in same_key or map(alike.__getitem__, nearest):
        return ConfigError(f"{told}; the nearest is {one}")
    return ConfigError(
        f"{told}, nor one like it; remove it: without it `liveness check-config` lists "
        "those that there are"
    )


def _default(setting: Setting, environ: Mapping[str, str], uid: int) -> object:
    if setting.name not in _FOUND_HERE:
        return setting.default
    found = _FOUND_HERE[setting.name](environ, uid)
    return _Value(setting, found, "default", is_text=False).value()


def _built(values: Mapping[str, Any]) -> Config:
    sections: dict[str, Any] = {
        section: {
            setting.key: values[setting.name]
            for setting in SETTINGS
            if setting.section == section
        }
        for section in ("", *_SECTIONS)
    }
    arguments = sections.pop("")
    types: dict[str, Any] = {item.name: item.type for item in fields(Config)}
    for section, given in sections.items():
        arguments[section] = types[section](**given)
    return Config(**arguments)
