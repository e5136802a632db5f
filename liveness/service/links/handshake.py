"""Answers a hello: where the link begins to read the log, and the terms in `welcome`."""

from liveness import __version__
from liveness.core.conversation import ConversationLimits
from liveness.core.frames import FEATURES, PROTOCOL
from liveness.core.records import GATEWAY, Hello, Subscription
from liveness.service.links.link import SocketLink
from liveness.service.storage.log_tail import Cursor, LogTail
from liveness.service.storage.log_writer import LogWriter
from liveness.service.storage.skipped_runs import SkippedRuns


class Handshake:
    """Gives each link its cursor, and sends it `welcome`.

    Args:
        log_writer: The log.
        feed: The end of the log, in memory.
        skipped_runs: Given the part of the log that a gateway skips.
        timeout: The default silence timeout, in seconds.
        flush: How long a gateway may collect keepalives, in seconds.
        window: Records that may be unacknowledged on a link.
        run_timeout: How long a gateway has to answer an attempt of a timer, in seconds.
        limits: What a link may send.
    """

    def __init__(
        self,
        log_writer: LogWriter,
        feed: LogTail,
        skipped_runs: SkippedRuns,
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
        self._skipped_runs = skipped_runs
        self._timeout = timeout
        self._flush = flush
        self._window = window
        self._run_timeout = run_timeout

    def welcome(self, link: SocketLink, hello: Hello, *, newest: int) -> None:
        """Queue `welcome`, to be sent once the name's position is durable.

        Args:
            link: The link that said hello.
            hello: The content of the hello.
            newest: The newest record, which may not be durable yet.
        """
        log_writer = self._log_writer
        position = self._start_position(hello, newest)
        terms = self._terms(link, hello, newest + 1)
        if hello.role == GATEWAY or hello.ack:
            stored = log_writer.cursors.get((hello.role, hello.name))
            terms["known"] = stored is not None
            seq = position if stored is None else stored.seq
            if hello.role == GATEWAY and (hello.fresh or stored is None):
                after = None
                if stored is not None:
                    after = max(seq, log_writer.written_to.get(hello.name, 0))
                self._skipped_runs.add(hello.name, after=after, until=position)
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
        cursor = Cursor(
            log_writer,
            self._feed,
            wanted=Subscription(
                None if hello.scope == "all" else hello.name,
                hello.kinds,
                runs=hello.name if hello.role == GATEWAY else None,
            ),
            position=position,
        )
        # `next` is a seq: before it is sent, all records below it must be durable.
        link.outbox.welcome(
            ["welcome", terms], hello=hello, cursor=cursor, ticket=log_writer.flush()
        )

    def _start_position(self, hello: Hello, newest: int) -> int:
        """The position that a hello asks for; by default the newest."""
        if hello.after is None:
            return newest
        store = self._log_writer.store
        # If this log ends before `after`, it lost records: treat it as another log.
        if hello.after == 0 or (hello.log == store.log and hello.after <= newest):
            return hello.after
        if hello.log in store.parted:
            return min(hello.after, store.parted[hello.log])
        return self._log_writer.first - 1

    def _terms(
        self, link: SocketLink, hello: Hello, following: int
    ) -> dict[str, object]:
        terms: dict[str, object] = {
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
        }
        if hello.clock is not None:
            gateway = link.gateway
            terms["began"] = gateway is not None and gateway.clock_offset is not None
        return terms
