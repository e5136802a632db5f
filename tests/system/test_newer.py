"""Which of two connections is the newer one, by the clock that all processes share.

The decision itself is tested in `tests/core/sessions/test_presence.py`, and in
`tests/core/links/test_handshake.py` which gateways share that clock.
"""

from itertools import permutations
from time import CLOCK_MONOTONIC, clock_gettime, time_ns

from tests.system.client import Client
from tests.system.sidecar import Sidecar


def linked(sidecar: Sidecar, name: str) -> Client:
    clock = [clock_gettime(CLOCK_MONOTONIC), time_ns() / 1e9]
    link = sidecar.gateway(name, clock=clock, kinds=[])
    link.sync()
    return link


def test_of_connections_that_began_at_one_moment_the_login_read_later_wins(
    sidecar: Sidecar, name: str
) -> None:
    links = [linked(sidecar, f"{name}-{number}") for number in range(6)]
    began = clock_gettime(CLOCK_MONOTONIC)
    for number, (first, second) in enumerate(permutations(links, 2)):
        uid = f"{name}-u-{number}"
        for conn, link in enumerate((first, second)):
            link.apply("login", uid, {"conn": conn, "began": began})
        ((*_, conn),) = second.where(uid)
        assert conn == 1
