"""The link of a watch: a new one whenever it ends, and the acks that are written on it."""

from math import inf
from typing import Any

import anyio

from liveness.client.dialer import Dialer, SidecarLink, random_name, watcher_hello
from liveness.client.record_buffer import RecordBuffer
from liveness.client.sidecar_frames import Welcome
from liveness.core.wire.framing import encode
from liveness.errors import LivenessError, Replaced, ReportError


class RecordLink:
    """The link on which a watch reads.

    The options are those of every hello; with a cursor if they have an `ack`.
    """

    def __init__(
        self,
        dialer: Dialer,
        options: dict[str, Any],
        records: RecordBuffer,
    ) -> None:
        self.acked_at = -inf  # when an ack was written, or this link began
        self.end: LivenessError | None = None  # of the last link, until it was logged
        self._dialer = dialer
        self._options = options
        self._records = records
        self._damped = records.damped
        self._link: SidecarLink | None = None
        self._replaced: Replaced | None = None
        self._acked: tuple[int, ...] = (0,)  # on this link
        self._goes_back = False  # the hello has a position before what has arrived

    async def opened(self) -> SidecarLink:
        """Return the link, or wait for a new one; raise as the iteration of `Watch`."""
        if self._replaced is not None:
            raise self._replaced.with_traceback(None)
        try:
            if self.end is not None:
                end, self.end = self.end, None
                self._dialer.ended(end)
            return self._link or await self._new_link()
        except Replaced as replaced:
            self._replaced = replaced
            raise

    async def _new_link(self) -> SidecarLink:
        while True:
            if self._records.lacks_log:
                await self._learn_log()
            link = await self._dialer.open(self._hello)
            if self._begin(link.welcome):
                self._link, self._acked = link, (0,)
                self.acked_at = anyio.current_time()
                if self._damped is not None:
                    self._damped.linked()
                return link
            await link.aclose()

    def _hello(self) -> bytes:
        hello: dict[str, object] = self._options | self._records.options()
        damped = self._damped
        self._goes_back = False
        if hello["ack"] and damped is not None and damped.position is not None:
            # The stored cursor follows what a link delivers. So have this link begin again
            # with the oldest offline that waits: a crash must not lose that.
            hello["after"] = damped.position
            self._goes_back = True
        return encode(["hello", hello])

    def _begin(self, welcome: Welcome) -> bool:
        """Take the welcome of a link; return False if it needs another hello."""
        if self._records.leave_to_the_sidecar(welcome):
            return False
        is_new_log = self._records.linked(welcome)
        if is_new_log and self._goes_back:
            # From that position, the link would skip the beginning of the new log.
            return False
        return not self._records.was_forgotten(welcome)

    async def _learn_log(self) -> None:
        """Get the log's id by a hello of its own: a seq is a position in one log."""
        scope = self._options["scope"]
        hello = watcher_hello(random_name("watch"), scope, ack=False, kinds=())
        link = await self._dialer.open(lambda: encode(["hello", hello]))
        await link.aclose()
        after = self._records.seq
        if after is not None and after >= link.welcome.next:
            raise ReportError(
                f"after {after}: no such record yet, the newest is "
                f"{link.welcome.next - 1}"
            )
        self._records.seq_log = link.welcome.log

    async def acknowledge(self) -> None:
        if (link := self._link) is None or not self._options["ack"]:
            return
        ack = self._records.next_ack()
        if ack[0] < 1 or ack <= self._acked:
            return
        await self.send(link, ["ack", *ack])
        self._acked, self.acked_at = ack, anyio.current_time()

    def repeated(self) -> None:
        """Note that records came again: they are acknowledged again."""
        self._acked = (0,)

    async def send(self, link: SidecarLink, frame: list[object]) -> None:
        try:
            await link.send(frame)
        except BaseException:  # a part of it may be written
            self._link = None
            await link.aclose()
            raise

    async def drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()
