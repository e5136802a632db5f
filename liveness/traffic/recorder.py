"""Passes links on to the sidecar, byte for byte, and records what passes.

    gateway ── link ── recorder ── link ── sidecar

Each direction is read only as fast as its other side takes it, so back-pressure goes
through. A half-closed link stays half-closed. A side that has gone is gone for the other
one too, which still gets what was sent before.
"""

import itertools
import socket
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final

import trio

from liveness.traffic.frame_splitter import FrameSplitter
from liveness.traffic.recording_file import RecordingFile
from liveness.traffic.traffic_lines import (
    CLOSE,
    EOF,
    GATEWAY,
    OPEN,
    SIDECAR,
    data_line,
    event_line,
)

PIECE_BYTES: Final = 65_536  # as much as is held of one direction
# A frame that takes longer than this is recorded in the pieces in which it came. So a file
# is in the order of time, to this precision, and has the half frame that hung.
FRAME_S: Final = 0.25


class Recorder:
    """Records all links of a listener.

    Args:
        to: The sidecar's socket.
        recording: Where the lines go.
        started: The loop's time at `t` 0 of the recording.
        is_raw: Whether pieces are recorded as they were read, not as frames.
        report_line: Called with one line when the sidecar cannot be reached.
    """

    def __init__(
        self,
        to: Path,
        recording: RecordingFile,
        *,
        started: float,
        is_raw: bool,
        report_line: Callable[[str], None],
    ) -> None:
        self._to = to
        self.recording = recording
        self._started = started
        self.is_raw = is_raw
        self._report_line = report_line
        self._numbers = itertools.count(1)
        self._is_away_reported = False
        self.links = 0
        self.passed_bytes = 0

    def now(self) -> float:
        """Seconds since the recording began."""
        return trio.current_time() - self._started

    async def serve(self, listener: socket.socket) -> None:
        """Pass links on until cancelled."""
        listener = socket.socket(fileno=listener.detach())  # trio takes no subclass
        with trio.socket.from_stdlib_socket(listener) as sock:
            await trio.serve_listeners(self._link, [trio.SocketListener(sock)])

    async def _link(self, gateway: trio.SocketStream) -> None:
        number = next(self._numbers)
        self.links = number
        self.event(number, OPEN)
        more = {}
        async with gateway:
            try:
                sidecar = await trio.open_unix_socket(self._to)
            except OSError as error:
                more["why"] = f"no sidecar: {error.strerror or error}"
                self._report_away(error)
            else:
                self._is_away_reported = False
                async with sidecar, trio.open_nursery() as nursery:
                    for side, source, target in (
                        (GATEWAY, gateway, sidecar),
                        (SIDECAR, sidecar, gateway),
                    ):
                        direction = _Direction(self, number, side, source)
                        nursery.start_soon(direction.pass_on, target)
        self.event(number, CLOSE, **more)

    def _report_away(self, error: OSError) -> None:
        if not self._is_away_reported:
            self._is_away_reported = True
            self._report_line(
                f"no sidecar at {self._to} ({error.strerror or error}): links are closed until "
                "there is one; start it, or name another with --to"
            )

    def event(self, number: int, event: str, **more: str) -> None:
        """Record an event of a link."""
        now = self.now()
        self.recording.write(event_line(now, number, event, **more), now)


class _Direction:
    """What one side of a link sends to the other."""

    def __init__(
        self, recorder: Recorder, number: int, side: str, source: trio.SocketStream
    ) -> None:
        self._recorder, self._number = recorder, number
        self._side, self._source = side, source
        self._splitter = FrameSplitter()
        self._read_at = 0.0  # when the latest piece was read

    async def pass_on(self, target: trio.SocketStream) -> None:
        """Pass all on until either side ends."""
        while data := await self._received():
            self._record(data)
            self._recorder.passed_bytes += len(data)
            try:
                await target.send_all(data)
            except trio.BrokenResourceError:
                # The target has gone. The source learns it when it writes again, as on a
                # link of its own; what the target said last is still passed on.
                with suppress(OSError):
                    self._source.socket.shutdown(socket.SHUT_RD)
                self._flush()
                return
        self._flush()
        self._recorder.event(self._number, EOF, **{"from": self._side})
        with suppress(trio.BrokenResourceError, OSError):
            await target.send_eof()

    async def _received(self) -> bytes:
        """The next piece; empty at the end."""
        errors = 0
        while True:
            wait_s = FRAME_S if self._splitter.has_unfinished else inf
            with trio.move_on_after(wait_s) as waiting:
                try:
                    return bytes(await self._source.receive_some(PIECE_BYTES))
                except trio.BrokenResourceError:
                    # It closed without reading all. What it had sent comes after this
                    # error, which comes once.
                    errors += 1
                    if errors > 1:
                        return b""
            if waiting.cancelled_caught:
                self._flush()

    def _record(self, data: bytes) -> None:
        if not self._recorder.recording.is_recording:
            return
        self._read_at = self._recorder.now()
        if self._recorder.is_raw:
            self._write(data, is_frame=False)
            return
        for chunk in self._splitter.feed(data):
            self._write(*chunk)

    def _flush(self) -> None:
        for chunk in self._splitter.flush():
            self._write(*chunk)

    def _write(self, data: bytes, is_frame: bool) -> None:
        line = data_line(
            self._read_at, self._number, self._side, data, is_frame=is_frame
        )
        self._recorder.recording.write(line, self._read_at)
