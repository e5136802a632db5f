"""What the sidecar's own metrics say of its wheel, read as Prometheus would."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio
from prometheus_client.parser import text_string_to_metric_families

from liveness.config.checks import ADMIN_SOCKET
from liveness.core.timer_states import PENDING

ANSWER_S: Final = 1.0  # it takes milliseconds, unless the sidecar is stopped
# The number of series does not depend on the number of users: a few hundred KiB at most.
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
REQUEST: Final = b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n"
EVENTS: Final = "liveness_events_total"
SLOT_USERS: Final = "liveness_wheel_slot_users"
TIMERS: Final = "liveness_timers"
UNATTENDED: Final = "liveness_unattended_seconds_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """How the wheel was at one moment."""

    at: float
    events: float  # since the start of the sidecar
    slots: tuple[float, ...]  # users due in each
    unattended_s: float
    timers: float  # that are pending

    def hand(self, *, up_at: float, timeout_s: float) -> int:
        """The slot that the hand is in.

        The ring is one timeout long and starts with the process: its hand is where the
        attended part of the time since then has got to.
        """
        attended_s = self.at - up_at - self.unattended_s
        return int(attended_s / timeout_s * len(self.slots)) % len(self.slots)


async def gauges(socket_path: Path) -> Gauges | None:
    """Asks the sidecar at *socket_path*; None if it does not answer."""
    try:
        with trio.fail_after(ANSWER_S):
            body = await _body(socket_path.with_name(ADMIN_SOCKET))
    except (OSError, trio.BrokenResourceError, trio.TooSlowError):
        return None
    return read(body, at=trio.current_time())


def read(body: str, *, at: float) -> Gauges | None:
    """What the text of `/metrics` says; None if there is no wheel in it."""
    wanted = (EVENTS, SLOT_USERS, UNATTENDED, TIMERS + "{")
    lines = [line for line in body.splitlines() if line.startswith(wanted)]
    samples = [
        sample
        for family in text_string_to_metric_families("\n".join([*lines, ""]))
        for sample in family.samples
    ]
    slots = {int(s.labels["slot"]): s.value for s in samples if s.name == SLOT_USERS}
    if not slots:
        return None
    pending = (s for s in samples if s.labels.get("state") == PENDING)
    return Gauges(
        at=at,
        events=sum(sample.value for sample in samples if sample.name == EVENTS),
        slots=tuple(slots[number] for number in sorted(slots)),
        unattended_s=sum(s.value for s in samples if s.name == UNATTENDED),
        timers=sum(sample.value for sample in pending),
    )


async def _body(path: Path) -> str:
    answer = b""
    async with await trio.open_unix_socket(str(path)) as stream:
        await stream.send_all(REQUEST)
        async for data in stream:
            answer += data
            if len(answer) > MAX_ANSWER_BYTES:
                break
    return answer.partition(b"\r\n\r\n")[2].decode()
