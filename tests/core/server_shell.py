"""A server of links on a disk in memory; time passes by hand."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from liveness import __version__
from liveness.config.assembly import make_attended_clock, make_server
from liveness.config.compiled import Reader, RecordBatch
from liveness.config.settings import (
    Config,
    PresenceSettings,
    SocketSettings,
    StateSettings,
)
from liveness.core.access import Access, Allowed, Peer
from liveness.core.changes import Commit, Decisions
from liveness.core.cursors import Cursors, ReadPosition
from liveness.core.effects import Deliver, Effect, LogLine, LogRefusal
from liveness.core.limits import Limits
from liveness.core.links.conversation import Conversation
from liveness.core.links.link import Link
from liveness.core.records import Instant
from liveness.core.wire.framing import encode
from liveness.testing.scripted_disk import ScriptedDisk

ANYONE: Final = Allowed(anyone=True)
PEER: Final = Peer(7, 1_000, frozenset())
QUIET: Final = (LogLine, LogRefusal)


class Shell:
    """A server on a disk in memory; time passes by hand."""

    def __init__(
        self, *, device_separator: str = "", host: str = "", **limits: Any
    ) -> None:
        config = Config(
            socket=SocketSettings(path=Path("/nowhere/g.sock")),
            state=StateSettings(dir=Path("/nowhere")),
            presence=PresenceSettings(device_separator=device_separator),
            limits=Limits(**limits),
        )
        self.disk = ScriptedDisk()
        self.counts: Any = SimpleNamespace(
            refused=Counter(), limits_met=Counter(), notices_acked=0
        )
        self.mono, self.links = 0.0, 0
        self.readings: dict[int, ReadPosition] = {}
        self.cursors = Cursors()
        self.decided = Decisions(1, self.cursors, new_batch=RecordBatch)
        self.attended = make_attended_clock(config, mono=0.0, cpu=0.0)
        self.server, self.parts = make_server(
            config,
            version=__version__,
            disk=self.disk,
            decided=self.decided,
            attended=self.attended,
            counts=self.counts,
            access=Access(
                gateways=ANYONE, watchers=ANYONE, everyone=ANYONE, admin=ANYONE
            ),
            at=self.at,
            new_conversation=lambda limits: Conversation(limits, Reader),
            host=host,
        )

    @property
    def at(self) -> Instant:
        return Instant(self.attended.now, self.mono, int(self.mono * 1000), self.mono)

    def connect(self, peer: Peer = PEER) -> Link:
        self.links += 1
        return self.server.connected(self.links, peer, self.at)

    def says(self, link: Link, *frames: object) -> list[Effect]:
        """Have a link send frames; what the server wants done then, but for the log."""
        data = b"".join(map(encode, frames))
        self.server.received(link, data, self.at, None)
        return self.effects()

    def effects(self) -> list[Effect]:
        taken = [*self.server.effects]
        self.server.effects.clear()
        self.disk.waiting.extend(it for it in taken if isinstance(it, Commit))
        self.readings |= {
            it.link: it.position for it in taken if isinstance(it, Deliver)
        }
        return [it for it in taken if not isinstance(it, QUIET)]

    def reading_of(self, link: Link) -> ReadPosition:
        """Where a link reads the log."""
        return self.readings[link.number]

    def write(self) -> None:
        """Have the disk write everything."""
        self.disk.write(self.cursors, self.parts.scheduler)

    def gateway(self, name: str = "g", **options: object) -> Link:
        """A gateway whose welcome is sent."""
        link = self.connect()
        self.says(link, hello(name, **options))
        self.write()
        assert link.outbox.take_frames()
        return link

    def lets_pass(self, seconds: float) -> None:
        """Let time pass, with every link read empty at its end."""
        self.mono += seconds
        self.server.advance(self.at, cpu=0.0, asked=seconds)
        for link in self.parts.registry.links.values():
            self.server.read_empty(link, self.attended.now)


def hello(name: str = "g", **options: object) -> list[object]:
    return ["hello", {"protocol": 1, "name": name, **options}]
