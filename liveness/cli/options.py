"""What the command line takes: flags and arguments, what they mean, and how they are read.

A value that cannot be is told by the reader that it is given to, and strictly: what
cyclopts would take for a number, or for nothing, may be a typing error.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Group, Parameter, Token
from cyclopts.validators import MutuallyExclusive

from liveness.bench import FULL, QUICK
from liveness.config.settings import SETTINGS
from liveness.core.frames import MAX_KEY_BYTES, MAX_NAME_BYTES
from liveness.core.records import KINDS, ROLES
from liveness.core.uids import is_text
from liveness.text import uid_of

BACKGROUND: Final = 10  # how nice a command is that nobody should notice
_AGO: Final = re.compile(r"-?(\d{1,9}) ?(s|m|min|h|d)( ago)?", re.ASCII)
_UNIT_S: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_TIME: Final = re.compile(r"\d?\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)


def as_written(_kind: Any, tokens: Sequence[Token]) -> str:
    """No conversion, and none of cyclopts' own, where "none" is no text."""
    return tokens[0].value


def setting_flag(flag: str, metavar: str) -> Parameter:
    """The flag of a setting, described by its field in `liveness.config.settings`."""
    (setting,) = (one for one in SETTINGS if one.flag == flag)
    allowed = setting.allowed
    if setting.default is not MISSING:
        allowed += f"; default {setting.default}"
    told = f"{setting.meaning} ({allowed})"
    return Parameter(name=flag, help=told, metavar=metavar, converter=as_written)


def number(
    kind: type[int | float], metavar: str, told: str, low: float, high: float
) -> Parameter:
    """A number within bounds; strict, as cyclopts lets "none" and NaN pass."""

    def read(_kind: Any, tokens: Sequence[Token]) -> float:
        text = tokens[0].value
        with suppress(ValueError):
            value = kind(text)
            if low <= value <= high:
                return value
        raise ValueError(f"{text!r} is not {low} to {high}")

    return Parameter(help=told, metavar=metavar, converter=read)


def sized(name: str, told: str) -> str:
    """The help of an amount of `bench`, with its two defaults."""
    full, quick = (getattr(one, name) for one in (FULL, QUICK))
    return f"{told} (default {full:g}, with --quick {quick:g})"


def sizes_of(_kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Numbers of users, as in 10000,100000."""
    sizes = tokens[0].value.split(",")
    if not all(size.isdecimal() and 100 <= int(size) <= 10_000_000 for size in sizes):
        raise ValueError(f"{tokens[0].value!r} is not numbers from 100 to 10000000")
    return tuple(map(int, sizes))


def folder_at(_kind: Any, tokens: Sequence[Token]) -> Path:
    """A folder that is there."""
    path = Path(tokens[0].value)
    if not path.is_dir():
        raise ValueError(f"{tokens[0].value!r} is no folder")
    return path


def file_at(_kind: Any, tokens: Sequence[Token]) -> str:
    """The name of a file, which begins like no flag."""
    text = tokens[0].value
    if text.startswith("-"):
        raise ValueError(f"{text!r} is a flag; ./{text} would be a file")
    if not text or "\0" in text:
        raise ValueError(f"{text!r} is no name of a file")
    return text


def writable(_kind: Any, tokens: Sequence[Token]) -> str:
    """A file that can be written, as far as that can be told beforehand; or `-`."""
    text = tokens[0].value
    path = Path(text)
    if text == "-":
        return text
    file_at(_kind, tokens)
    if path.is_dir():
        raise ValueError(f"{text!r} is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{text!r} cannot be written")
    return text


def lines_at(_kind: Any, tokens: Sequence[Token]) -> str:
    """A file to be read; or `-`."""
    return tokens[0].value if tokens[0].value == "-" else file_at(_kind, tokens)


def seconds_of(_kind: Any, tokens: Sequence[Token]) -> list[float]:
    """At most one number of seconds, for which there is time to look."""
    read = number(float, "SECONDS", "", 0.1, 86_400).converter
    assert callable(read)
    return [read(float, tokens)]


def path_of(flag: str | None) -> Path | None:
    """The path that a flag names, if it was given."""
    return None if flag is None else Path(flag)


# Flags of which one takes the other's sense away.
EITHER: Final = (
    Group.create_default_parameters(),
    Group(show=False, validator=MutuallyExclusive()),  # type: ignore[no-untyped-call]  # it has no types
)
Socket = Annotated[str | None, setting_flag("--socket", "PATH")]
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
Json = Annotated[bool, Parameter(help="JSON in place of text")]


def _text(what: str, most_bytes: int, tokens: Sequence[Token]) -> str:
    text = tokens[0].value
    if not is_text(text, most_bytes):
        raise ValueError(
            f"{text!r:.80} is no {what}: a string of 1 to {most_bytes} bytes of UTF-8 "
            "without control characters"
        )
    return text


def name_of(_kind: Any, tokens: Sequence[Token]) -> str:
    """The name of a gateway or watcher, as a link may have it."""
    return _text("name", MAX_NAME_BYTES, tokens)


def key_of(_kind: Any, tokens: Sequence[Token]) -> str:
    """The key of a timer, as a gateway may give it."""
    return _text("key", MAX_KEY_BYTES, tokens)


def ext_of(_kind: Any, tokens: Sequence[Token]) -> str:
    """What several timers share, as a gateway may give it."""
    return _text("ext", MAX_KEY_BYTES, tokens)


Key = Annotated[str, Parameter(help="the timer's key", metavar="KEY", converter=key_of)]
GatewayName = Annotated[
    str | None,
    Parameter(
        name="--gateway",
        help="only of this gateway",
        metavar="NAME",
        converter=name_of,
    ),
]


def user_of(_kind: Any, tokens: Sequence[Token]) -> str | int:
    """A user, as a person writes it."""
    return uid_of(tokens[0].value)


def _moment(_kind: Any, tokens: Sequence[Token]) -> int:
    from datetime import UTC, datetime

    return moment(tokens[0].value, datetime.now(UTC).astimezone())


def moment_flag(told: str) -> Parameter:
    """A moment, in milliseconds."""
    return Parameter(
        help=f"{told}: 2026-11-21T14:03, 14:03, or 15min for so long ago",
        metavar="T",
        converter=_moment,
        allow_leading_hyphen=True,  # of -15min
    )


UID_FORMS: Final = "int:7 is the integer, 7 the string"
UserName = Annotated[
    str | int,
    Parameter(
        help=f"the user ({UID_FORMS})", metavar="UID", converter=user_of, n_tokens=1
    ),
]
Kinds = Annotated[
    list[str] | None,
    Parameter(help="only this kind; may be repeated", choices=KINDS, metavar="KIND"),
]
Role = Annotated[
    str,
    Parameter(
        help="whether it is of a gateway (as if not given) or of a watcher",
        choices=ROLES,
        metavar="ROLE",
    ),
]


def moment(text: str, now: datetime) -> int:
    """The moment that somebody means, in Unix milliseconds.

    Args:
        text: `2026-11-21T14:03`, also with seconds, with a zone, or without a time;
            `14:03`, when it last was so late; `15min` ago, or s, m, h, d.
        now: This moment, in the host's zone, which is meant where none is named.
    Raises:
        ValueError: It is none of these.
    """
    try:
        if ago := _AGO.fullmatch(text):
            found = now - timedelta(seconds=int(ago[1]) * _UNIT_S[ago[2]])
        elif _TIME.fullmatch(text):
            of_day = time.fromisoformat(text if text[2] == ":" else f"0{text}")
            found = datetime.combine(now.date(), of_day)
            if found.timestamp() > now.timestamp():
                found -= timedelta(days=1)
        else:
            found = datetime.fromisoformat(text)
        return round(found.timestamp() * 1000)
    except (ValueError, OverflowError):
        told = f"{text!r:.80} is no time: write 2026-11-21T14:03, 14:03, or 15min"
        raise ValueError(f"{told} for so long ago") from None
