"""What a replay changes: what is true only of the recorded sidecar, and of its time.

| frame | change |
|---|---|
| `hello` | `clock` is moved to now, and differs from the host's if it did. `after` and `log` become the place in this sidecar's log of what was recorded, and never one that this sidecar has not sent; they are left out before this name was sent anything |
| `login` | `began` and `age` are moved and divided by the speed, so that connections keep their order of age. At 1x an age is as recorded |
| `ack` | never above what this sidecar has sent to this name; the rest is acknowledged when it comes |
| `done`, `fail` | without `seq`, which means the latest record of that key |

All else is sent as recorded, and so is a frame that came in pieces.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

import trio

from liveness.core.records import GATEWAY, HostReading, HostTime
from liveness.host_clock import read_host

# As fast as it goes: all times are so near the beginning that none is in the future.
NO_WAIT_SPEED: Final = 1e6
RETRY_S: Final = 0.01


async def clocks() -> HostReading:
    """The host's clocks and the event loop's, read at one moment."""
    # None: the process was preempted while it read them.
    while (reading := read_host(trio.current_time)) is None:  # noqa: ASYNC110
        await trio.sleep(RETRY_S)
    return reading


@dataclass(slots=True)
class SentPosition:
    """How far this sidecar's log was sent to a name."""

    log: str = ""
    seq: int = 0  # the highest that was sent
    wanted: int = 0  # the highest `ack` of the recording
    acked: int = 0


@dataclass(slots=True)
class ReplayTime:
    """How recorded times become those of a replay.

    Attributes:
        speed: Above 0.
        began: CLOCK_MONOTONIC at the beginning of the replay.
        read_clocks: The host's clocks now.
        recorded: The clocks of the recorded host at the beginning of what is played;
            None: unknown, as long as no hello has said it.
    """

    speed: float
    began: float
    read_clocks: Callable[[], HostTime]
    recorded: HostTime | None = None

    def moved(self, time: float) -> float:
        """A recorded time of CLOCK_MONOTONIC, on that of the replay."""
        if self.recorded is None:
            return time
        return max(self.began + (time - self.recorded.monotonic_s) / self.speed, 0.0)

    def clock_now(self, clock: Sequence[float], at: float) -> list[float]:
        """The `clock` of a hello that was sent *at* seconds, if it were sent now.

        It differs from the clocks of this host by as much as it did from those of the
        recorded one. If it was that of another time namespace, it stays that of another.
        """
        if self.recorded is None:
            self.recorded = HostTime(*(time - at for time in clock))
        then_and_now = zip(clock, self.recorded, self.read_clocks(), strict=True)
        return [max(now + time - (then + at), 0.0) for time, then, now in then_and_now]


@dataclass(slots=True)
class Adapter:
    """Changes the frames of one link.

    Attributes:
        time: Of the whole replay.
        names: The positions of all names by role and name, shared by all links.
        changed: Counts the frames that were changed, by their name.
    """

    time: ReplayTime
    names: dict[tuple[str, str], SentPosition]
    changed: Counter[str]
    position: SentPosition = field(default_factory=SentPosition)
    has_said_hello: bool = False

    def adapted(self, frame: list[Any], at: float) -> list[Any] | None:
        """The frame to send in the place of one sent *at* seconds; None: the same."""
        match frame:
            case ["hello", dict() as options, *rest]:
                new = ["hello", self._hello(options, at), *rest]
            case ["login", uids, dict() as options, *rest]:
                new = ["login", uids, self._login(options), *rest]
            case ["ack", seq, *rest] if type(seq) is int:
                new = ["ack", self._ack(seq), *rest]
                if rest and type(rest[0]) is int:
                    new[2] = min(rest[0], new[1])
            case ["done" | "fail" as name, key, message, dict() as options, *rest]:
                options = {key: options[key] for key in options if key != "seq"}
                new = [name, key, message, options, *rest]
            case _:
                return None
        if new == frame:
            return None
        self.changed[frame[0]] += 1
        return new

    def _hello(self, options: dict[str, Any], at: float) -> dict[str, Any]:
        new, self.has_said_hello = dict(options), True
        role, name = options.get("role", GATEWAY), options.get("name")
        self.position = self.names.setdefault((f"{role}", f"{name}"), self.position)
        clock = options.get("clock")
        if isinstance(clock, list | tuple) and [*map(_is_number, clock)] == [
            True,
            True,
        ]:
            new["clock"] = self.time.clock_now(clock, at)
        after = options.get("after")
        if isinstance(after, int) and after and self.position.log:
            new["after"] = min(after, self.position.seq)
            new["log"] = self.position.log
        elif after or "log" in options:
            new = {key: new[key] for key in new if key not in ("after", "log")}
        return new

    def _login(self, options: dict[str, Any]) -> dict[str, Any]:
        new = dict(options)
        began, moved = options.get("began"), self.time.moved
        if _is_number(began):
            new["began"] = moved(began)
        elif isinstance(began, list | tuple):
            new["began"] = [moved(it) if _is_number(it) else it for it in began]
        if _is_number(age := options.get("age")) and self.time.speed != 1:
            new["age"] = age / self.time.speed
        return new

    def _ack(self, seq: int) -> int:
        position = self.position
        position.wanted = max(position.wanted, seq)
        position.acked = max(position.acked, min(seq, position.seq))
        return min(seq, position.seq)

    def received(self, frame: list[Any]) -> list[Any] | None:
        """Take a frame of the sidecar; the `ack` to send, if one is due."""
        position = self.position
        match frame:
            case ["welcome", {"log": str() as log}, *_] if log != position.log:
                position.log, position.seq, position.acked = log, 0, 0
            case ["notices", [*_, {"seq": int() as seq}], *_]:
                position.seq = max(position.seq, seq)
                due = min(position.wanted, position.seq)
                if due > position.acked:
                    position.acked = due
                    return ["ack", due]
            case _:
                pass
        return None


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)
