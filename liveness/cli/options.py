"""Flags and arguments that several commands share, and how their values are read.

The converters are stricter than cyclopts, which reads "none" and NaN as numbers: such a
value is likely a typing error, and is refused with a message that names it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import MISSING
from typing import Annotated, Any, Final

from cyclopts import App, Parameter, Token

from liveness.config.settings import SETTINGS
from liveness.config.sources import NO_SOCKET, NO_STATE, load
from liveness.console.terminal import report_line
from liveness.core.records import KINDS, ROLES
from liveness.core.wire.uids import MAX_NAME_BYTES, is_text
from liveness.errors import ConfigError
from liveness.text import uid_of

BACKGROUND: Final = 10  # niceness of commands that must not slow the sidecar down


def declared(name: str, example: str, *, help: str | None = None) -> App:
    """A command, or a group of them, whose `--help` ends with an example."""
    return App(
        name=name,
        help=help,
        help_epilogue=f"Example: liveness {example}",
        version_flags=[],  # there is a command for it
    )


def device_separator() -> str:
    """What separates a device from its user, by the settings that `serve` would use."""
    try:
        return load(NO_SOCKET | NO_STATE).presence.device_separator
    except ConfigError as error:
        report_line(f"{error}; so devices of users are not looked for")
        return ""


# --- converters -----------------------------------------------------------------------


def as_written(_kind: Any, tokens: Sequence[Token]) -> str:
    return tokens[0].value


def number(
    kind: type[int | float], metavar: str, help: str, low: float, high: float
) -> Parameter:
    """A number from *low* to *high*."""

    def convert(_kind: Any, tokens: Sequence[Token]) -> float:
        text = tokens[0].value
        with suppress(ValueError):
            value = kind(text)
            if low <= value <= high:
                return value
        raise ValueError(f"{text!r} is not {low} to {high}")

    return Parameter(help=help, metavar=metavar, converter=convert)


def file_at(_kind: Any, tokens: Sequence[Token]) -> str:
    """A file name that cannot be mistaken for a flag."""
    text = tokens[0].value
    if text.startswith("-"):
        raise ValueError(f"{text!r} is a flag; ./{text} would be a file")
    if not text or "\0" in text:
        raise ValueError(f"{text!r} is not a file name")
    return text


def text_of(what: str, max_bytes: int) -> Callable[[Any, Sequence[Token]], str]:
    """A converter for text that a gateway may send as *what*."""

    def convert(_kind: Any, tokens: Sequence[Token]) -> str:
        text = tokens[0].value
        if not is_text(text, max_bytes):
            raise ValueError(
                f"{text!r:.80} is no {what}: a string of 1 to {max_bytes} bytes of UTF-8 "
                "without control characters"
            )
        return text

    return convert


def user_of(_kind: Any, tokens: Sequence[Token]) -> str | int:
    """A user: `7` is the string, `int:7` the integer."""
    return uid_of(tokens[0].value)


# --- flags and arguments --------------------------------------------------------------


def setting_flag(flag: str, metavar: str) -> Parameter:
    """The flag of a setting, described by its field in `liveness.config.settings`."""
    (setting,) = (setting for setting in SETTINGS if setting.flag == flag)
    allowed = setting.allowed
    if setting.default is not MISSING:
        allowed += f"; default {setting.default}"
    help = f"{setting.meaning} ({allowed})"
    return Parameter(name=flag, help=help, metavar=metavar, converter=as_written)


Socket = Annotated[str | None, setting_flag("--socket", "PATH")]
# Not a Path: for that the completion of cyclopts offers folders as whole words, and bash
# does not complete the names in them.
ConfigFile = Annotated[
    str | None,
    Parameter(
        help="TOML file of settings, which must exist "
        "(else $LIVENESS_CONFIG, else /etc/liveness/liveness.toml if it is there)",
        metavar="FILE",
        converter=as_written,
    ),
]
State = Annotated[str | None, setting_flag("--state", "DIR")]
Limit = Annotated[int, number(int, "N", "at most N (default 100)", 1, 2**63 - 1)]
Json = Annotated[bool, Parameter(help="JSON in place of text")]
name_of: Final = text_of("name", MAX_NAME_BYTES)
GatewayName = Annotated[
    str | None,
    Parameter(
        name="--gateway",
        help="only of this gateway",
        metavar="NAME",
        converter=name_of,
    ),
]
UserName = Annotated[
    str | int,
    Parameter(help="the user", metavar="UID", converter=user_of, n_tokens=1),
]
Kinds = Annotated[
    list[str] | None,
    Parameter(help="only this kind; may be repeated", choices=KINDS, metavar="KIND"),
]
Role = Annotated[
    str,
    Parameter(
        help="names of gateways (default) or of watchers", choices=ROLES, metavar="ROLE"
    ),
]
