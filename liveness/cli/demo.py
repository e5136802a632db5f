"""`liveness demo`: a chat gateway, its users and a sidecar, checked."""

from typing import Annotated, Final

import trio
from cyclopts import Parameter

from liveness.cli.options import as_written, declared, number
from liveness.lab.demo.demo_run import DemoOptions
from liveness.lab.demo.launcher import run
from liveness.lab.demo.script import MOST_HOSTS

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
    hosts: Annotated[
        int,
        number(
            int, "N", "hosts, joined by Redis if several (default 1)", 1, MOST_HOSTS
        ),
    ] = 1,
    script: Annotated[
        str,
        Parameter(
            help="what happens when: SECONDS and silence [N], gateway, stop [S], restart "
            "or kill; with several hosts silence [N], host [N] or redis, where "
            "the last two start again what they killed, as in '5 silence, 10 gateway'",
            metavar="STEPS",
            converter=as_written,
        ),
    ] = "",
    gateway: Annotated[
        str,
        Parameter(
            help="the command of another gateway, with {socket}, {name}, {port} and "
            "{most} (default: ours)",
            metavar="COMMAND",
            converter=as_written,
        ),
    ] = "",
) -> int:
    """Run a chat gateway, simulated users and a sidecar, and check every decision.

    With --hosts there are several sidecars and gateways, a Redis that the demo starts
    itself, and users that hop from host to host.

    With --gateway, a gateway of yours is in the place of ours. It gets what stands for
    {socket}, {name}, {port} and {most}, has to print "listens on 127.0.0.1:PORT" when
    users may come, and takes the lines of our users.

    On a terminal it shows a live picture and takes keys.
    """
    options = DemoOptions(
        seconds=seconds,
        users=users,
        timeout=timeout,
        hosts=hosts,
        script=script,
        gateway=gateway,
    )
    code: int = trio.run(run, options)
    return code
