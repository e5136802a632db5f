"""The fuzzed functions: any bytes in, and an exception out if these find a fault.

Three targets, each the core alone, as it is and as it is compiled:

- `link`: a stream, cut into pieces, read by both readers, to the requests and refusals that
  a link makes of it;
- `server`: links, time and a disk, at the whole server (`tests.fuzz.server_target`);
- `presence`: two gateways over time, their links, the users that they tell of and the
  restarts between, on both wheels, each held to the rules of `tests.core.sessions.sessions_rig`.

How the bytes are read is part of the corpus: a change of it makes another corpus.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from typing import Final, TypeAlias

from liveness.core.limits import Limits
from liveness.core.links.conversation import Conversation
from liveness.core.records import GATEWAY, Uid
from liveness.core.wheel.wheel import Wheel
from liveness.core.wire.framing import Reader, encode
from liveness.core.wire.link_requests import (
    ActivityBatch,
    Hello,
    Login,
    Logout,
    Refusal,
    Request,
    Where,
)
from liveness.core.wire.uids import MIN_TIMEOUT_S, bad_uid_text
from liveness.errors import NOT_FATAL, Code
from tests.core.conftest import READERS, WHEELS
from tests.core.link_trace import told
from tests.core.scene import Shown
from tests.core.sessions.sessions_rig import Sessions
from tests.fuzz.server_target import server

# Small ones, so that a short input is often at a limit, and the defaults.
LIMITS: Final = (
    Limits(),
    Limits(max_frame_bytes=60, max_batch=5, max_refused=3),
    Limits(max_frame_bytes=150, max_batch=7, max_refused=6),
)
MOST_CUTS: Final = 8

# A refusal is for a log, and for a person: it repeats at most a line of the frame.
MOST_REFUSAL_BYTES: Final = 600


class Script:
    """Bytes that are read as choices, and as streams; a zero for each that is missing."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def byte(self) -> int:
        (chosen,) = self.take(1) or b"\0"
        return chosen

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def pieces(self) -> list[bytes]:
        """The rest, cut where its own first bytes say."""
        sizes = self.take(self.byte() % (MOST_CUTS + 1))
        cut = [self.take(size) for size in sizes]
        return [*cut, self._data[self._at :]]


Way: TypeAlias = Sequence[bytes]  # the pieces in which a stream comes


def stream(data: bytes) -> tuple[Limits, list[Way]]:
    """The limits of a reader or link, and a stream: whole, and in pieces if it is cut."""
    script = Script(data)
    limits, cut = LIMITS[script.byte() % len(LIMITS)], script.pieces()
    whole = [b"".join(cut)]
    return limits, [whole] if len(cut) == 1 else [whole, cut]


def link(data: bytes) -> None:
    """A link yields the same with every frame reader, in pieces of any size."""
    limits, ways = stream(data)
    expected = told(Reader, ways[0], limits)
    for reader_class, way in others(ways):
        assert told(reader_class, way, limits) == expected
    for request in Conversation(limits).receive(ways[0][0], 0.0):
        if isinstance(request, Refusal):
            assert request.fatal or request.code in NOT_FATAL
            assert request.message.isprintable()
            assert len(encode(request.as_frame())) <= MOST_REFUSAL_BYTES


def others(ways: list[Way]) -> Iterator[tuple[type[Reader], Way]]:
    """Every reader with every way, but for the reference with the first one."""
    return islice(product([it.Reader for it in READERS], ways), 1, None)


SERVER_TIMEOUT: Final = 2.0
NAMES: Final = ("g", "h")
EVENTS: Final = ("login", "keepalive", "message", "logout")
UIDS: Final[tuple[Uid, ...]] = (
    "a", 7, "7", 0, "é" * 127 + "x", "\N{WOMAN}\N{ZERO WIDTH JOINER}", 2**63 - 1, "b",
)  # fmt: skip
CONNS: Final = (None, 1, 2, 2**63 - 1)
TIMEOUTS: Final = (None, 1.0, 1.5, 90.0)
AGES: Final = (0.0, 0.25, 1.0, 40.0)
SECONDS: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 2.25, 60.0, 86_400.0)
ABSENT: Final = (0.0, 0.0, 0.25, 300.0)
AT_ONCE: Final = (1, 2, 100)
AWAY: Final = (0.0, 0.25, 600.0, 86_400.0)


class World:
    """A presence with the links of its gateways, of one implementation."""

    def __init__(self, wheel: type[Wheel], reader: type[Reader]) -> None:
        self.sessions = Sessions(wheel, timeout=SERVER_TIMEOUT)
        self._reader = reader
        self._links: dict[int, Conversation] = {}
        self._names: dict[int, str] = {}  # of the links of gateways
        self._shown = 0

    def connect(self, number: int) -> None:
        self.hang_up(number)
        self._links[number] = Conversation(LIMITS[0], self._reader)

    def hang_up(self, number: int) -> None:
        self._links.pop(number, None)
        name = self._names.pop(number, None)
        if name is not None:
            self.sessions.link_ends(name)

    def say(self, number: int, data: bytes) -> None:
        link = self._links.get(number)
        if link is None:
            return
        for request in link.receive(data, self.sessions.scene.now):
            self._apply(number, link, request)
        if link.is_closed:
            self.hang_up(number)

    def new_records(self) -> list[Shown]:
        """Those since this was asked last."""
        log, first = self.sessions.scene.log, self._shown
        self._shown = len(log)
        return log[first:]

    def _apply(self, number: int, link: Conversation, request: Request) -> None:
        name = self._names.get(number, "")
        match request:
            case Hello() if request.role == GATEWAY:
                self._introduce(number, request)
            case ActivityBatch():
                for n, position, index in self.sessions.signs_of_life(name, request):
                    uid, _, event = request.at(position)
                    said = EVENTS[event - 1]
                    now, text = self.sessions.scene.now, bad_uid_text(uid)
                    link.refuse(Code.BAD_UID, text, now, n=n, frame=said, index=index)
            case Login():
                who = [*zip(request.uids, request.conns, strict=True)]
                timeout, age = request.timeout, on_grid(request.age)
                self.sessions.login(name, who, timeout=asked(timeout), age=age)
            case Logout():
                who = [*zip(request.uids, request.conns, strict=True)]
                self.sessions.logout(name, who)
            case Where():
                self.sessions.scene.presence.where(request.uids)
            case _:  # the others are not for a presence
                pass

    def _introduce(self, number: int, hello: Hello) -> None:
        for other, name in [*self._names.items()]:
            if name == hello.name and other != number:
                self.hang_up(other)
        self._names[number] = hello.name
        timeout = asked(hello.timeout)
        self.sessions.hello(hello.name, timeout=timeout, is_fresh=hello.fresh)


def on_grid(seconds: float) -> float:
    """The nearest quarter of a second: see `tests.core.sessions.sessions_rig`."""
    return round(4 * seconds) / 4


def asked(timeout: float | None) -> float | None:
    return None if timeout is None else max(on_grid(timeout), float(MIN_TIMEOUT_S))


def presence(data: bytes) -> None:
    """For any frames and any faults of gateways, the rules of sessions hold."""
    worlds = [
        World(wheel.Wheel, reader.Reader)
        for wheel, reader in zip(WHEELS, READERS, strict=True)
    ]
    for number, name in enumerate(NAMES):
        for world in worlds:
            world.connect(number)
            world.say(number, hello(name))
    script = Script(data)
    while script.has_more:
        befall = chosen(script)
        for world in worlds:
            befall(world)
        # Of many who end at once, those of another wheel may do so in another order.
        first, *rest = [settled(world.new_records()) for world in worlds]
        assert all(other == first for other in rest)


def chosen(script: Script) -> Callable[[World], None]:
    choice = script.byte()
    what, number, how = choice & 7, choice >> 3 & 1, choice >> 4
    match what:
        case 7 if how < 4:  # seldom: it takes more time than all else
            return lambda world: world.sessions.crash()
        case 7 if how < 8:
            return lambda world: world.sessions.planned_stop(AWAY[how & 3])
        case 0 | 7:
            data = script.take(script.byte())
            return lambda world: world.say(number, data)
        case 1 | 2:
            data = event(script, how)
            return lambda world: world.say(number, data)
        case 3 | 4:
            seconds, extra = SECONDS[how & 7], script.byte()
            absent, limit = ABSENT[extra & 3], AT_ONCE[(extra >> 2) % len(AT_ONCE)]
            return lambda world: world.sessions.time_passes(
                seconds, absent=absent, limit=limit
            )
        case 5:
            data = hello(NAMES[number], timeout=TIMEOUTS[how & 3], fresh=bool(how & 4))

            def connect(world: World) -> None:
                world.connect(number)
                if how < 8:  # otherwise its own bytes are its hello
                    world.say(number, data)

            return connect
        case _:
            return lambda world: world.hang_up(number)


def hello(name: str, **options: object) -> bytes:
    return encode(["hello", {"protocol": 1, "name": name, **options}])


def event(script: Script, how: int) -> bytes:
    kind, count = EVENTS[how & 3], (how >> 2) + 1
    picked = [script.byte() for _ in range(count)]
    options: dict[str, object] = {"conn": [CONNS[one >> 3 & 3] for one in picked]}
    if kind == "login":
        extra = script.byte()
        options |= {"timeout": TIMEOUTS[extra & 3], "age": AGES[extra >> 2 & 3]}
    return encode([kind, [UIDS[one & 7] for one in picked], options])


def settled(records: list[Shown]) -> list[str]:
    """Records whatever their order among those of one moment."""
    return sorted(repr({**one, "seq": None}) for one in records)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "link": link,
    "presence": presence,
    "server": server,
}
