"""Sends recorded traffic to a sidecar, and counts what it answers.

A task reads the lines and waits for the time of each. Each link has a task that sends, one
that receives, and one that acknowledges, so that a link that does not get on delays the
others only once its queue is full.

Two orders of the recording are kept at any speed. A link goes on after a `welcome` only
once this sidecar has welcomed it. And the others go on after the end of a link only once
this sidecar has ended it: else the next link by its name would replace it. In order, all
links also wait for each `pong`. Links that are open in the end are sent a ping: its pong
says that every frame has been answered.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final

import trio

from liveness.console.admin_client import unreachable
from liveness.core.framing import encode
from liveness.core.records import HostTime
from liveness.host_clock import read_host
from liveness.traffic.adaptation import (
    NO_WAIT_SPEED,
    Adapter,
    ReplayTime,
    SentPosition,
    clocks,
)
from liveness.traffic.frame_splitter import FrameSplitter
from liveness.traffic.replay_totals import ReplayTotals
from liveness.traffic.traffic_file import TrafficFile
from liveness.traffic.traffic_lines import (
    CLOSE,
    END,
    EOF,
    SIDECAR,
    TrafficLine,
    data_line,
    frame_of,
)

PIECE_BYTES: Final = 65_536
# Lines that wait for one link.
MAX_WAITING_LINES: Final = 1_000
# How long a link waits for `welcome`, for a last pong, and for the sidecar to close it. A
# sidecar whose disk is slow answers after that; the replay goes on.
ANSWER_S: Final = 5.0
# How long the other links wait for the end of one.
CLOSE_S: Final = 1.0
# What the last ping of a link asks for; a gateway would hardly send the same.
LAST_PING: Final = "liveness replay"
# The frames of a recorded sidecar that a link waits for, or is compared with.
COMPARED: Final = frozenset({"welcome", "error"})


@dataclass(slots=True, eq=False)
class ReplayedLink:
    """A link of the recording, and of the replay."""

    number: int
    adapter: Adapter
    lines: trio.MemorySendChannel[TrafficLine]
    stream: trio.SocketStream | None = None  # while it can be written to
    ack: list[Any] | None = None  # to send for the recorded gateway
    ack_due: trio.Event = field(default_factory=trio.Event)
    sent: FrameSplitter = field(default_factory=FrameSplitter)
    writing: trio.Lock = field(default_factory=trio.Lock)
    is_welcome: bool = False
    has_ended: bool = False
    pongs: int = 0
    is_last_pong: bool = False
    progress: trio.Event = field(default_factory=trio.Event)
    # Of the recording.
    recorded: FrameSplitter = field(default_factory=FrameSplitter)
    recorded_pongs: int = 0
    is_closed: bool = False
    was_over: bool = False  # the sidecar had ended it by now, or refused it

    def notify(self) -> None:
        """Wake up all that wait for progress."""
        self.progress.set()
        self.progress = trio.Event()

    async def reached(self, is_so: Callable[[], bool], within_s: float) -> None:
        """Wait until it is so, or the link has ended, or for so long."""
        with trio.move_on_after(within_s):
            while not (is_so() or self.has_ended):
                await self.progress.wait()


class Replayer:
    """Plays one file.

    Args:
        socket_path: Of the sidecar.
        file: What is played.
        speed: Recorded seconds a second; 0: as fast as it goes.
        stay_s: How long the links that are open at the end are kept.
        in_order: Whether all links wait for each `pong` of the recording.
        on_answer: Called with each frame of the sidecar, as a line of a recording.
    """

    def __init__(
        self,
        socket_path: Path,
        file: TrafficFile,
        *,
        speed: float,
        stay_s: float = 0.0,
        in_order: bool = False,
        on_answer: Callable[[str], object] | None = None,
    ) -> None:
        self._socket_path, self._file = socket_path, file
        self._speed, self._stay_s = speed, stay_s
        self._in_order = in_order
        self._on_answer = on_answer
        self._links: dict[int, ReplayedLink] = {}
        self._names: dict[tuple[str, str], SentPosition] = {}
        self._started = 0.0
        self.totals = ReplayTotals()

    async def run(self) -> None:
        """Play all, to the end of the last link.

        Raises:
            CommandError: There is no sidecar.
        """
        reading = await clocks()

        def read_clocks() -> HostTime:
            # An old reading will do: it is the difference of the two clocks that counts.
            return (read_host(trio.current_time) or reading).host

        file, self._started = self._file, trio.current_time()
        recorded = file.clock and HostTime(*(it + file.began for it in file.clock))
        time = ReplayTime(
            self._speed or NO_WAIT_SPEED,
            reading.host.monotonic_s,
            read_clocks,
            recorded,
        )
        async with trio.open_nursery() as nursery:
            for line in file.lines():
                if line.event != END:
                    await self._play(line, time, nursery)
            # The recording may have gone on after its last frame.
            await trio.sleep_until(self._due(file.began + file.seconds))
            await trio.sleep(self._stay_s)
            for link in self._links.values():
                link.lines.close()
        self.totals.seconds = trio.current_time() - self._started

    def _due(self, at: float) -> float:
        """The loop's time of what is recorded as *at*."""
        if not self._speed:
            return -inf
        return self._started + (at - self._file.began) / self._speed

    async def _play(
        self, line: TrafficLine, time: ReplayTime, nursery: trio.Nursery
    ) -> None:
        if (due := self._due(line.at)) > trio.current_time():
            await trio.sleep_until(due)
        link = self._links.get(line.link)
        if link is None:
            sender, lines = trio.open_memory_channel[TrafficLine](MAX_WAITING_LINES)
            adapter = Adapter(time, self._names, self.totals.changed)
            link = self._links[line.link] = ReplayedLink(line.link, adapter, sender)
            nursery.start_soon(self._run_link, link, lines)
        if line.side == SIDECAR and not line.event:
            for frame in _frames_of(link, line):
                await self._compare(link, line._replace(frame=frame))
            return
        await link.lines.send(line)
        if line.event == CLOSE:
            link.lines.close()
            await link.reached(lambda: False, CLOSE_S)

    async def _compare(self, link: ReplayedLink, line: TrafficLine) -> None:
        """Take a frame of the recorded sidecar."""
        assert line.frame is not None
        if line.frame[0] in COMPARED:
            await link.lines.send(line)
        elif line.frame[0] == "pong" and self._in_order:
            link.recorded_pongs += 1
            await link.reached(lambda: link.pongs >= link.recorded_pongs, ANSWER_S)

    # --- one link -------------------------------------------------------------

    async def _run_link(
        self, link: ReplayedLink, lines: trio.MemoryReceiveChannel[TrafficLine]
    ) -> None:
        try:
            stream = await trio.open_unix_socket(self._socket_path)
        except OSError as error:
            if not self.totals.links:
                raise unreachable(self._socket_path, error) from None
            self.totals.unreachable += 1
            link.has_ended = True
            link.notify()
            await self._follow(link, lines)
            return
        self.totals.links += 1
        link.stream = stream
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._receive, link, stream)
            nursery.start_soon(self._acknowledge, link)
            await self._follow(link, lines)
            if not link.is_closed:
                await self._await_answers(link)
            await self._say_no_more(link)
            await link.reached(lambda: False, ANSWER_S)
            nursery.cancel_scope.cancel()

    async def _follow(
        self, link: ReplayedLink, lines: trio.MemoryReceiveChannel[TrafficLine]
    ) -> None:
        """Do what the lines of a link say."""
        async for line in lines:
            if line.side == SIDECAR:
                await self._meet(link, line)
            elif line.event == EOF:
                await self._say_no_more(link)
            elif line.event == CLOSE:
                link.is_closed = True
            elif line.data:
                await self._send(link, line)

    async def _meet(self, link: ReplayedLink, line: TrafficLine) -> None:
        """Be where the recorded link was after a frame of its sidecar, or its end."""
        match line.frame:
            case ["welcome", *_]:
                await link.reached(lambda: link.is_welcome, ANSWER_S)
            case ["error", {"code": code, "fatal": is_fatal}, *_]:
                self.totals.recorded_errors[link.number, f"{code}"] += 1
                link.was_over |= bool(is_fatal)
            case _:
                link.was_over |= line.event == EOF

    async def _send(self, link: ReplayedLink, line: TrafficLine) -> None:
        if self._speed:
            self.totals.count_late(trio.current_time() - self._due(line.at))
        data = b"".join(self._adapted(link, line))
        if not await self._write(link, data):
            self.totals.unsent += not link.was_over
        else:
            self.totals.frames += line.frame is not None
            self.totals.pieces += line.frame is None
            self.totals.sent_bytes += len(data)

    def _adapted(self, link: ReplayedLink, line: TrafficLine) -> Iterator[bytes]:
        """What to send for a line. A frame in pieces stays as it is."""
        for data, is_frame in (*link.sent.feed(line.data), *link.sent.flush()):
            frame = (line.frame or frame_of(data)) if is_frame else None
            changed = frame and link.adapter.adapted(frame, line.at - self._file.began)
            yield encode(changed) if changed else data

    async def _write(self, link: ReplayedLink, data: bytes) -> bool:
        async with link.writing:
            if link.stream is None:
                return False
            try:
                await link.stream.send_all(data)
            except trio.BrokenResourceError:
                link.stream = None
        return link.stream is not None

    async def _await_answers(self, link: ReplayedLink) -> None:
        """Wait until all that was sent has been answered."""
        if link.adapter.has_said_hello and link.sent.is_between_frames:
            await link.reached(lambda: link.is_welcome, ANSWER_S)
            await self._write_own(link, ["ping", LAST_PING])
            await link.reached(lambda: link.is_last_pong, ANSWER_S)

    async def _say_no_more(self, link: ReplayedLink) -> None:
        """End our half of a link."""
        async with link.writing:
            stream, link.stream = link.stream, None
            if stream is not None:
                with suppress(trio.BrokenResourceError, OSError):
                    await stream.send_eof()

    async def _write_own(self, link: ReplayedLink, frame: list[Any]) -> None:
        if await self._write(link, encode(frame)):
            self.totals.own[frame[0]] += 1

    async def _acknowledge(self, link: ReplayedLink) -> None:
        """Send what the recorded gateway acknowledged before it came in this replay.

        A task of its own: the one that receives must never wait to write.
        """
        while True:
            await link.ack_due.wait()
            link.ack_due = trio.Event()
            if link.ack and link.sent.is_between_frames:
                await self._write_own(link, link.ack)

    async def _receive(self, link: ReplayedLink, stream: trio.SocketStream) -> None:
        splitter = FrameSplitter()
        try:
            while data := await stream.receive_some(PIECE_BYTES):
                self.totals.received_bytes += len(data)
                for chunk in splitter.feed(bytes(data)):
                    self._received(link, chunk.data)
        except trio.BrokenResourceError:
            pass  # as at its end
        finally:
            link.stream, link.has_ended = None, True
            link.notify()

    def _received(self, link: ReplayedLink, data: bytes) -> None:
        if self._on_answer:
            now = trio.current_time() - self._started
            self._on_answer(data_line(now, link.number, SIDECAR, data))
        frame = frame_of(data)
        if frame is None:
            return
        self.totals.count_received(link.number, frame)
        if frame == ["pong", LAST_PING]:
            link.is_last_pong = True
        link.pongs += frame[0] == "pong"
        link.is_welcome |= frame[0] == "welcome"
        link.notify()
        if ack := link.adapter.received(frame):
            link.ack = ack
            link.ack_due.set()


def _frames_of(link: ReplayedLink, line: TrafficLine) -> Iterator[list[Any]]:
    """What a recorded sidecar said in a line, which may have pieces of frames."""
    if line.frame is not None:
        yield line.frame
        return
    for chunk in link.recorded.feed(line.data):
        frame = frame_of(chunk.data)
        if frame is not None:
            yield frame
