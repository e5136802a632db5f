"""The judge in bulk: a wrong notice of each kind."""

import math

import pytest

from liveness.lab.common.judge import Moment, Notices, judge, quantile

LAST = Moment(mono=100.0, wall_ms=5_000_000.0)
DUE_MS = 5_010_000


def offline(uid: str, *, at_ms: int = DUE_MS, reason: str = "silence") -> Notices:
    record = {"kind": "offline", "uid": uid, "reason": reason, "at": at_ms}
    return Notices(110.0 + (at_ms - DUE_MS) / 1000, [record])


def test_users_in_bulk_are_right_early_false_or_missing() -> None:
    notices = [
        offline("right", at_ms=DUE_MS + 20),
        offline("right", at_ms=DUE_MS + 20),
        offline("speaks"),
        offline("leaves", reason="logout"),
        offline("early", at_ms=DUE_MS - 2),
    ]
    silent = dict.fromkeys(("right", "leaves", "early", "silent"), LAST)
    verdict = judge(notices, silent, timeout_s=10.0)
    assert (verdict.early, verdict.false, verdict.missing) == (1, 3, 1)
    assert verdict.decided_s[0] == pytest.approx(0.02)
    assert verdict.delivered_s[0] == pytest.approx(0.02)


def test_a_timer_is_judged_by_its_key() -> None:
    fired = [Notices(100.0, [{"kind": "timer", "key": "tea", "at": 5_000_000}])]
    verdict = judge(fired * 2, {"tea": LAST, "bus": LAST}, key="key")
    assert (verdict.early, verdict.false, verdict.missing) == (0, 1, 1)


def test_a_quantile_is_a_value_that_occurred_and_none_of_nothing() -> None:
    assert quantile([*range(1, 101)], 0.99) == 99
    assert quantile([7.0], 0.99) == 7.0
    assert math.isnan(quantile([], 0.5))
