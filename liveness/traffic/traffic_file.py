"""Reads recorded traffic: lines of `liveness record`, or frames of msgpack back to back.

A file is read twice: it is checked as a whole before anything is sent.
"""

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from liveness.console.admin_client import CommandError
from liveness.core.records import HostTime
from liveness.traffic.frame_splitter import FrameSplitter
from liveness.traffic.traffic_lines import (
    CLOSE,
    END,
    GATEWAY,
    OPEN,
    Header,
    LineError,
    TrafficLine,
    frame_of,
    parsed,
)

PIECE_BYTES: Final = 65_536
# The longest frame of a recording, if each of its bytes takes six characters in JSON and
# stands there in hex as well.
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
# How a line of JSON begins. In msgpack it is an integer, which is no frame.
BRACE: Final = b"{"


@dataclass(slots=True)
class TrafficFile:
    """A file that was checked.

    Attributes:
        path: Of the file.
        is_raw: Whether it has frames in place of lines.
        began: `t` of the first line that is no header.
        seconds: From there to the last.
        links: How many there are.
        clock: The clocks of the recorder at `t` 0; None: without a header.
        is_cut: Whether the last line or frame is incomplete, and left out.
    """

    path: Path
    is_raw: bool = False
    began: float = 0.0
    seconds: float = 0.0
    links: int = 0
    clock: HostTime | None = None
    is_cut: bool = False

    def lines(self) -> Iterator[TrafficLine]:
        """What happened, in the file's order."""
        with self.path.open("rb") as file:
            if self.is_raw:
                yield from _frames(file)
                return
            for _, line in _lines(self.path, file):
                if isinstance(line, TrafficLine):
                    yield line


def checked(path: Path) -> TrafficFile:
    """Read the whole file.

    Raises:
        CommandError: It cannot be read, or holds no traffic; it names the line.
    """
    try:
        if not path.is_file():
            path.stat()
            raise CommandError(f"{path} is not a file; name a recording")
        with path.open("rb") as file:
            begin = file.read(len(BOM_UTF8) + 1).removeprefix(BOM_UTF8)
            file.seek(0)
            if not begin:
                raise CommandError(f"{path} is empty: is it the right file?")
            found = TrafficFile(path, is_raw=begin[:1] != BRACE)
            if found.is_raw:
                _check_frames(found, file)
            else:
                _check_lines(found, file)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}; name a recording") from None
    return found


def _check_lines(found: TrafficFile, file: BinaryIO) -> None:
    opened, closed = set[int](), set[int]()
    began: float | None = None
    for number, line in _lines(found.path, file):
        if line is None:
            found.is_cut = True
        elif isinstance(line, Header):
            if number > 1:
                raise _wrong(
                    found.path, number, "a second header; play one recording at a time"
                )
            found.clock = line.clock
        else:
            if line.link in closed:
                why = (
                    f"link {line.link} is closed already; give the line another number"
                )
                raise _wrong(found.path, number, why)
            began = line.at if began is None else began
            found.seconds = max(found.seconds, line.at - began)
            if line.event == CLOSE:
                closed.add(line.link)
            elif line.event != END:
                opened.add(line.link)
    found.began, found.links = began or 0.0, len(opened | closed)
    if not found.links:
        raise CommandError(f"{found.path} has no link: nothing was recorded")


def _lines(
    path: Path, file: BinaryIO
) -> Iterator[tuple[int, Header | TrafficLine | None]]:
    """The lines with their numbers; None for the last one if it is incomplete."""
    number = 0
    while data := file.readline(MAX_LINE_BYTES):
        number += 1
        if not data.strip():
            continue
        is_complete = data.endswith(b"\n")
        if not is_complete and len(data) == MAX_LINE_BYTES:
            raise _wrong(path, number, f"over {MAX_LINE_BYTES:,} bytes; delete it")
        try:
            yield number, parsed(data.decode("utf-8-sig"))
        except (LineError, UnicodeDecodeError) as error:
            if is_complete:
                raise _wrong(path, number, f"{error}") from None
            yield number, None


def _wrong(path: Path, number: int, why: str) -> CommandError:
    return CommandError(f"{path}, line {number}: {why}")


def _check_frames(found: TrafficFile, file: BinaryIO) -> None:
    splitter, frames = FrameSplitter(), 0
    while data := file.read(PIECE_BYTES):
        for chunk in splitter.feed(data):
            frames += chunk.is_frame and frame_of(chunk.data) is not None
        if not frames or splitter.is_broken:
            break
    if not frames or splitter.is_broken:
        raise CommandError(
            f"{found.path} has neither lines of `liveness record` nor frames of msgpack "
            f"(after {frames:,} frames); name a recording"
        )
    found.is_cut, found.links = splitter.has_unfinished, 1


def _frames(file: BinaryIO) -> Iterator[TrafficLine]:
    splitter = FrameSplitter()
    yield TrafficLine(0.0, 1, event=OPEN)
    while data := file.read(PIECE_BYTES):
        for sent, _ in splitter.feed(data):
            yield TrafficLine(0.0, 1, GATEWAY, data=sent, frame=frame_of(sent))
