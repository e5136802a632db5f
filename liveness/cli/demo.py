"""`liveness demo`: a chat gateway, its users and a sidecar, checked."""

from functools import partial
from typing import Annotated, Final

import trio
from cyclopts import Parameter

from liveness.cli.options import as_written, declared, number
from liveness.demo.launcher import run

command: Final = declared("demo", "demo --seconds 60 --users 500")


@command.default
def demo(
    *,
    seconds: Annotated[
        float, number(float, "S", "how long it runs (default 40)", 1, 86_400)
    ] = 40.0,
    users: Annotated[
        int, number(int, "N", "simulated users (default 200)", 1, 10_000)
    ] = 200,
    timeout: Annotated[
        float, number(float, "S", "silence timeout (default 10)", 1, 86_400)
    ] = 10.0,
    script: Annotated[
        str,
        Parameter(
            help="what happens when: SECONDS and silence [N], gateway, stop [S], restart "
            "or kill, as in '5 silence, 10 gateway'",
            metavar="STEPS",
            converter=as_written,
        ),
    ] = "",
) -> int:
    """Run a chat gateway, simulated users and a sidecar, and check every decision.

    On a terminal it shows a live picture and takes keys.
    """
    code: int = trio.run(
        partial(run, seconds=seconds, users=users, timeout=timeout, script=script)
    )
    return code
