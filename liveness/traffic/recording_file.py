"""The file of a recording: written by a thread, and never in the way of a link.

Whatever happens to the file, it holds everything from the beginning up to one moment: a
recording with holes would be played as something that never was. So it does not rotate
either: without the hellos and logins at its beginning a replay means nothing.
"""

import io
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from liveness.traffic.traffic_lines import END, event_line

# What may wait for the disk: some seconds of the heaviest traffic. If it grows beyond
# that, the recording ends.
MAX_WAITING_BYTES: Final = 32 * 1024 * 1024
# For the last line, which says why the recording ended.
END_BYTES: Final = 200


class RecordingFile:
    """Takes lines at once, and writes them in the background.

    Args:
        file: Unbuffered; the caller closes it.
        name: As a person knows it.
        max_bytes: The size at which the recording ends.
        report_line: Called with one line when the recording ends before its time.
    """

    def __init__(
        self,
        file: io.RawIOBase,
        name: str,
        *,
        max_bytes: int,
        report_line: Callable[[str], None],
    ) -> None:
        self._file, self._name = file, name
        self._room = max_bytes - END_BYTES
        self._report_line = report_line
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._wanted = trio.Event()
        self.is_recording = True
        self._is_closed = False
        self._has_failed = False

    def write(self, line: str, at: float) -> None:
        """Add a line of the moment *at*, unless the recording has ended."""
        if not self.is_recording:
            return
        data = line.encode()
        if len(data) > self._room:
            self.end(at, "the file has its full size (--max-bytes)")
        elif self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
            self.end(at, "it is written too slowly")
        else:
            self._room -= len(data)
            self._add(data)

    def end(self, at: float, why: str, *, is_early: bool = True) -> None:
        """End the recording with a line that says why; the first call counts."""
        if self.is_recording:
            self.is_recording = False
            self._add(event_line(at, 0, END, why=why).encode())
            if is_early:
                self._report_end(why)

    def _report_end(self, why: str) -> None:
        self._report_line(
            f"{self._name}: {why}; the recording ends here, the links go on unrecorded"
        )

    def _add(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._wanted.set()

    def close(self) -> None:
        """Have `run` end once all is written."""
        self._is_closed = True
        self._wanted.set()

    async def run(self) -> None:
        """Write what is added, until `close`."""
        while self._waiting or not self._is_closed:
            await self._wanted.wait()
            self._wanted = trio.Event()
            data, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
            if self._has_failed:
                continue
            try:
                write = partial(self._write_all, data)
                await trio.to_thread.run_sync(write, abandon_on_cancel=True)
            except OSError as error:
                self._has_failed = True
                if self.is_recording:
                    self.is_recording = False
                    self._report_end(f"it cannot be written ({error.strerror})")

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError:
            # The disk is full: keep no half line. A pipe cannot be shortened.
            done = data[: len(data) - len(left)]
            half_line = len(done) - done.rfind(b"\n") - 1
            with suppress(OSError):
                file = self._file.fileno()
                os.ftruncate(file, os.fstat(file).st_size - half_line)
            raise
