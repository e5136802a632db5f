"""Any bytes at the whole server: links come and go, time passes, the disk fills."""

from typing import Final

from liveness.core.changes import Commit
from liveness.core.effects import Close, Deliver, LogLine, ReadFirst
from liveness.core.links.link import Link
from liveness.core.server import MayRead
from liveness.core.wire.framing import encode
from liveness.testing.scripted_disk import FULL
from tests.core.server_shell import Shell, hello

MOST_LINKS: Final = 4
SECONDS: Final = (0.0, 0.25, 1.0, 5.0, 31.0, 61.0, 3_600.0, 86_400.0)
# What leads deep into the server; whole streams of bytes come besides.
FRAMES: Final[tuple[list[object], ...]] = (
    hello("g"),
    hello("h"),
    hello("g", fresh=True),
    hello("g", role="watcher", scope="all"),
    ["login", ["a", "b"]],
    ["login", "a", {"conn": 7}],
    ["logout", "a"],
    ["keepalive", ["a", "b", "c"]],
    ["ack", 1],
    ["ack", 3],
    ["ping", "x" * 50],
    ["where", ["a", "b"]],
    ["list"],
    ["after", "k", 5],
    ["cancel", {"key": "k"}],
    ["done", "k"],
)


class World(Shell):
    """A server, the links that it has, and what it wants done, carried out."""

    def __init__(self) -> None:
        super().__init__(window=2, max_refused=5, max_gateways=2)

    def open_links(self) -> list[Link]:
        return [*self.parts.registry.links.values()]

    def carry_out(self) -> None:
        effects = self.server.effects
        while effects:
            effect = effects.popleft()
            match effect:
                case Commit():
                    self.disk.waiting.append(effect)
                case ReadFirst():
                    self.server.replace(self.parts.registry.links[effect.link])
                case Close():
                    assert not self.parts.registry.links[effect.link].is_open
                case Deliver():
                    self.readings[effect.link] = effect.position
                case LogLine(fields={"exc_info": BaseException() as fault}):
                    raise fault
                case _:
                    pass
        self.holds()

    def holds(self) -> None:
        """Check the invariants, which hold for any input."""
        registry = self.parts.registry
        for (role, name), link in registry.named.items():
            assert link.is_open
            assert link.hello is not None
            assert (link.hello.role, link.hello.name) == (role, name)
            assert registry.links[link.number] is link
        assert self.parts.unread.memory >= 0
        assert registry.unfinished_bytes == sum(
            link.conversation.unfinished_bytes for link in self.open_links()
        )
        for key, row in self.cursors.items():
            stored = self.disk.cursors.get(key)
            assert stored is None or stored.seq <= row.seq < self.decided.next_seq

    def reads(self, link: Link, data: bytes) -> None:
        if self.server.may_read(link) is MayRead.YES:
            self.server.received(link, data, self.at, None)
        self.carry_out()

    def writes(self, link: Link) -> None:
        """Have a link's peer read all that it may be sent."""
        outbox = link.outbox
        while frames := outbox.take_frames():
            assert not self.disk.failure
            outbox.frames_sent(len(frames))
        if outbox.take_up_list():
            outbox.list_begins()
            outbox.list_sent()
        reading, room = self.readings.get(link.number), outbox.room
        if reading is not None and room > 0:
            before = reading.seq
            found, reading.seq = self.disk.read(before, reading.wanted, room, 0)
            if found:
                outbox.records_begin([seq for seq, _ in found], before)
            outbox.records_sent(0)

    def passes(self, seconds: float) -> None:
        self.lets_pass(seconds)
        if self.server.has_resets:
            self.server.reset_sessions(self.at)
        self.server.fire(self.at)
        scheduler = self.parts.scheduler
        while window := scheduler.window():
            scheduler.fill(window, self.disk.coming(window))
        if numbers := self.server.take_timers():
            self.server.fire_timers(self.disk.due(numbers), self.at)
        for link in self.parts.registry.expired_handshakes(self.at.now):
            self.parts.registry.expire_handshake(link, self.at.now)
        self.server.note_cursors(self.at)
        self.server.commit()


def server(data: bytes) -> None:
    """No bytes, and no order of events, lead the server into a fault."""
    world, at = World(), 0
    while at < len(data):
        choice = data[at]
        at += 1
        what, how = choice & 7, choice >> 3
        links = world.open_links()
        link = links[how % len(links)] if links else None
        match what:
            case 0 if len(links) < MOST_LINKS:
                world.connect()
            case 1 | 2 | 3 if link is not None:
                number = data[at] if at < len(data) else 0
                at += 1
                world.reads(link, encode(FRAMES[number % len(FRAMES)]))
            case 4 if link is not None:
                size = data[at] if at < len(data) else 0
                world.reads(link, data[at + 1 : at + 1 + size])
                at += 1 + size
            case 5 if link is not None:
                if how & 4:
                    world.reads(link, b"")
                world.server.closed(link)
            case 6:
                world.passes(SECONDS[how & 7])
            case 7:
                world.disk.failure = FULL if how & 1 else None
                world.write()
                for each in links:
                    world.writes(each)
            case _:
                pass
        world.carry_out()
    for link in world.open_links():
        world.server.closed(link)
    while world.server.has_resets:
        world.passes(0.0)
        world.carry_out()
    assert world.parts.unread.memory == 0
    assert world.parts.registry.named == {}
