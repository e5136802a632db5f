"""Reads the settings from flags, environment, TOML file and defaults, in this order.

An unknown name is an error in each of them, so that a typo does not silently select the
default. All errors are reported together, in one line each that names the source.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from liveness.config.cluster import ClusterSettings
from liveness.config.outlet_settings import OUTLETS
from liveness.config.paths import default_socket, default_state
from liveness.config.schema import Setting
from liveness.config.settings import (
    SETTINGS,
    Config,
    HttpSettings,
    outlet_settings,
)
from liveness.config.settings_file import FILE_VARIABLE
from liveness.config.source_readers import (
    BY_NAME,
    SECTIONS,
    OutletSection,
    SourcedValue,
    UnknownName,
    from_environment,
    from_file,
    from_flags,
)
from liveness.errors import ConfigError

DEFAULT_FILE: Final = Path("/etc/liveness/liveness.toml")
# Faults that are described; the others are counted. Nobody corrects more at a time, and a
# wrong file may have a hundred thousand.
MAX_FAULTS: Final = 20
# The other settings that may conflict with those of an outlet: the arguments of `faults`.
_OF_OUTLETS: Final = ("state.retention_s", "presence.device_separator")
# Defaults that depend on the user and the environment.
_DEFAULT_PATHS: Final = {"socket.path": default_socket, "state.dir": default_state}


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and the source of each by name."""

    config: Config
    sources: dict[str, str]


def load(
    flags: Mapping[str, str | None] | None = None,
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    unix_user: int | None = None,
    default_file: Path = DEFAULT_FILE,
    is_reload: bool = False,
) -> Loaded:
    """Read the settings of this process.

    Args:
        flags: The values on the command line, by flag; None: the flag was not given.
        file: The TOML file of `--config`; None: that of the environment, or the default.
        environ: Replaces the environment of the process.
        unix_user: Replaces the Unix user of the process, for the default paths.
        default_file: Read if it exists and no other file is named.
        is_reload: Whether a running process reads its settings again. Then a pipe, which
            can be read only once, and an empty file, which may be about to be written,
            are errors: neither means that the defaults are wanted.
    Raises:
        ConfigError: The sources have unknown names or invalid values; it names them all.
    """
    environ = os.environ if environ is None else environ
    unix_user = os.geteuid() if unix_user is None else unix_user
    if file is None and FILE_VARIABLE in environ:
        file = Path(environ[FILE_VARIABLE])
    found = [*from_flags(flags or {}), *from_environment(environ)]
    path, must_exist = file or default_file, file is not None
    found += from_file(path, must_exist=must_exist, is_reload=is_reload)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    faults = [given for given in found if isinstance(given, UnknownName | ConfigError)]
    for given in found:
        if isinstance(given, SourcedValue) and given.setting.name not in sources:
            sources[given.setting.name] = given.source  # an earlier source wins
            try:
                values[given.setting.name] = given.value()
            except ConfigError as error:
                faults.append(error)
    every = dict(BY_NAME)
    for given in found:
        if isinstance(given, OutletSection):
            own = outlet_settings(given.section, given.name)
            every |= {setting.name: setting for setting in own}
    for name, setting in every.items():
        has_default = not setting.is_required or name in _DEFAULT_PATHS
        if name not in sources and has_default:
            sources[name] = "default"
            try:
                values[name] = _default(setting, environ, unix_user)
            except ConfigError as error:
                faults.append(error)
    faults += _between_settings(values, sources)
    described = [str(fault) for fault in faults[:MAX_FAULTS]]
    if more := len(faults) - len(described):
        described.append(f"{more} more settings are wrong; correct these first")
    if described:
        raise ConfigError(*described)
    return Loaded(_build(values), sources)


def socket_path(flag: str | None) -> Path:
    """The socket for a client command: `--socket`, or the one that `serve` would use.

    With the flag no other source is read: a client must work even if its user may not
    read the settings file, or if another setting is invalid.

    Raises:
        ConfigError: As for `load`.
    """
    return load().config.socket.path if flag is None else _from_flag("--socket", flag)


def state_folder(flag: str | None) -> Path:
    """The state folder for a command: `--state`, or the one that `serve` would use.

    Raises:
        ConfigError: As for `load`.
    """
    return load().config.state.dir if flag is None else _from_flag("--state", flag)


def _from_flag(flag: str, text: str) -> Path:
    (given,) = from_flags({flag: text})
    return Path(str(given.value()))


def _default(setting: Setting, environ: Mapping[str, str], unix_user: int) -> object:
    if setting.name not in _DEFAULT_PATHS:
        return setting.default
    found = _DEFAULT_PATHS[setting.name](environ, unix_user)
    return SourcedValue(setting, found, "default", is_text=False).value()


def _between_settings(
    values: Mapping[str, Any], sources: Mapping[str, str]
) -> Iterator[ConfigError]:
    """The faults of valid values that do not go together."""
    address = "http.address"
    if {address, "http.token_file"} <= values.keys():
        http = HttpSettings(
            address=values[address], token_file=values["http.token_file"]
        )
        if why := http.why_not_open:
            fault = BY_NAME[address].fault(values[address], why, sources[address])
            yield ConfigError(fault)
    cluster = _section("cluster", values)
    if len(cluster) == sum(it.section == "cluster" for it in SETTINGS):  # all are valid
        for key, why in ClusterSettings(**cluster).faults():
            setting = BY_NAME[f"cluster.{key}"]
            source = sources[setting.name]
            yield ConfigError(setting.fault(cluster[key], why, source))
    if {*_OF_OUTLETS} <= values.keys():
        yield from _between_outlets(values, sources)


def _between_outlets(
    values: Mapping[str, Any], sources: Mapping[str, str]
) -> Iterator[ConfigError]:
    others = [values[other] for other in _OF_OUTLETS]
    for section, name in _outlet_names(sources):
        settings = {it.key: it for it in outlet_settings(section, name)}
        place = f"{section}.{name}"
        own = _section(place, values)
        if len(own) < len(settings):  # one is not valid
            continue
        for key, why in OUTLETS[section](**own).faults(*others):
            if key in settings:
                source = sources[f"{place}.{key}"]
                yield ConfigError(settings[key].fault(own[key], why, source))
            else:  # of [kafka.NAME.client]; its values may be secrets
                source = sources[f"{place}.client"]
                yield ConfigError(f"{place}.{key} ({source}): {why}")


def _outlet_names(sources: Mapping[str, object]) -> list[tuple[str, str]]:
    """The sections and names of the configured outlets."""
    places = [name.split(".") for name in sources]
    found = [(place[0], place[1]) for place in places if place[0] in OUTLETS]
    return [*dict.fromkeys(found)]


def _section(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The valid values of a section, or of that of an outlet, by key."""
    places = {name: name.rpartition(".") for name in values}
    return {key: values[name] for name, (of, _, key) in places.items() if of == section}


def _build(values: Mapping[str, Any]) -> Config:
    arguments = _section("", values)
    types: dict[str, Any] = {item.name: item.type for item in fields(Config)}
    for section in SECTIONS:
        arguments[section] = types[section](**_section(section, values))
    arguments |= {section: {} for section in OUTLETS}
    for section, name in _outlet_names(values):
        arguments[section][name] = OUTLETS[section](
            **_section(f"{section}.{name}", values)
        )
    return Config(**arguments)
