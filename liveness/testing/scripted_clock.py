"""The time of a scripted sidecar, which only the script moves."""

from bisect import bisect_right
from dataclasses import replace
from operator import itemgetter
from typing import Final

import anyio

from liveness.core.records import HostReading
from liveness.core.wire.link_requests import Login
from liveness.host_clock import read_host

# Between moves of the clock, the time of logins runs at this share of real time, so that
# the older of two connections is still the older.
IDLE_RATE: Final = 1e-6
# The clocks begin at fixed times, so that a test gets the same records every time.
START_MONO_S: Final = 1_000.0
START_WALL_MS: Final = 1_795_168_800_000


class ScriptedClock:
    """Monotonic and wall time of the script, beside those of the event loop."""

    def __init__(self) -> None:
        self.us = 0  # microseconds that have passed: no sum of these is rounded
        # Pairs of a time by the event loop's clock and the scripted time of that moment.
        self._points = [(anyio.current_time(), START_MONO_S)]
        self._host: HostReading | None = None

    @property
    def mono(self) -> float:
        return START_MONO_S + self.us / 1e6

    @property
    def wall_ms(self) -> int:
        return START_WALL_MS + self.us // 1_000

    def note(self) -> None:
        """Note the event loop's time, after this time was moved."""
        self._points.append((anyio.current_time(), self.mono))

    def host(self) -> HostReading | None:
        """The host's clocks, with the offset of a clock that `in_scripted_time` gives."""
        reading = read_host(anyio.current_time)
        self._host = self._host or reading
        return None if reading is None else reading._replace(offset=0.0)

    def _scripted_time(self, loop_s: float) -> float:
        """Turn a time of the event loop's clock into one of the scripted clock."""
        place = bisect_right(self._points, loop_s, key=itemgetter(0))
        point_loop_s, point_s = self._points[max(place - 1, 0)]
        return point_s + (loop_s - point_loop_s) * IDLE_RATE

    def in_scripted_time(self, login: Login) -> Login:
        """A login with its age and its beginnings by the scripted clock.

        So the newer of two connections stays the newer, however much time passes by each
        clock.
        """
        now, began = anyio.current_time(), login.began
        if began is not None and self._host is not None:
            theirs = [None if at is None else at - self._host.offset for at in began]
            began = [
                # A time in the future stays as far in the future.
                None if at is None
                else self._scripted_time(min(at, now)) + max(at - now, 0.0)
                for at in theirs
            ]  # fmt: skip
        age = self.mono - self._scripted_time(now - login.age)
        return replace(login, age=age, began=began)
