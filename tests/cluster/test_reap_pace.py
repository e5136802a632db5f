"""How fast a host reaps: one step at a time in all partitions, slower on a busy Redis."""

from itertools import pairwise
from random import Random

import pytest

from liveness.service.outlets.cluster.host import ClusterHost
from liveness.service.outlets.cluster.host_state import HostIdentity, HostTerms

STEPS = 200


@pytest.mark.parametrize(
    ("took_s", "pause_s"), [(0.0, 0.003), (0.002, 0.006), (1.0, 0.012)]
)
def test_steps_of_all_partitions_are_apart_by_how_long_they_take(
    took_s: float, pause_s: float
) -> None:
    terms = HostTerms(
        name="a",
        log="log",
        lease_s=30.0,
        linger_s=0.02,
        keep_s=3_600,
        configuration="1 16 -",
    )
    identity = HostIdentity(
        terms, nonce=1, epoch=1, random=Random(1), on_fenced=lambda *_: None
    )
    host = ClusterHost(identity, partitions=16, separator="")
    for part in host.partitions:
        part.next_call(0.0, 0)
        part.answered([b"keep", 0, 1, 1, 0, 1], 0.0)
    began = list[float]()
    while len(began) < STEPS:
        part = min(host.partitions, key=lambda part: part.next_at())
        now = part.next_at()
        call = part.next_call(now, 0)
        assert call is not None
        if call.function == "reap":
            began.append(now)
            part.answered([b"ok", 0, 500, 1, 1], now + took_s)
        elif call.function == "look":
            part.answered([b"ok", 1, [], 0], now)
        else:
            part.answered([b"ok", 1, 0, 0, 0, 1, 0, 0, 1], now)
    # The first steps were planned before it was known how long one takes.
    pauses = [after - before for before, after in pairwise(began[32:])]
    assert min(pauses) == pytest.approx(pause_s)
