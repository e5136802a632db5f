"""The state of the wheel, from the sidecar's metrics, read as Prometheus does."""

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
class WheelMetrics:
    """The wheel at one moment."""

    at: float
    events: float  # since the start of the sidecar
    slots: tuple[float, ...]  # users due in each slot
    unattended_s: float
    timers: float  # pending ones

    def hand(self, *, up_at: float, timeout_s: float) -> int:
        """The slot of the hand.

        One revolution takes one timeout. It begins when the process starts, and advances
        with attended time.
        """
        attended_s = self.at - up_at - self.unattended_s
        return int(attended_s / timeout_s * len(self.slots)) % len(self.slots)


async def wheel_metrics(socket_path: Path) -> WheelMetrics | None:
    """Asks the sidecar at *socket_path*; None if it does not answer."""
    try:
        with trio.fail_after(ANSWER_S):
            body = await _body(socket_path.with_name(ADMIN_SOCKET))
    except (OSError, trio.BrokenResourceError, trio.TooSlowError):
        return None
    return parsed_metrics(body, at=trio.current_time())


def parsed_metrics(body: str, *, at: float) -> WheelMetrics | None:
    """What the text of `/metrics` says; None if it has no slots."""
    prefixes = (EVENTS, SLOT_USERS, UNATTENDED, TIMERS + "{")
    lines = [line for line in body.splitlines() if line.startswith(prefixes)]
    samples = [
        sample
        for family in text_string_to_metric_families("\n".join([*lines, ""]))
        for sample in family.samples
    ]
    slots = {int(s.labels["slot"]): s.value for s in samples if s.name == SLOT_USERS}
    if not slots:
        return None
    return WheelMetrics(
        at=at,
        events=sum(s.value for s in samples if s.name == EVENTS),
        slots=tuple(slots[number] for number in sorted(slots)),
        unattended_s=sum(s.value for s in samples if s.name == UNATTENDED),
        timers=sum(s.value for s in samples if s.labels.get("state") == PENDING),
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
