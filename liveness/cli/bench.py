"""`liveness bench`: measures the promised figures on this machine."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter, Token

from liveness.cli.options import declared, file_at, number
from liveness.lab.bench import COMPARED_SYSTEMS, FULL, QUICK, SCENARIOS, full_options
from liveness.lab.bench.regression import REPORT, TOLERANCE
from liveness.lab.bench.regression import guard as measure_and_compare
from liveness.lab.bench.suite import run


def _with_defaults(name: str, meaning: str) -> str:
    """The help of a flag, with its default and that of `--quick`."""
    default, quick = getattr(FULL, name), getattr(QUICK, name)
    return f"{meaning} (default {default:g}, with --quick {quick:g})"


def _sizes_of(_kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Numbers of users, as in 10000,100000."""
    sizes = tokens[0].value.split(",")
    if not all(size.isdecimal() and 100 <= int(size) <= 10_000_000 for size in sizes):
        raise ValueError(f"{tokens[0].value!r} is not numbers from 100 to 10000000")
    return tuple(map(int, sizes))


def _folder_at(_kind: Any, tokens: Sequence[Token]) -> Path:
    """A folder that exists."""
    path = Path(tokens[0].value)
    if not path.is_dir():
        raise ValueError(f"{tokens[0].value!r} is not a folder")
    return path


def _writable_at(_kind: Any, tokens: Sequence[Token]) -> str:
    """`-`, or a file that can be written as far as its permissions show."""
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


def _path_of(_kind: Any, tokens: Sequence[Token]) -> Path:
    """The name of a file."""
    return Path(file_at(_kind, tokens))


Scenario = Annotated[
    str,
    Parameter(
        name="SCENARIO",
        help="\n\n".join(f"{name}: {meaning}" for name, meaning in SCENARIOS.items()),
        choices=tuple(SCENARIOS),
        show_choices=False,
    ),
]
Users = Annotated[
    int | None, number(int, "N", _with_defaults("users", "users"), 100, 10_000_000)
]
_RATE: Final = "frames a second in steady; 33000 above 100000 users"
Rate = Annotated[
    int | None, number(int, "N", _with_defaults("rate", _RATE), 1, 100_000)
]
_SECONDS: Final = (
    "how long all users send in steady, and then how long users fall silent"
)
Seconds = Annotated[
    float | None, number(float, "S", _with_defaults("seconds", _SECONDS), 1, 86_400)
]
_TIMEOUT: Final = "silence timeout of the users that fall silent"
Timeout = Annotated[
    float | None, number(float, "S", _with_defaults("timeout_s", _TIMEOUT), 1, 86_400)
]
Sizes = Annotated[
    tuple[int, ...] | None,
    Parameter(
        help="numbers of users in the comparison with other systems "
        "(default: powers of ten and 4000000, up to four times --users)",
        metavar="N,N",
        converter=_sizes_of,
        n_tokens=1,
    ),
]
Without = Annotated[
    tuple[str, ...] | None,
    Parameter(
        help="another system to leave out; may be repeated. "
        + "; ".join(f"{name}: {meaning}" for name, meaning in COMPARED_SYSTEMS.items()),
        metavar="NAME",
        choices=tuple(COMPARED_SYSTEMS),
        show_choices=False,
    ),
]
Quick = Annotated[
    bool,
    Parameter(help="few users and short times: shows that it works, not how fast"),
]
Folder = Annotated[
    Path | None,
    Parameter(
        help="where the sidecar has its files: the disk that is measured "
        "(default: the temporary folder)",
        metavar="DIR",
        converter=_folder_at,
    ),
]
ReportFile = Annotated[
    str | None,
    Parameter(
        help="also write a report to FILE; - is stdout, and the table then goes to "
        "stderr",
        metavar="FILE",
        converter=_writable_at,
        allow_leading_hyphen=True,  # of "-"
    ),
]
EarlierReport = Annotated[
    Path,
    Parameter(
        name="REPORT",
        help="a report of `bench cost --json` (default: the one in the clone); a ratio "
        f"may be worse by {TOLERANCE:.0%}",
        converter=_path_of,
    ),
]

command: Final = declared("bench", "bench steady silence --users 50000")


@command.default
def bench(
    *scenario: Scenario,
    users: Users = None,
    rate: Rate = None,
    seconds: Seconds = None,
    timeout: Timeout = None,
    sizes: Sizes = None,
    without: Without = None,
    quick: Quick = False,
    folder: Folder = None,
    json: ReportFile = None,
) -> int:
    """Measure the promised figures on this machine, from a gateway's side.

    Runs all scenarios unless some are named. Those that compare other systems need them
    installed. The exit code is 0 if every floor was met, 1 if one was missed.
    """
    flags: dict[str, Any] = {"users": users, "rate": rate, "seconds": seconds}
    flags |= {"timeout_s": timeout, "folder": folder}
    flags |= {"sizes": sizes, "without": without}
    given = {name: value for name, value in flags.items() if value is not None}

    options = replace(QUICK if quick else full_options(users or FULL.users), **given)
    return run(scenario or SCENARIOS, options, report=json)


@command.command(help_epilogue="Example: liveness bench guard")
def guard(report: EarlierReport = REPORT, /) -> int:
    """Measure whether the sidecar costs more than before, compared with Redis.

    Runs a short comparison with redis-server, in less than a minute, and compares its
    ratios with those of an earlier report. The exit code is 0 if none is worse by more
    than the tolerance, 1 if one is, 2 if redis-server or the report is missing.
    """
    return measure_and_compare(report)
