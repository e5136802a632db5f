"""A load of transitions: users log in and out at an even pace, and some fall silent.

Scenarios run it with something switched on and off, to measure what that costs, and
whether local promises are kept meanwhile.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from liveness.lab.bench.program import Window
from liveness.lab.bench.sidecar_process import SidecarProcess
from liveness.lab.bench.verdict import judge, p99_ms
from liveness.lab.common.load import (
    LoadError,
    LoadGateway,
    LoadUsers,
    Moment,
    Notices,
    Pace,
    now,
)

RATE: Final = 10_000  # transitions a second
BLOCK: Final = 10  # users in a frame
AHEAD: Final = 2_000  # users that are online when the clock starts
SILENT_EVERY: Final = 20  # one frame in so many is of a user that falls silent
SILENT_S: Final = 2  # its timeout
KEEPALIVES: Final = 100  # of each user that is online at the end
AWAITED_S: Final = 60.0


class TransitionCosts(NamedTuple):
    """The costs of one run."""

    transition_ns: float  # the sidecar's CPU
    keepalive_ns: float
    decided_ms: float  # p99, of users that fell silent
    delivered_ms: float
    began_ms: float  # Unix milliseconds
    # p99, from a record to its arrival where an outlet sends it; 0: nowhere
    sent_ms: float = 0.0


class TransitionLoad:
    """The frames: blocks of users log in and out in turns, and users fall silent."""

    def __init__(self, seconds: float) -> None:
        blocks = round(RATE * seconds / BLOCK / 2)
        self.users = LoadUsers(blocks * BLOCK + AHEAD)
        self.silent = LoadUsers(blocks * 2 // SILENT_EVERY, kind="mute")
        self.frames: list[bytes] = []
        self.last: list[int] = []  # where the frame of each silent user is
        for block in range(blocks):
            leaving = range(block * BLOCK, (block + 1) * BLOCK)
            coming = range(leaving.start + AHEAD, leaving.stop + AHEAD)
            self.frames += [self.users.logins(coming), self.users.logouts(leaving)]
            if block % (SILENT_EVERY // 2) == 0 and len(self.last) < len(self.silent):
                number = len(self.last)
                self.last.append(len(self.frames))
                frame = self.silent.single(number, "login", timeout=SILENT_S)
                self.frames.append(frame)
        self.rate = len(self.frames) / seconds
        self.offlines = BLOCK * blocks + len(self.silent)
        self.transitions = 2 * self.offlines

    def begin(self, gateway: LoadGateway) -> None:
        """Log in the users that are online when the clock starts."""
        gateway.send(self.users.logins(range(AHEAD)))
        gateway.ping()

    def run(
        self,
        sidecar: SidecarProcess,
        gateway: LoadGateway,
        finish: Callable[[], object] = lambda: None,
    ) -> TransitionCosts:
        """Make all transitions.

        Args:
            sidecar: What is measured.
            gateway: Its gateway; `begin` was called.
            finish: Waits for the rest of the work of a transition, such as its delivery.
        Raises:
            LoadError: An offline was false, early or missing.
        """
        pace, began_ms = Pace(gateway, rate=self.rate), now().wall_ms
        with Window(sidecar) as window:
            pace.run(self.frames)
            gateway.wait_for(self.offlines, until=time.perf_counter() + AWAITED_S)
            gateway.ping()
            finish()
        online = range(len(self.users) - AHEAD, len(self.users))
        frame = self.users.batch(online)
        with Window(sidecar) as keeping:
            for _ in range(KEEPALIVES):
                gateway.send(frame)
            gateway.ping()
        moments = [*pace.moments()]
        last: dict[str, Moment] = {
            self.silent.uid(number): moments[at] for number, at in enumerate(self.last)
        }
        silences = [
            Notices(
                received,
                [record for record in records if record["reason"] == "silence"],
            )
            for received, records in gateway.notices
        ]
        verdict = judge(silences, last, timeout_s=SILENT_S)
        if verdict.false or verdict.early or verdict.missing:
            raise LoadError(
                f"{verdict.false} false, {verdict.early} early, "
                f"{verdict.missing} missing"
            )
        return TransitionCosts(
            window.server_ns(self.transitions),
            keeping.server_ns(KEEPALIVES * AHEAD),
            p99_ms(verdict.decided_s),
            p99_ms(verdict.delivered_s),
            began_ms,
        )
