"""`liveness bench`: measures on this machine what is promised."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from liveness.bench import FULL, OTHERS, QUICK, SCENARIOS, full
from liveness.bench.suite import run
from liveness.cli.options import folder_at, number, sized, sizes_of, writable

command: Final = App(
    name="bench",
    help_epilogue="Example: liveness bench steady silence --users 50000",
    version_flags=[],
)


@command.default
def bench(
    *scenario: Annotated[
        str,
        Parameter(
            name="SCENARIO",
            help="\n\n".join(f"{name}: {what}" for name, what in SCENARIOS.items()),
            choices=tuple(SCENARIOS),
            show_choices=False,
        ),
    ],
    users: Annotated[
        int | None, number(int, "N", sized("users", "users"), 100, 10_000_000)
    ] = None,
    rate: Annotated[
        int | None,
        number(
            int,
            "N",
            sized("rate", "frames a second in steady; 33000 with more users"),
            1,
            100_000,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        number(
            float,
            "S",
            sized(
                "seconds",
                "how long everyone speaks in steady, and then users fall silent",
            ),
            1,
            86_400,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        number(
            float,
            "S",
            sized("timeout_s", "silence timeout of those who fall silent"),
            1,
            86_400,
        ),
    ] = None,
    sizes: Annotated[
        tuple[int, ...] | None,
        Parameter(
            help="users beside other systems, one number after "
            "the other (default: powers of ten and 4000000, up to four times --users)",
            metavar="N,N",
            converter=sizes_of,
            n_tokens=1,
        ),
    ] = None,
    without: Annotated[
        tuple[str, ...] | None,
        Parameter(
            help="another system to leave out; can be given again. "
            + "; ".join(f"{name}: {what}" for name, what in OTHERS.items()),
            metavar="NAME",
            choices=tuple(OTHERS),
            show_choices=False,
        ),
    ] = None,
    quick: Annotated[
        bool, Parameter(help="few users and short times: whether it works, not how")
    ] = False,
    folder: Annotated[
        Path | None,
        Parameter(
            help="where the sidecar has its files: the disk that is measured "
            "(default: the temporary folder)",
            metavar="DIR",
            converter=folder_at,
        ),
    ] = None,
    json: Annotated[
        str | None,
        Parameter(
            help="write a report there too; - is stdout, and the table is on stderr",
            metavar="FILE",
            converter=writable,
            allow_leading_hyphen=True,  # of "-"
        ),
    ] = None,
) -> int:
    """Measure what is promised on this machine, from a gateway's side.

    All scenarios unless some are named. Those beside other systems want these installed.
    The exit code is 0 if every floor was met, 1 if one was missed.
    """
    flags: dict[str, Any] = {"users": users, "rate": rate, "seconds": seconds}
    flags |= {"timeout_s": timeout, "folder": folder}
    flags |= {"sizes": sizes, "without": without}
    given = {name: value for name, value in flags.items() if value is not None}

    options = replace(QUICK if quick else full(users or FULL.users), **given)
    return run(scenario or SCENARIOS, options, report=json)
