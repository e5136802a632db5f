"""More events than can be applied: links that flood wait, and others are judged as usual.

Gateways write as fast as their sockets take it, in batches and user by user, and log in
and out faster than the disk takes it. Meanwhile users of another gateway speak, and those
of a third are silent from their login on. The records and metrics of these are compared
with the clock of this process.
"""

from contextlib import ExitStack
from time import perf_counter
from typing import Any, Final

import pytest

from liveness.core.records import EVENTS
from liveness.errors import Code
from liveness.lab.common.judge import quantile
from tests.helpers.wire import Record
from tests.system.client import Client
from tests.system.conftest import QUICK_FLUSH_S, Say, Start
from tests.system.sidecar import Sidecar, eventually
from tests.system.talker import Talker, alive, logins, standing_still

OVERLOAD_S: Final = 60
SHORT_S: Final = 4
# With room for the speaking process to be slow.
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


ABSENCE_S: Final = 2.0  # after which gateways are waited for
HOLD_S: Final = 60.0  # `limits.gateway_hold_s`, as it is by default


class Silent:
    """A gateway whose users log in, and are silent from then on.

    Args:
        link: Its link.
    """

    def __init__(self, link: Client) -> None:
        self.written: dict[str, float] = {}
        self.ends: dict[str, tuple[Record, float]] = {}
        self._link = link
        self._durable: set[str] = set()

    def log_in(self) -> None:
        """Logs in some more, and waits until that is on disk."""
        began = perf_counter()
        uids = [f"silent-{len(self.written) + n}" for n in range(SILENT)]
        self._link.send("login", uids)
        self._link.send("ping", uids)
        while uids[0] not in self._durable:
            self._listen()
        self.written |= dict.fromkeys(uids, began)

    def wait(self) -> None:
        """Waits until all of them have ended."""
        while len(self.ends) < len(self.written):
            self._listen()

    def late_s(self) -> list[float]:
        """Checks every end against our own clock; how late each was decided."""
        for uid, (record, at) in self.ends.items():
            assert (record["kind"], record["reason"]) == ("offline", "silence")
            elapsed_s = at - self.written[uid]
            assert TIMEOUT_S <= record["silence"] <= elapsed_s + ROUNDING_S
        return [record["silence"] - TIMEOUT_S for record, _ in self.ends.values()]

    def _listen(self) -> None:
        frame = self._link.receive()
        at = perf_counter()
        assert frame is not None
        if frame[0] == "pong":
            self._durable |= {*frame[1]}
        for record in self._link.records:
            assert record["uid"] not in self.ends, record
            self.ends[record["uid"]] = record, at
        self._link.records.clear()


def floods(sidecar: Sidecar, stack: ExitStack) -> list[Talker]:
    """Gateways that write as fast as their sockets take it."""
    come_and_go = [*logins(CHURN, **LONG), ["logout", [uid for uid, _ in CHURN]]]
    return [
        stack.enter_context(Talker(sidecar.socket, name, first, again, every_s=0))
        for name, first, again in (
            ("batches", logins(MANY, **LONG), alive(MANY, 4_000)),
            ("one by one", logins(FEW, **LONG), alive(FEW, 1)),
            ("churn", [], come_and_go),
        )
    ]


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
    start: Start, say: Say, seconds: float
) -> None:
    sidecar = start(TIMEOUT_S, flush_s=QUICK_FLUSH_S)
    rss, lags_s, pending = list[int](), list[float](), list[float]()
    with ExitStack() as stack:
        speaking = stack.enter_context(
            Talker(
                sidecar.socket, "speaks", logins(SPEAKING), alive(SPEAKING),
                every_s=SPEAK_EVERY_S,
            )
        )  # fmt: skip
        silent = Silent(sidecar.gateway("silent", ack=False))
        writers = floods(sidecar, stack)
        began, longest_s = perf_counter(), 0.0
        while (at := perf_counter()) < began + seconds:
            silent.log_in()
            lags_s.append(sidecar.metric("liveness_hand_lag_seconds"))
            # Each login took a turn, so no turn can have been later than this, but for
            # time in which the sidecar itself stood still.
            longest_s = max(longest_s, perf_counter() - at)
            unattended_s = sidecar.metric("liveness_unattended_seconds_total")
            assert lags_s[-1] <= longest_s + unattended_s
            rss.append(sidecar.rss_bytes)
            pending.append(sidecar.metric("liveness_log_pending"))
        silent.wait()
        for writer in writers:
            writer.told("full", lambda line: line["at"] > began)
            assert not writer.lines("error") + writer.lines("end")
        # Users who speak are online, on their first session.
        uids = [uid for uid, _ in SPEAKING]
        assert len(sidecar.gateway("asks").where(*uids)) == len(uids)
        assert not speaking.records + speaking.lines("error")
    late_s = silent.late_s()
    shown = [lateness(sidecar, stage) for stage in ("decided", "sent")]
    told_s = [
        at - silent.written[uid] - TIMEOUT_S for uid, (_, at) in silent.ends.items()
    ]
    unattended_s = sidecar.metric("liveness_unattended_seconds_total")
    p99_ms = [1000 * quantile(times, 0.99) for times in (late_s, told_s, lags_s)]
    say(
        f"{sum(sidecar.metric('liveness_events_total', event=it) for it in EVENTS):,.0f}"
        f" events, {sidecar.metric('liveness_log_seq'):,.0f} records, {len(late_s)} "
        f"silent users; decided {p99_ms[0]:.1f} ms late, told {p99_ms[1]:.1f} ms, hand "
        f"lag {p99_ms[2]:.1f} ms (p99); {unattended_s:.2f} s unattended; memory "
        f"{min(rss) >> 20} to {max(rss) >> 20} MiB; {max(pending):,.0f} pending at most"
    )
    # The metric is no less than the records say, but for time in which the sidecar itself
    # stood still, and no more than was seen from here.
    (decided, count), (sent, sent_count) = shown
    assert count == sent_count == len(late_s)
    least_s = sum(late_s) - (ROUNDING_S + unattended_s) * count
    assert least_s <= decided <= sent <= sum(told_s)
    assert max(pending) < MOST_PENDING
    later = rss[len(rss) // 4 :]
    assert max(later) - min(later) < GROWTH_BYTES
    assert sidecar.metric("liveness_early_offline_total") == 0
    for code in Code:
        refused = sidecar.metric("liveness_frames_refused_total", code=code.value)
        assert refused == 0, code


def test_after_an_absence_no_flood_keeps_the_others_from_being_judged(
    start: Start,
) -> None:
    sidecar = start(1, flush_s=QUICK_FLUSH_S)
    with ExitStack() as stack:
        floods(sidecar, stack)
        link = sidecar.gateway("silent")
        with standing_still(sidecar) as stopped_at:
            link.send("login", "silent")
            eventually(lambda: perf_counter() - stopped_at >= ABSENCE_S)
        # Before the hold is over.
        (record,) = link.take(1, within_s=HOLD_S / 2)
        assert (record["uid"], record["reason"]) == ("silent", "silence")


def lateness(sidecar: Sidecar, stage: str) -> tuple[float, float]:
    """Sum and count of the metric of a stage."""
    name = "liveness_offline_lateness_seconds"
    count = sidecar.metric(f"{name}_count", stage=stage)
    return sidecar.metric(f"{name}_sum", stage=stage), count
