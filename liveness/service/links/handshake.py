"""Says welcome: where a name's reading of the log begins, and what it is told."""

from liveness import __version__
from liveness.core.conversation import ConversationLimits
from liveness.core.frames import FEATURES, PROTOCOL
from liveness.core.records import GATEWAY, Hello, Subscription
from liveness.service.links.link import SocketLink
from liveness.service.storage.log_tail import Cursor, LogTail
from liveness.service.storage.log_writer import LogWriter
from liveness.service.storage.skipped_runs import SkippedRuns


class Handshake:
    """Gives each link its cursor, and tells it the terms.

    Args:
        log_writer: The log.
        feed: Its tail.
        passed_over: Is told what a gateway passes over.
        timeout: The server's silence timeout, in seconds.
        flush: How long a gateway may collect signs of life, in seconds.
        window: Records that may be in flight on a link.
        run_timeout: How long a timer's run may take, in seconds.
        limits: What a link may send.
    """

    def __init__(
        self,
        log_writer: LogWriter,
        feed: LogTail,
        passed_over: SkippedRuns,
        *,
        timeout: float,
        flush: float,
        window: int,
        run_timeout: float,
        limits: ConversationLimits,
    ) -> None:
        self.limits = limits
        self._log_writer = log_writer
        self._feed = feed
        self._passed_over = passed_over
        self._timeout = timeout
        self._flush = flush
        self._window = window
        self._run_timeout = run_timeout

    def greet(self, link: SocketLink, hello: Hello, *, newest: int) -> None:
        """Say welcome, once the name's position is stored.

        Args:
            link: Who said hello.
            hello: What it said.
            newest: The newest record decided, and given to the journal.
        """
        log_writer = self._log_writer
        position = self._asked_for(hello, newest)
        known = {}
        if hello.role == GATEWAY or hello.ack:
            stored = log_writer.cursors.get((hello.role, hello.name))
            known = {"known": stored is not None}
            seq = position if stored is None else stored.seq
            if hello.role == GATEWAY and (hello.fresh or stored is None):
                told = None
                if stored is not None:
                    told = max(seq, log_writer.written_to.get(hello.name, 0))
                self._passed_over.add(hello.name, after=told, until=position)
            if hello.fresh:
                seq = position
            log_writer.introduce(
                *(hello.role, hello.name),
                seq=seq,
                timeout=hello.timeout,
                in_force=None if link.gateway is None else link.gateway.in_force,
            )
            if hello.after is None:
                position = seq
        is_all = hello.scope == "all"
        cursor = Cursor(
            log_writer,
            self._feed,
            wanted=Subscription(
                None if is_all else hello.name,
                hello.kinds,
                runs=hello.name if hello.role == GATEWAY else None,
            ),
            position=position,
        )
        # `next` is a seq: it is shown once everything before it is on disk.
        link.outbox.welcome(
            ["welcome", self._terms(link, hello, newest + 1) | known],
            hello=hello,
            cursor=cursor,
            ticket=log_writer.flush(),
        )

    def _asked_for(self, hello: Hello, newest: int) -> int:
        """The position a hello names; now, if it names none."""
        if hello.after is None:
            return newest
        store = self._log_writer.store
        # A log that ends below `after` has lost its end: it is another one by now.
        if hello.after == 0 or (hello.log == store.log and hello.after <= newest):
            return hello.after
        if hello.log in store.parted:
            return min(hello.after, store.parted[hello.log])
        return self._log_writer.first - 1

    def _terms(
        self, link: SocketLink, hello: Hello, following: int
    ) -> dict[str, object]:
        gateway = link.gateway
        offset = None if gateway is None else gateway.clock_offset
        began = {} if hello.clock is None else {"began": offset is not None}
        return {
            "protocol": PROTOCOL,
            "server": f"liveness/{__version__}",
            "features": FEATURES,
            "log": self._log_writer.store.log,
            "next": following,
            "timeout": hello.timeout or self._timeout,
            "flush": self._flush,
            "max_batch": self.limits.max_batch,
            "max_frame": self.limits.max_frame_bytes,
            "window": self._window,
            "run_timeout": self._run_timeout,
            **began,
        }
