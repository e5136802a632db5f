"""The limits that operators cannot set: fields of the settings' sections."""

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final

from liveness.config.settings import SETTINGS, Config
from liveness.core.limits import Limits

_NAMES: Final = {setting.name for setting in SETTINGS}
# By name, such as `http.max_streams`.
FIXED_LIMITS: Final[dict[str, Any]] = {
    name: item.default
    for outer in fields(Config)
    if is_dataclass(outer.type)
    for item in fields(outer.type)
    if (name := f"{outer.name}.{item.name}") not in _NAMES
    and item.default is not MISSING
}
# Of these the section is that of what they bound.
FIXED_LIMITS.update(
    {
        f"{section}.{key}": getattr(Limits(), key)
        for section, key in (
            ("timers", "max_pending"),
            ("cluster", "max_questions"),
            ("cluster", "max_link_questions"),
        )
    }
)
