"""Reads the settings from flags, environment, TOML file and defaults, in this order.

An unknown name is an error in each of them, so that a typo does not silently select the
default. All errors are reported together, in one line each that names the source.
"""

import os
import stat
import tomllib
from codecs import BOM_UTF8
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from liveness.config.outlet_settings import (
    MOST_OUTLETS,
    NAME_RULE,
    OUTLET_NAME,
    OUTLETS,
)
from liveness.config.schema import Setting, shown, variable_of
from liveness.config.settings import SECTIONS, SETTINGS, Config, outlet_settings
from liveness.errors import ConfigError

FILE_VARIABLE: Final = "LIVENESS_CONFIG"
# All settings with comments take a few KiB. A wrong file, such as a log, may be large.
MAX_FILE_BYTES: Final = 1_048_576
TOO_DEEP: Final = "not settings: nested too deeply"
DEFAULT_FILE: Final = Path("/etc/liveness/liveness.toml")
# Flags of a command that needs no socket, or no state: their defaults may not exist.
NO_SOCKET: Final = {"--socket": "/none"}
NO_STATE: Final = {"--state": "/none"}
# Faults that are described; the others are counted. Nobody corrects more at a time, and a
# wrong file may have a hundred thousand.
MAX_FAULTS: Final = 20
# Variables beginning with LIVENESS_ that are no settings; all others are refused.
RESERVED: Final = frozenset({FILE_VARIABLE, "LIVENESS_PURE_WHEEL"})
BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
_BY_FLAG: Final = {setting.flag: setting for setting in SETTINGS if setting.flag}
_BY_VARIABLE: Final = {setting.variable: setting for setting in SETTINGS}
_OUTLET_VARIABLES: Final = tuple(variable_of(f"{section}.") for section in OUTLETS)


def load(
    flags: Mapping[str, str | None] | None = None,
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    unix_user: int | None = None,
    default_file: Path = DEFAULT_FILE,
    is_reload: bool = False,
) -> Config:
    """Read the settings of this process.

    Args:
        flags: The values on the command line, by flag; None: the flag was not given.
        file: The TOML file of `--config`; None: that of the environment, or the default.
        environ: Replaces the environment of the process.
        unix_user: Replaces the Unix user of the process, for the default paths.
        default_file: Read if it exists and no other file is named.
        is_reload: Whether a running process reads its settings again. Then an empty file
            and a pipe are errors, not a wish for the defaults: the file may be about to be
            written, and a pipe was read at the start.
    Raises:
        ConfigError: The sources have unknown names or invalid values; it names them all.
            Settings that do not go together are named once each is valid.
    """
    environ = os.environ if environ is None else environ
    unix_user = os.geteuid() if unix_user is None else unix_user
    if file is None and FILE_VARIABLE in environ:
        file = Path(environ[FILE_VARIABLE])
    found = _Sources()
    found.read_flags(flags or {})
    found.read_environment(environ)
    path, must_exist = file or default_file, file is not None
    try:
        tables = _read_tables(path, must_exist=must_exist, is_reload=is_reload)
        found.read_tables(tables, str(path))
    except ConfigError as error:
        found.faults += error.faults
    except RecursionError:  # by dotted keys
        found.faults.append(f"{path}: {TOO_DEEP}; correct it there")
    defaults = {"socket.path": default_socket, "state.dir": default_state}
    for name, default in defaults.items():
        try:
            if name not in found.sources:
                found.take(BY_NAME[name], default(environ, unix_user), "default")
        except ConfigError as error:
            found.faults += error.faults
    found.check()
    return found.config()


def default_socket(environ: Mapping[str, str], unix_user: int) -> Path:
    """The path of the socket of the Unix user *unix_user*, which need not exist.

    Raises:
        ConfigError: The environment has no XDG_RUNTIME_DIR to make it in.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if unix_user == 0:
        return Path("/run/liveness/gateway.sock")
    if runtime.startswith("/"):  # the XDG specification ignores relative ones
        return Path(runtime) / "liveness/gateway.sock"
    raise ConfigError(
        "there is no XDG_RUNTIME_DIR to make the socket in; name one: --socket, or "
        "LIVENESS_SOCKET_PATH"
    )


def default_state(environ: Mapping[str, str], unix_user: int) -> Path:
    """The state folder of the Unix user *unix_user*, which need not exist.

    Raises:
        ConfigError: The environment has no HOME to keep it in.
    """
    if unix_user == 0:
        return Path("/var/lib/liveness")
    state, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if state.startswith("/"):
        return Path(state) / "liveness"
    if home.startswith("/"):
        return Path(home) / ".local/state/liveness"
    raise ConfigError(
        "there is no HOME to keep the state in; name a folder: --state, or LIVENESS_STATE_DIR"
    )


def socket_path(flag: str | None) -> Path:
    """The socket for a client command: `--socket`, or the one that `serve` would use.

    With the flag no other source is read: a client must work even if its user may not
    read the settings file, or if another setting is invalid.

    Raises:
        ConfigError: As for `load`.
    """
    return load(NO_STATE).socket.path if flag is None else _from_flag("--socket", flag)


def state_folder(flag: str | None) -> Path:
    """The state folder for a command: `--state`, or the one that `serve` would use.

    Raises:
        ConfigError: As for `load`.
    """
    return load(NO_SOCKET).state.dir if flag is None else _from_flag("--state", flag)


def _from_flag(flag: str, text: str) -> Path:
    found, setting = _Sources(), _BY_FLAG[flag]
    found.read_flags({flag: text})
    found.check()
    return Path(found.sections[setting.section][setting.key])


def _read_tables(path: Path, *, must_exist: bool, is_reload: bool) -> dict[str, Any]:
    """The tables of a settings file; none if it is missing and need not exist."""
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
            return {}
        message = f"{path}: the settings cannot be read ({error.strerror})"
        raise ConfigError(f"{message}; correct --config or {FILE_VARIABLE}") from None
    if is_reload and not data.strip():
        raise ConfigError(
            f"{path}: it is empty, perhaps about to be written; put a comment into it if "
            "the defaults are wanted"
        )
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


class _Sources:
    """What the sources have: valid values, the source of each, and what is wrong."""

    def __init__(self) -> None:
        # By section, also of an outlet, and key.
        self.sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        self.sources: dict[str, str] = {}
        self.faults: list[str] = []

    def take(
        self, setting: Setting, raw: object, source: str, *, is_text: bool = False
    ) -> None:
        """Take a value, as untyped text or not, unless an earlier source has one."""
        if setting.name in self.sources:
            return
        self.sources[setting.name] = source
        try:
            value = setting.parse(str(raw)) if is_text else setting.read(raw)
        except ValueError as error:
            self.faults.append(setting.fault(raw, error, source))
        else:
            self.sections[setting.section][setting.key] = value

    def check(self) -> None:
        if (more := len(self.faults) - MAX_FAULTS) > 0:
            last = f"{more} more settings are wrong; correct these first"
            self.faults[MAX_FAULTS:] = [last]
        if self.faults:
            raise ConfigError(*self.faults)

    def config(self) -> Config:
        """The settings.

        Raises:
            ConfigError: Some do not go together.
        """
        arguments: dict[str, Any] = {section: {} for section in OUTLETS}
        for place, values in self.sections.items():
            section, _, name = place.partition(".")
            if name:
                arguments[section][name] = OUTLETS[section](**values)
            elif section:
                arguments[section] = SECTIONS[section](**values)
            else:
                arguments |= values
        return Config(**arguments, sources=self.sources)

    def read_flags(self, flags: Mapping[str, str | None]) -> None:
        for flag, text in flags.items():
            if text is not None:
                self.take(_BY_FLAG[flag], text, f"flag {flag}", is_text=True)

    def read_environment(self, environ: Mapping[str, str]) -> None:
        """Read all variables that begin as ours do."""
        for name in sorted(environ):
            if name.startswith(_OUTLET_VARIABLES):
                self.faults.append(
                    f"environment: there is no setting {name[:100]}, as outlets are set in "
                    "the settings file only; write it there, into the section of its "
                    "outlet, such as [webhooks.NAME]"
                )
            elif name in _BY_VARIABLE:
                source = f"environment {name}"
                self.take(_BY_VARIABLE[name], environ[name], source, is_text=True)
            elif name.startswith("LIVENESS_") and name not in RESERVED:
                known = (*_BY_VARIABLE, *RESERVED)
                self._refuse(name, "environment", known, "LIVENESS_")

    def read_tables(self, tables: Mapping[str, object], source: str) -> None:
        known = (*BY_NAME, *SECTIONS, *OUTLETS)
        for name, value in tables.items():
            if name in OUTLETS:
                self._read_outlets(name, value, source)
            elif name not in SECTIONS:
                self._read_table("", {name: value}, BY_NAME, source, known)
            elif isinstance(value, dict):
                self._read_table(f"{name}.", value, BY_NAME, source, known)
            else:
                self.faults.append(
                    f"{source}: {name} is a section; write [{name}] on a line above its "
                    "settings"
                )

    def _read_table(
        self,
        place: str,
        table: Mapping[str, object],
        by_name: Mapping[str, Setting],
        source: str,
        known: tuple[str, ...],
    ) -> None:
        for key, value in table.items():
            setting = by_name.get(place + key)
            if setting is None or setting.key != key:
                shared = place if place.count(".") > 1 else ""
                self._refuse(place + key, source, known, shared)
            else:
                self.take(setting, value, source)

    def _read_outlets(self, section: str, outlets: object, source: str) -> None:
        if not isinstance(outlets, dict):
            self._refuse_place(section, section, source)
            return
        if len(outlets) > MOST_OUTLETS:
            self.faults.append(
                f"{source}: there are {len(outlets)} sections [{section}.NAME]; at most "
                f"{MOST_OUTLETS} are allowed: remove some"
            )
            return
        for name, table in outlets.items():
            place = f"{section}.{name}"
            if not isinstance(table, dict):
                self._refuse_place(section, f"{section}: {shown(name)}", source)
                continue
            if not OUTLET_NAME.fullmatch(name):
                self.faults.append(
                    f"{source}: [{section}.{shown(name)}] has no valid name; it must be "
                    f"{NAME_RULE}"
                )
                continue
            self.sections[place] = {}
            own = {setting.name: setting for setting in outlet_settings(section, name)}
            for setting in own.values():
                if setting.is_required and setting.key not in table:
                    self.faults.append(
                        f"{source}: [{place}] has no {setting.key} ({setting.meaning}); "
                        f"add it: it must be {setting.allowed}"
                    )
            self._read_table(f"{place}.", table, own, source, tuple(own))

    def _refuse_place(self, section: str, place: str, source: str) -> None:
        self.faults.append(
            f"{source}: {place} is in the section of no outlet; write [{section}.NAME] on "
            "a line above its settings"
        )

    def _refuse(
        self, name: str, source: str, known: tuple[str, ...], shared: str
    ) -> None:
        """Refuse an unknown name, and show the nearest: the same key, or a similar name.

        That all begin with *shared* does not make them similar.
        """
        if len(self.faults) >= MAX_FAULTS:
            self.faults.append(name)  # only counted
            return
        name = name[:100]  # difflib takes quadratic time
        key = name.split(".")[-1]
        same_key = [other for other in known if other.split(".")[-1] == key]
        by_suffix = {other.removeprefix(shared): other for other in sorted(known)}
        similar = get_close_matches(name.removeprefix(shared), by_suffix, 1)
        nearest = [*same_key, *map(by_suffix.__getitem__, similar)]
        fault = f"{source}: there is no setting {name if name.isprintable() else shown(name)}"
        if nearest:
            fault += f"; the nearest is {nearest[0]}"
        else:
            fault += (
                ", nor one like it; remove it: without it `liveness check-config` lists "
                "those that there are"
            )
        self.faults.append(fault)
