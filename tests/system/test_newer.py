"""Which of two connections is the newer one, by the clock that all processes share.

The decision itself is tested in `tests/core/sessions/test_presence.py`.
"""

from itertools import permutations
from time import CLOCK_MONOTONIC, clock_gettime, time_ns

from tests.system.client import Client
from tests.system.sidecar import Sidecar


def monotonic() -> float:
    return clock_gettime(CLOCK_MONOTONIC)


def clocks(shift_s: float = 0.0) -> list[float]:
    """The clocks in a gateway's hello; *shift_s* is that of a time namespace."""
    unix_s = time_ns() / 1e9
    return [monotonic() + shift_s, unix_s]


def linked(sidecar: Sidecar, name: str, shift_s: float = 0.0) -> Client:
    link = sidecar.gateway(name, clock=clocks(shift_s), kinds=[])
    link.sync()
    return link


def test_of_connections_that_began_at_one_moment_the_login_read_later_wins(
    sidecar: Sidecar, name: str
) -> None:
    links = [linked(sidecar, f"{name}-{number}") for number in range(6)]
    began = monotonic()
    for number, (first, second) in enumerate(permutations(links, 2)):
        uid = f"{name}-u-{number}"
        for conn, link in enumerate((first, second)):
            link.apply("login", uid, {"conn": conn, "began": began})
        ((*_, conn),) = second.where(uid)
        assert conn == 1


def test_a_beginning_by_another_clock_or_in_the_future_is_counted_and_not_used(
    sidecar: Sidecar,
) -> None:
    link, shifted = linked(sidecar, "g"), linked(sidecar, "h", 3_600.0)
    link.apply("login", ["a", "b"], {"conn": [1, 2], "began": monotonic() + 60})
    # It came later, and began before all of them if its `began` was used.
    shifted.apply("login", "a", {"conn": 3, "began": 0.5})
    assert [row[1] for row in shifted.where("a")] == ["h"]
    for why, count in (("future", 2), ("other_clock", 1)):
        assert sidecar.metric("liveness_began_unused_total", why=why) == count
