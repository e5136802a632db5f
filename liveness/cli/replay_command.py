"""`liveness replay`: sends recorded traffic to a sidecar."""

import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import trio
from cyclopts import CycloptsError, Parameter

from liveness.cli.options import Json, declared, file_at, number
from liveness.config.sources import socket_path
from liveness.console.record_lines import ascii_json
from liveness.console.terminal import report_line
from liveness.traffic.replayer import Replayer
from liveness.traffic.traffic_file import TrafficFile, checked

command: Final = declared("replay", "replay fault.jsonl --socket test/gateway.sock")


@command.default
def replay(
    file: Annotated[
        str,
        Parameter(
            help="what `liveness record` wrote, or frames of msgpack back to back",
            metavar="FILE",
            converter=file_at,
            n_tokens=1,
        ),
    ],
    /,
    *,
    socket: Annotated[
        str | None,
        Parameter(
            help="the socket of a sidecar for this replay, which takes over the names of "
            "the recorded gateways; required",
            metavar="PATH",
            converter=file_at,
        ),
    ] = None,
    speed: Annotated[
        float,
        number(
            float,
            "K",
            "recorded seconds a second; 0: as fast as it goes (default 1)",
            0,
            1_000,
        ),
    ] = 1.0,
    stay: Annotated[
        float,
        number(
            float,
            "S",
            "keep the links that are open at the end for S more seconds",
            0,
            86_400,
        ),
    ] = 0.0,
    in_order: Annotated[
        bool,
        Parameter(
            help="send nothing before this sidecar has answered each ping that the "
            "recorded one had answered by then"
        ),
    ] = False,
    watch: Annotated[
        bool, Parameter(help="print what the sidecar answers, a line of JSON a frame")
    ] = False,
    json: Json = False,
) -> int:
    """Send recorded traffic of gateways to a sidecar, each frame at its time.

    Use a sidecar of its own: a replay takes over the names of the recorded gateways.
    Timeouts are those of that sidecar and of the recording: no speed changes them. Ends
    with 1 if something was refused that the recording has as accepted, or left unsent.
    """
    if socket is None:
        # Not that of the settings: its gateways would be replaced.
        raise CycloptsError(
            msg="name a sidecar for this replay with --socket, not that of real gateways",
            command_chain=("replay",),
        )
    traffic = checked(Path(file))
    _report(traffic)
    replayer = Replayer(
        socket_path(socket),
        traffic,
        speed=speed,
        stay_s=stay,
        in_order=in_order,
        on_answer=sys.stdout.write if watch else None,
    )
    trio.run(_replay, replayer)
    totals = replayer.totals
    if json:
        sys.stdout.write(f"{ascii_json(totals.as_map())}\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in totals.lines())
    return 0 if totals.is_as_recorded else 1


def _report(traffic: TrafficFile) -> None:
    path = traffic.path
    if traffic.is_cut:
        report_line(f"{path}: its last line is incomplete, and left out")
    if traffic.is_raw:
        report_line(f"{path}: frames without times: they are one link, sent at once")
    elif traffic.clock is None:
        report_line(
            f"{path} has no header: `began` of logins counts from the first hello's clock"
        )


async def _replay(replayer: Replayer) -> None:
    """Play until the end or a signal; then the totals so far are printed."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def stop_early() -> None:
                await anext(signals)
                report_line("stopped before the end")
                nursery.cancel_scope.cancel()

            nursery.start_soon(stop_early)
            await replayer.run()
            nursery.cancel_scope.cancel()
