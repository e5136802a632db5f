"""How a field declares a setting, and how its values are parsed."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin

Value = TypeVar("Value")

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB


def setting(
    default: Any,
    meaning: str,
    bounds: tuple[float, float] | None = None,
    unit: str = "",
    *,
    flag: str = "",
    check: Callable[[Any], None] | None = None,
    hidden: str | None = None,
) -> Any:
    """A field that is a setting; see `Setting`. It is required if *default* is MISSING."""
    metadata = {
        "meaning": meaning, "bounds": bounds, "unit": unit, "flag": flag, "check": check,
        "hidden": hidden,
    }  # fmt: skip
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def variable_of(name: str) -> str:
    """The environment variable of a setting; *name* is its dotted name."""
    return "LIVENESS_" + name.replace(".", "_").upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: the metadata of its field, and how its values are parsed."""

    section: str
    key: str
    kind: Any
    default: Any  # MISSING if it depends on the user: see liveness.config.sources
    meaning: str  # for `--help`, `deploy/liveness.toml` and the docs
    bounds: tuple[float, float] | None  # of a number
    unit: str  # of a number; for other values, what they must be
    flag: str = ""  # of `liveness serve`
    check: Callable[[Any], None] | None = (
        None  # raises a ValueError with what it must be
    )
    # A value that contains this pattern is never shown: it may hold a password.
    hidden: str | None = None

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def variable(self) -> str:
        return variable_of(self.name)

    @property
    def allowed(self) -> str:
        """What a value must be, as text: bounds and unit, or the choices."""
        if self.bounds is None:
            return self.unit or "one of " + ", ".join(get_args(self.kind))
        whole = "a whole number, " if self.kind is int else ""
        return f"{whole}{self.bounds[0]} to {self.bounds[1]} {self.unit}"

    def value_in(self, config: object) -> object:
        section, _, name = self.section.partition(".")
        holder: Any = getattr(config, section) if section else config
        return getattr(holder[name] if name else holder, self.key)

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    def hides(self, given: object) -> bool:
        if self.hidden is None or not given:
            return False
        return re.search(self.hidden, str(given)) is not None

    def fault(self, given: object, why: object, source: str = "") -> str:
        # Sections of outlets may hold passwords of other programs.
        if self.hides(given) or self.is_section:
            value = "not shown here, as it may hold a password"
        else:
            value = "not set" if given is None else shown(given)
        where = f" ({source})" if source else ""
        return f"{self.name} is {value}{where}: {why}"

    @property
    def is_path(self) -> bool:
        return Path in (self.kind, *get_args(self.kind))

    @property
    def is_section(self) -> bool:
        """Whether its value is a section of its own, with any keys."""
        return get_origin(self.kind) is Mapping

    def parse(self, text: str) -> object:
        """Parse a value from the command line or the environment.

        Raises:
            ValueError: The value is not allowed; the message says what it must be.
        """
        if self.kind is bool:
            return self.read({"true": True, "false": False}.get(text))
        if self.bounds is None:
            return self.read(text)
        try:
            number = self.kind(text)
        except ValueError:
            number = _float_of(text)  # "4.5" is a number, though not a whole one
        return self.read(number)

    def read(self, given: object) -> object:
        """Check a typed value, strictly: `true` is not a number, `4.0` not a whole one.

        Raises:
            ValueError: The value is not allowed; the message says what it must be.
        """
        if type(None) in get_args(self.kind) and given in (None, ""):
            return None
        value: object
        if self.kind is bool:
            value = given if isinstance(given, bool) else None
        elif self.is_section:
            value = _flat(given) if isinstance(given, Mapping) else None
        else:
            value = self._number(given) if self.bounds else self._text(given)
        if value is None:
            what = (
                "it is not a number; " if self.bounds and not _is_number(given) else ""
            )
            raise ValueError(f"{what}it must be {self.allowed}")
        if self.check is not None:
            self.check(value)
        return value

    def _number(self, given: object) -> float | None:
        types = (int, float) if self.kind is float else (int,)
        if isinstance(given, bool) or not isinstance(given, types) or not self.bounds:
            return None
        # Before the conversion: a TOML integer may be too large for a float.
        is_within = self.bounds[0] <= given <= self.bounds[1]
        return self.kind(given) if is_within else None

    def _text(self, given: object) -> str | Path | None:
        if self.is_path and isinstance(given, Path):
            given = str(given)
        if not isinstance(given, str):
            return None
        if self.is_path:
            return Path(given).absolute() if given and "\0" not in given else None
        choices = get_args(self.kind)
        return given if not choices or given in choices else None


def settings_in(table: type, section: str) -> Iterator[Setting]:
    for item in fields(table):
        if "meaning" in item.metadata:
            default = item.default
            if item.default_factory is not MISSING:
                default = item.default_factory()
            yield Setting(
                section=section, key=item.name, kind=item.type, default=default,
                **item.metadata,
            )  # fmt: skip


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Join the inner tables that dotted keys have made back into dotted keys."""
    found: dict[str, object] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        inner = (
            _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
        )
        if twice := found.keys() & inner.keys():
            raise ValueError(f"it has {shown(min(twice))} twice")
        found |= inner
    return found


def _is_number(given: object) -> bool:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return is_number and given == given  # NaN differs from itself


def _float_of(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def shown(given: object) -> str:
    """A value for an error message: on one line, cut if it is long."""
    try:
        text = repr(str(given) if isinstance(given, Path) else given)
    except ValueError:  # an integer of over 4,300 digits has no text
        return "a number beyond all bounds"
    return text if len(text) <= 60 else text[:57] + "…"
