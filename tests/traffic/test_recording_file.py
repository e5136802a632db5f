"""The file of a recording: whatever happens to it, no line waits, and none is cut."""

import errno
import io
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from liveness.traffic import recording_file
from liveness.traffic.recording_file import END_BYTES, RecordingFile

LINE = "x" * 99 + "\n"


class SmallDisk(io.FileIO):
    """A file on a disk with room for some bytes more."""

    room = 250

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = super().write(data[: self.room])
        self.room -= written
        return written


async def recorded(
    recording: RecordingFile, body: Callable[[RecordingFile], Awaitable[None]]
) -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recording.run)
            await body(recording)
            recording.close()


async def three_lines(recording: RecordingFile) -> None:
    for number in range(3):
        recording.write(LINE, number)


def test_it_ends_at_its_size_with_a_line_that_says_so(tmp_path: Path) -> None:
    reported: list[str] = []
    path, size = tmp_path / "f", 2 * len(LINE) + END_BYTES
    with io.FileIO(path, "xb") as file:
        recording = RecordingFile(
            file, "f", max_bytes=size, report_line=reported.append
        )
        trio.run(recorded, recording, three_lines)
    *lines, end = path.read_text().splitlines()
    assert len(lines) == 2
    assert '"event":"end"' in end
    assert path.stat().st_size <= size
    assert len(reported) == 1


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    reported: list[str] = []
    path = tmp_path / "f"
    with SmallDisk(path, "xb") as file:
        recording = RecordingFile(
            file, "f", max_bytes=9_999, report_line=reported.append
        )
        trio.run(recorded, recording, three_lines)
        assert not recording.is_recording
    assert path.read_text() == 2 * LINE
    assert len(reported) == 1
    assert "No space left" in reported[0]


def test_a_reader_that_is_too_slow_ends_it_and_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording_file, "MAX_WAITING_BYTES", 500_000)
    reported: list[str] = []
    reader, writer = os.pipe()

    text = bytearray()

    async def read_all() -> None:
        while not text.endswith(b'"event":"end"}\n'):
            text.extend(await trio.to_thread.run_sync(os.read, reader, 65_536))

    async def body(recording: RecordingFile) -> None:
        for number in range(20_000):  # 2 MB, of which the pipe holds 64 KiB
            recording.write(LINE, number)
            if not number % 100:
                await trio.lowlevel.checkpoint()
        assert not recording.is_recording
        await read_all()

    with io.FileIO(writer, "wb") as file:
        recording = RecordingFile(
            file, "f", max_bytes=2**30, report_line=reported.append
        )
        trio.run(recorded, recording, body)
    os.close(reader)
    assert len(reported) == 1
    assert "it is written too slowly" in reported[0]
