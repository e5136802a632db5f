"""`liveness bench`: measures the promised figures on this machine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter, Token

from liveness.cli.options import declared, file_at, number
from liveness.lab.bench import FULL, QUICK, full_options
from liveness.lab.bench.suite import SCENARIOS, run
from liveness.lab.bench.systems import COMPARED_SYSTEMS


def _number(
    kind: type[int | float], field: str, meaning: str, low: float, high: float
) -> Parameter:
    """A number, whose help has its default and that of `--quick`."""
    default, quick = getattr(FULL, field), getattr(QUICK, field)
    help = f"{meaning} (default {default:g}, with --quick {quick:g})"
    return number(kind, "N" if kind is int else "S", help, low, high)


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


_SCENARIO: Final = "\n\n".join(
    f"{name}: {(scenario.__doc__ or '').splitlines()[0]}"
    for name, scenario in SCENARIOS.items()
)
_RATE: Final = "frames a second in steady; 33000 above 100000 users"
_SECONDS: Final = "how long all send in steady, and then how long users fall silent"
Scenario = Annotated[
    str,
    Parameter(
        name="SCENARIO", help=_SCENARIO, choices=tuple(SCENARIOS), show_choices=False
    ),
]
Users = Annotated[int | None, _number(int, "users", "users", 100, 10_000_000)]
Rate = Annotated[int | None, _number(int, "rate", _RATE, 1, 100_000)]
Seconds = Annotated[float | None, _number(float, "seconds", _SECONDS, 1, 86_400)]
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
        help="the disk that is measured (default: the temporary folder)",
        metavar="DIR",
        converter=_folder_at,
    ),
]
ReportFile = Annotated[
    str | None,
    Parameter(
        help="also write a report to FILE",
        metavar="FILE",
        converter=file_at,
    ),
]
command: Final = declared("bench", "bench steady silence --users 50000")


@command.default
def bench(
    *scenario: Scenario,
    users: Users = None,
    rate: Rate = None,
    seconds: Seconds = None,
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
    flags |= {"sizes": sizes, "without": without, "folder": folder}
    given = {name: value for name, value in flags.items() if value is not None}
    options = replace(QUICK if quick else full_options(users or FULL.users), **given)
    return run(scenario or SCENARIOS, options, report=Path(json) if json else None)
