"""The sidecar's process stands still: nobody who was reported is taken for silent.

The decisions are those of `tests/core/sessions/test_attended_clock.py` and
`tests/core/sessions/test_clearance.py`, which have gateways that stand still, too.
"""

from contextlib import ExitStack
from time import perf_counter
from typing import Final

from tests.system.conftest import QUICK_FLUSH_S, Start
from tests.system.gateway import Gateway, frames, standing_still
from tests.system.sidecar import SOON_S, Sidecar, eventually

# Threads keep users alive; with room for their being slow.
TIMEOUT_S: Final = 2.5
# The longest that the sidecar sleeps, and what of its absence it takes for sleep.
SLEEP_S: Final = 0.2
USERS: Final = [(f"user-{n}", n) for n in range(100)]
# Frames that fill a socket within a second of nobody reading them.
OFTEN_S: Final = 0.002


def sit_out_a_timeout(sidecar: Sidecar) -> None:
    """Waits for the end of a user who logs in now: all who are silent ended before."""
    marker = sidecar.gateway("marker", kinds=["offline"])
    marker.send("login", "marker")
    (record,) = marker.take(1)
    assert record["reason"] == "silence"


def test_a_sidecar_that_stands_still_for_four_timeouts_ends_no_user_who_spoke(
    start: Start,
) -> None:
    sidecar = start(TIMEOUT_S, flush_s=QUICK_FLUSH_S)
    with ExitStack() as stack:
        gateways = []
        for n in range(4):
            gateway = stack.enter_context(Gateway(sidecar, f"g-{n}"))
            gateway.login(*USERS[n::4])
            gateway.repeat(frames("keepalive", USERS[n::4]), OFTEN_S)
            gateways.append(gateway)
        watcher = sidecar.watcher(kinds=["offline"])
        quiet = sidecar.gateway("quiet")
        quiet.apply("login", ["silent before", "silent during"], {"conn": [1, 2]})
        before = sidecar.metric("liveness_unattended_seconds_total")
        with standing_still(sidecar) as stopped_at:
            # While nobody reads: a sign of life, and those of others until none fits.
            quiet.send("keepalive", "silent during", {"conn": 2})
            for gateway in gateways:
                gateway.is_full.clear()
                assert gateway.is_full.wait(SOON_S)
            eventually(lambda: perf_counter() - stopped_at >= 4 * TIMEOUT_S)
            stood_s = perf_counter() - stopped_at
        sit_out_a_timeout(sidecar)
        ended = watcher.take(3)
        assert {record["reason"] for record in ended} == {"silence"}
        uids = sorted(record["uid"] for record in ended)
        assert uids == ["marker", "silent before", "silent during"]
        online = {uid: conn for uid, _, _, conn in watcher.where(*dict(USERS))}
        assert online == dict(USERS)
        assert not any(gateway.records for gateway in gateways)
    unattended = sidecar.metric("liveness_unattended_seconds_total") - before
    assert stood_s - SLEEP_S <= unattended < stood_s + SOON_S
    assert sidecar.metric("liveness_early_offline_total") == 0
