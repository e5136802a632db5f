"""Reads each source by itself: flags, environment and TOML file.

What a source has at one place is the value of a setting, a section of an outlet, or a name
that is no setting.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from liveness.config.outlet_settings import (
    MOST_OUTLETS,
    NAME_RULE,
    OUTLET_NAME,
    OUTLETS,
)
from liveness.config.schema import Setting, shown, variable_of
from liveness.config.settings import SETTINGS, outlet_settings
from liveness.config.settings_file import FILE_VARIABLE, read_tables
from liveness.errors import ConfigError

# Variables beginning with LIVENESS_ that are no settings; all others are refused.
RESERVED: Final = frozenset({FILE_VARIABLE, "LIVENESS_PURE_WHEEL"})
BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
_BY_PLACE: Final = {(setting.section, setting.key): setting for setting in SETTINGS}
_BY_FLAG: Final = {setting.flag: setting for setting in SETTINGS if setting.flag}
_BY_VARIABLE: Final = {setting.variable: setting for setting in SETTINGS}
SECTIONS: Final = frozenset(setting.section for setting in SETTINGS) - {""}
_OUTLET_VARIABLES: Final = tuple(variable_of(f"{section}.") for section in OUTLETS)


@dataclass(frozen=True, slots=True)
class SourcedValue:
    """The value of one setting in one source."""

    setting: Setting
    raw: object
    source: str
    is_text: bool  # untyped, as in flags and the environment

    def value(self) -> object:
        """The value, checked.

        Raises:
            ConfigError: It is not allowed.
        """
        try:
            if self.is_text:
                return self.setting.parse(str(self.raw))
            return self.setting.read(self.raw)
        except ValueError as error:
            fault = self.setting.fault(self.raw, error, self.source)
            raise ConfigError(fault) from None


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A name that no setting has, and its source."""

    name: str
    source: str
    known: tuple[str, ...]
    shared: str = ""  # what all begin with, which does not make them similar

    def __str__(self) -> str:
        """The fault, with the nearest known name: the same key elsewhere, or a similar one."""
        from difflib import get_close_matches

        name = self.name[:100]  # difflib takes quadratic time
        key = name.split(".")[-1]
        same_key = [other for other in self.known if other.split(".")[-1] == key]
        by_suffix = {
            other.removeprefix(self.shared): other for other in sorted(self.known)
        }
        similar = get_close_matches(name.removeprefix(self.shared), by_suffix, 1)
        quoted = name if name.isprintable() else shown(name)
        fault = f"{self.source}: there is no setting {quoted}"
        for nearest in same_key or map(by_suffix.__getitem__, similar):
            return f"{fault}; the nearest is {nearest}"
        return (
            f"{fault}, nor one like it; remove it: without it `liveness check-config` "
            "lists those that there are"
        )


@dataclass(frozen=True, slots=True)
class OutletSection:
    """A section of an outlet, such as [webhooks.NAME]."""

    section: str
    name: str


# What a source has at one place. A ConfigError: the source cannot be read, or not there.
Found = SourcedValue | UnknownName | OutletSection | ConfigError


def from_flags(flags: Mapping[str, str | None]) -> Iterator[SourcedValue]:
    """Read the flags of a command line; None: it was not given."""
    for flag, text in flags.items():
        if text is not None:
            yield SourcedValue(_BY_FLAG[flag], text, f"flag {flag}", is_text=True)


def from_environment(environ: Mapping[str, str]) -> Iterator[Found]:
    """Read all variables that begin as ours do."""
    for name in sorted(environ):
        if name.startswith(_OUTLET_VARIABLES):
            yield ConfigError(
                f"environment: there is no setting {name[:100]}, as outlets are set in the "
                "settings file only; write it there, into the section of its outlet, such "
                "as [webhooks.NAME]"
            )
        elif name.startswith("LIVENESS_") and name not in RESERVED:
            if name in _BY_VARIABLE:
                source = f"environment {name}"
                yield SourcedValue(
                    _BY_VARIABLE[name], environ[name], source, is_text=True
                )
            else:
                known = (*_BY_VARIABLE, *RESERVED)
                yield UnknownName(name, "environment", known, "LIVENESS_")


def from_file(path: Path, *, must_exist: bool, is_reload: bool) -> Iterator[Found]:
    """Read a TOML file; see `read_tables`."""
    try:
        tables = read_tables(path, must_exist=must_exist, is_reload=is_reload)
    except ConfigError as error:
        yield error
        return
    for key, value in tables.items():
        if key in OUTLETS:
            yield from _outlets(path, key, value)
        elif key not in SECTIONS:
            yield _value_of(path, "", key, value)
        elif isinstance(value, dict):
            yield from (_value_of(path, key, inner, value[inner]) for inner in value)
        else:
            message = f"{path}: {key} is a section"
            yield ConfigError(f"{message}; write [{key}] on a line above its settings")


def _outlets(path: Path, section: str, outlets: object) -> Iterator[Found]:
    if not isinstance(outlets, dict):
        yield _in_no_outlet(path, section, section)
        return
    if len(outlets) > MOST_OUTLETS:
        yield ConfigError(
            f"{path}: there are {len(outlets)} sections [{section}.NAME]; at most "
            f"{MOST_OUTLETS} are allowed: remove some"
        )
        return
    for name, table in outlets.items():
        if not isinstance(table, dict):
            yield _in_no_outlet(path, section, f"{section}: {shown(name)}")
        elif not OUTLET_NAME.fullmatch(name):
            yield ConfigError(
                f"{path}: [{section}.{shown(name)}] has no valid name; it must be "
                f"{NAME_RULE}"
            )
        else:
            yield OutletSection(section, name)
            yield from _outlet_values(path, section, name, table)


def _outlet_values(
    path: Path, section: str, name: str, table: Mapping[str, object]
) -> Iterator[Found]:
    own = {setting.key: setting for setting in outlet_settings(section, name)}
    for key, setting in own.items():
        if setting.is_required and key not in table:
            yield ConfigError(
                f"{path}: [{section}.{name}] has no {key} ({setting.meaning}); add it: it "
                f"must be {setting.allowed}"
            )
    place = f"{section}.{name}."
    known = tuple(place + key for key in own)
    for key, value in table.items():
        if key in own:
            yield SourcedValue(own[key], value, str(path), is_text=False)
        else:
            yield UnknownName(place + key, str(path), known, place)


def _in_no_outlet(path: Path, section: str, place: str) -> ConfigError:
    return ConfigError(
        f"{path}: {place} is in the section of no outlet; write [{section}.NAME] on a line "
        "above its settings"
    )


def _value_of(path: Path, section: str, key: str, value: object) -> Found:
    name = f"{section}.{key}" if section else key
    if (section, key) not in _BY_PLACE:
        return UnknownName(name, str(path), (*BY_NAME, *SECTIONS, *OUTLETS))
    return SourcedValue(_BY_PLACE[section, key], value, str(path), is_text=False)
