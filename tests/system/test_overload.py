"""More events than can be applied: links that flood wait, and others are judged as usual.

Gateways write as fast as their sockets take it, in batches and user by user, and log in
and out faster than the disk takes it. Meanwhile users of another gateway speak, and those
of a third are silent from their login on. The records of these are compared with the
clock of this process.
"""

from contextlib import ExitStack
from time import perf_counter
from typing import Any, Final

import pytest

from liveness.errors import Code
from tests.helpers.wire import Record
from tests.system.client import Client
from tests.system.conftest import QUICK_FLUSH_S, Start
from tests.system.gateway import Gateway, Users, frames
from tests.system.sidecar import Sidecar

SHORT_S: Final = 4
OVERLOAD_S: Final = 60
# With room for the speaking thread to be slow.
TIMEOUT_S: Final = 4.0
SPEAK_EVERY_S: Final = 0.2
SPEAKING: Final = [(f"speaks-{n}", n) for n in range(500)]
# The users of the floods are not to fall silent.
LONG: Final[dict[str, Any]] = {"timeout": 3_600}
MANY: Final = [(f"many-{n}", n) for n in range(20_000)]
FEW: Final = [(f"few-{n}", n) for n in range(100)]
CHURN: Final = [(f"churn-{n}", n) for n in range(2_000)]
SILENT: Final = 20  # who log in at once, again and again
# Records that wait for the disk, at which links are no longer read (the default).
MOST_PENDING: Final = 30_000
# Between samples after the first quarter. What waits for the disk is bounded; each second
# brings more than that.
GROWTH_BYTES: Final = 32 << 20
ROUNDING_S: Final = 0.001


class Silent:
    """A gateway whose users log in, and are silent from then on.

    Args:
        link: Its link.
    """

    def __init__(self, link: Client) -> None:
        self.written: dict[str, float] = {}
        self.ends: dict[str, tuple[Record, float]] = {}
        self._link = link

    def log_in(self) -> None:
        """Logs in some more, and waits until that is on disk."""
        uids = [f"silent-{len(self.written) + n}" for n in range(SILENT)]
        began = perf_counter()
        self._link.send("login", uids)
        self._link.send("ping", uids)
        while self._listen() != ["pong", uids]:
            pass
        self.written |= dict.fromkeys(uids, began)

    def wait(self) -> None:
        """Waits until all of them have ended, and checks each end by our own clock."""
        while len(self.ends) < len(self.written):
            self._listen()
        for uid, (record, at) in self.ends.items():
            assert (record["kind"], record["reason"]) == ("offline", "silence")
            elapsed_s = at - self.written[uid]
            assert TIMEOUT_S <= record["silence"] <= elapsed_s + ROUNDING_S

    def _listen(self) -> list[Any]:
        frame = self._link.receive()
        at = perf_counter()
        assert frame is not None
        for record in self._link.records:
            assert record["uid"] not in self.ends, record
            self.ends[record["uid"]] = record, at
        self._link.records.clear()
        return frame


def floods(sidecar: Sidecar, stack: ExitStack) -> list[Gateway]:
    """Gateways that write as fast as their sockets take it."""
    logout = ["logout", [uid for uid, _ in CHURN]]
    plans: list[tuple[str, Users, list[Any]]] = [
        ("batches", MANY, frames("keepalive", MANY, 4_000)),
        ("one by one", FEW, frames("keepalive", FEW, 1)),
        ("churn", [], [*frames("login", CHURN, **LONG), logout]),
    ]
    gateways = []
    for name, users, again in plans:
        gateway = stack.enter_context(Gateway(sidecar, name))
        gateway.login(*users, **LONG)
        gateway.repeat(again, 0)
        gateways.append(gateway)
    return gateways


@pytest.mark.parametrize(
    "seconds",
    [
        SHORT_S,
        pytest.param(
            OVERLOAD_S, marks=[pytest.mark.slow, pytest.mark.timeout(5 * OVERLOAD_S)]
        ),
    ],
)
def test_overload_holds_back_links_that_flood_and_judges_other_users_as_ever(
    start: Start, seconds: float
) -> None:
    sidecar = start(TIMEOUT_S, flush_s=QUICK_FLUSH_S)
    rss, pending = list[int](), list[float]()
    with ExitStack() as stack:
        speaking = stack.enter_context(Gateway(sidecar, "speaks"))
        speaking.login(*SPEAKING)
        speaking.repeat(frames("keepalive", SPEAKING), SPEAK_EVERY_S)
        silent = Silent(sidecar.gateway("silent", ack=False))
        writers = floods(sidecar, stack)
        began, longest_s = perf_counter(), 0.0
        while (at := perf_counter()) < began + seconds:
            silent.log_in()
            lag_s = sidecar.metric("liveness_hand_lag_seconds")
            # Each login took a turn, so no turn can have been later than this, but for
            # time in which the sidecar itself stood still.
            longest_s = max(longest_s, perf_counter() - at)
            unattended_s = sidecar.metric("liveness_unattended_seconds_total")
            assert lag_s <= longest_s + unattended_s
            rss.append(sidecar.rss_bytes)
            pending.append(sidecar.metric("liveness_log_pending"))
        silent.wait()
        assert all(writer.is_full.is_set() for writer in writers)
        # Users who speak are online, on their first session.
        uids = [uid for uid, _ in SPEAKING]
        assert len(sidecar.gateway("asks").where(*uids)) == len(uids)
        assert not speaking.records
        assert not [
            gateway.errors for gateway in (*writers, speaking) if gateway.errors
        ]
    assert max(pending) < MOST_PENDING
    later = rss[len(rss) // 4 :]
    assert max(later) - min(later) < GROWTH_BYTES
    assert sidecar.metric("liveness_early_offline_total") == 0
    for code in Code:
        refused = sidecar.metric("liveness_frames_refused_total", code=code.value)
        assert refused == 0, code
