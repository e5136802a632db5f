"""More events than can be applied: who sends them waits, and nobody else is wronged.

Gateways write as fast as their sockets take it, in batches and user by user, and log in
and out faster than the disk takes it. Meanwhile users of another gateway speak, and those
of a third are silent from their login on. What the sidecar says about that in its records
and metrics is held against the clocks of this process.
"""

from contextlib import ExitStack
from time import perf_counter, time_ns
from typing import Any, Final, NamedTuple

import pytest

from liveness.bench.verdict import quantile
from liveness.core.records import EVENTS
from liveness.errors import Code
from tests.e2e.client import Client, Record
from tests.e2e.conftest import QUICK_FLUSH_S, Say, Start
from tests.e2e.sidecar import Sidecar, eventually
from tests.e2e.talker import Talker, alive, logins, standing_still

OVERLOAD_S: Final = 60
SHORT_S: Final = 4
# With room for the process of those who speak to be slow.
TIMEOUT_S: Final = 4.0
SPEAK_EVERY_S: Final = 0.2
SPEAKING: Final = [(f"speaks-{n}", n) for n in range(500)]
# Of the floods nobody is to fall silent: they are the load.
LONG: Final[dict[str, Any]] = {"timeout": 3_600}
MANY: Final = [(f"many-{n}", n) for n in range(20_000)]
FEW: Final = [(f"few-{n}", n) for n in range(100)]
CHURN: Final = [(f"churn-{n}", n) for n in range(2_000)]
SILENT: Final = 20  # who log in at once, again and again
# Records that wait for the disk, at which links are not read any more (the default).
MOST_PENDING: Final = 30_000
# Of all samples after the first quarter, in which it gets there, above the least. What
# waits for the disk is bounded; each second brings more than that.
GROWTH_BYTES: Final = 32 << 20
# Stamps are milliseconds, of a wall clock that may be slewed meanwhile.
ROUNDING_MS: Final = 20
ROUNDING_S: Final = 0.001


ABSENCE_S: Final = 2.0  # after which gateways are waited for
HOLD_S: Final = 60.0  # `limits.gateway_hold_s`, as it is by default


class Moment(NamedTuple):
    """On both clocks of this process."""

    mono: float
    wall_ms: float


def now() -> Moment:
    return Moment(perf_counter(), time_ns() / 1e6)


class Silent:
    """A gateway whose users log in, and are silent from then on.

    Args:
        link: Its link.
    """

    def __init__(self, link: Client) -> None:
        self.written: dict[str, Moment] = {}
        self.answered: dict[str, Moment] = {}  # when their login was on disk
        self.ends: dict[str, tuple[Record, Moment]] = {}
        self._link = link

    def log_in(self) -> None:
        """Some more, until they are on disk."""
        began = now()
        uids = [f"silent-{len(self.written) + n}" for n in range(SILENT)]
        self._link.send("login", uids)
        self._link.send("ping", uids)
        while uids[0] not in self.answered:
            self._listen()
        self.written |= dict.fromkeys(uids, began)

    def wait(self) -> None:
        """Until all of them are told of."""
        while len(self.ends) < len(self.written):
            self._listen()

    def _listen(self) -> None:
        frame = self._link.receive()
        at = now()
        assert frame is not None
        if frame[0] == "pong":
            self.answered |= dict.fromkeys(frame[1], at)
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
def test_overload_holds_back_who_floods_and_judges_the_others_as_ever(
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
            # There was a turn for each login, so it cannot be later than this.
            longest_s = max(longest_s, perf_counter() - at)
            assert lags_s[-1] <= longest_s
            rss.append(sidecar.rss_bytes)
            pending.append(sidecar.metric("liveness_log_pending"))
        silent.wait()
        for writer in writers:
            writer.told("full", lambda line: line["at"] > began)
            assert not writer.lines("error") + writer.lines("end")
        # Whoever speaks is there, on its first session, and nobody was told otherwise.
        uids = [uid for uid, _ in SPEAKING]
        assert len(sidecar.gateway("asks").where(*uids)) == len(uids)
        assert not speaking.records + speaking.lines("error")
    late_s = is_as_it_was(silent)
    shown = [lateness(sidecar, stage) for stage in ("decided", "sent")]
    told_s = [
        end.mono - silent.written[u].mono - TIMEOUT_S
        for u, (_, end) in silent.ends.items()
    ]
    say(
        f"{sum(sidecar.metric('liveness_events_total', event=it) for it in EVENTS):,.0f}"
        f" events, {sidecar.metric('liveness_log_seq'):,.0f} records; "
        f"{len(late_s)} silent ones decided {1000 * quantile(late_s, 0.5):.1f} ms late "
        f"(p50), {1000 * quantile(late_s, 0.99):.1f} ms (p99), told "
        f"{1000 * quantile(told_s, 0.99):.1f} ms (p99); hand lag at most "
        f"{1000 * max(lags_s):.1f} ms; "
        f"{sidecar.metric('liveness_unattended_seconds_total'):.2f} s unattended; "
        f"memory {min(rss) >> 20} to {max(rss) >> 20} MiB; at most "
        f"{max(pending):,.0f} records waited for the disk"
    )
    # The metric is no less than the records say, which is no more than was seen from here.
    # It is stamped once a pass is over, so it may be some ms more.
    (decided, count), (sent, sent_count) = shown
    assert count == sent_count == len(late_s)
    assert sum(late_s) - ROUNDING_S * count <= decided <= sent <= sum(told_s)
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
        # Without a word of when, but that it is before patience with the floods is over.
        (record,) = link.take(1, within_s=HOLD_S / 2)
        assert (record["uid"], record["reason"]) == ("silent", "silence")


def lateness(sidecar: Sidecar, stage: str) -> tuple[float, float]:
    """The sum and the count of what the metric has of a stage."""
    name = "liveness_offline_lateness_seconds"
    count = sidecar.metric(f"{name}_count", stage=stage)
    return sidecar.metric(f"{name}_sum", stage=stage), count


def is_as_it_was(silent: Silent) -> list[float]:
    """Holds every end against our own clocks; how late each was decided."""
    late_s = []
    for uid, (record, told) in silent.ends.items():
        written, answered = silent.written[uid], silent.answered[uid]
        assert (record["kind"], record["reason"]) == ("offline", "silence")
        assert told.mono >= written.mono + TIMEOUT_S, "early"
        assert record["silence"] >= TIMEOUT_S
        assert record["silence"] <= told.mono - written.mono + ROUNDING_S
        assert written.wall_ms - ROUNDING_MS <= record["seen"]
        assert record["seen"] <= answered.wall_ms + ROUNDING_MS
        assert record["at"] <= told.wall_ms + ROUNDING_MS
        stamped_s = (record["at"] - record["seen"]) / 1000
        assert abs(stamped_s - record["silence"]) <= ROUNDING_MS / 1000
        late_s.append(record["silence"] - TIMEOUT_S)
    return late_s
