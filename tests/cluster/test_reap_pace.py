"""How fast a host reaps: one step at a time in all partitions."""

from itertools import pairwise
from random import Random

import pytest

from liveness.service.outlets.cluster.host import ClusterHost
from liveness.service.outlets.cluster.host_state import REAP_PAUSE_S, HostIdentity

STEPS = 200


def test_steps_of_all_partitions_are_apart() -> None:
    identity = HostIdentity(
        name="a",
        log="log",
        nonce=1,
        epoch=1,
        configuration="1 16 -",
        lease_s=30.0,
        linger_s=0.02,
        keep_s=3_600,
        random=Random(1),
        on_fenced=lambda *_: None,
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
            part.answered([b"ok", 0, 500, 1, 1], now)
        elif call.function == "look":
            part.answered([b"ok", 1, [], 0], now)
        else:
            part.answered([b"ok", 1, 0, 0, 0, 1, 0, 0, 1], now)
    pauses = [after - before for before, after in pairwise(began)]
    assert min(pauses) == pytest.approx(REAP_PAUSE_S)
