"""`liveness record`: sits between gateways and the sidecar, and records their links."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Annotated, Final

import trio
from cyclopts import Parameter

from liveness.cli.options import declared, file_at, number
from liveness.config.sources import socket_path
from liveness.console.admin_client import CommandError
from liveness.console.terminal import report_line
from liveness.service.links.sockets import UnixListener, listening
from liveness.traffic.adaptation import clocks
from liveness.traffic.recorder import Recorder
from liveness.traffic.recording_file import RecordingFile
from liveness.traffic.traffic_lines import header_line

STDOUT: Final = 1
DEFAULT_MAX_BYTES: Final = 2**30
# How long the end waits for a disk, or for the reader of a pipe.
CLOSE_S: Final = 5.0

command: Final = declared(
    "record", "record /run/liveness/record.sock --out fault.jsonl"
)


@command.default
def record(
    path: Annotated[
        str,
        Parameter(
            help="the socket to listen on, for the gateways",
            metavar="PATH",
            converter=file_at,
            n_tokens=1,
        ),
    ],
    /,
    *,
    to: Annotated[
        str | None,
        Parameter(
            help="the sidecar's socket (default: socket.path of the settings)",
            metavar="SOCKET",
            converter=file_at,
        ),
    ] = None,
    out: Annotated[
        str | None,
        Parameter(
            help="a new file for the recording (default: stdout)",
            metavar="FILE",
            converter=file_at,
        ),
    ] = None,
    max_bytes: Annotated[
        int,
        number(
            int,
            "N",
            "the size at which the recording ends; links go on (default 1 GiB)",
            1_000,
            2**50,
        ),
    ] = DEFAULT_MAX_BYTES,
    raw: Annotated[
        bool,
        Parameter(help="record the pieces as they were read, in hex; not as frames"),
    ] = False,
) -> None:
    """Pass links on to the sidecar, byte for byte, and record both directions.

    Until SIGTERM or Ctrl-C. Each frame is a line of JSON; `liveness replay` plays them.

    The sidecar sees the recorder as the peer of these links: [access] has to allow its
    user what the gateways need.
    """
    at, sidecar = Path(path), socket_path(to)
    if at.resolve() == sidecar.resolve():
        raise CommandError(
            f"{at} is the sidecar's own socket: name another PATH, and have a gateway "
            "connect there"
        )
    with listening(at, other="another PATH") as listener, _opened(out) as file:
        trio.run(_record, listener, sidecar, file, out or "stdout", max_bytes, raw)


@contextmanager
def _opened(out: str | None) -> Iterator[FileIO]:
    """The file for the recording: private, since it has all that users are known by."""
    try:
        file = (
            FileIO(STDOUT, "wb", closefd=False)
            if out is None
            else FileIO(
                out, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)
            )
        )
    except FileExistsError:
        raise CommandError(f"{out} already exists; name another FILE") from None
    except OSError as error:
        raise CommandError(
            f"{out} cannot be made ({error.strerror}); name another FILE"
        ) from None
    with file:
        yield file


async def _record(
    listener: UnixListener,
    sidecar: Path,
    file: FileIO,
    name: str,
    max_bytes: int,
    is_raw: bool,
) -> None:
    recording = RecordingFile(file, name, max_bytes=max_bytes, report_line=report_line)
    reading = await clocks()
    recorder = Recorder(
        sidecar,
        recording,
        started=reading.host.monotonic_s - reading.offset,
        is_raw=is_raw,
        report_line=report_line,
    )
    recording.write(
        header_line(reading.host, socket=str(listener.path), to=str(sidecar)), 0
    )
    report_line(f"recording the links at {listener.path} to {sidecar} into {name}")
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recording.run)
            async with trio.open_nursery() as links:
                links.start_soon(recorder.serve, listener)
                await anext(signals)
                links.cancel_scope.cancel()
            recording.end(recorder.now(), "stopped", is_early=False)
            recording.close()
            nursery.cancel_scope.deadline = trio.current_time() + CLOSE_S
    report_line(
        f"passed on {recorder.passed_bytes:,} bytes of {recorder.links:,} links"
    )
