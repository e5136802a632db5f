"""The first inputs of wire and link: the published vectors, as these targets read them."""

from collections.abc import Iterator
from typing import Final

from liveness.core.wire.framing import encode
from tests.core.wire.test_vectors import BEFORE, TO_SIDECAR, octets
from tests.fuzz.targets import LIMITS

# Of longer ones all but a few bytes are one and the same.
MOST_SEED_BYTES: Final = 200


def seeds(target: str) -> Iterator[bytes]:
    """The first inputs of a target; those of servers and presences are in the corpus."""
    if target not in ("wire", "link"):
        return
    for case in TO_SIDECAR:
        data = octets(case)
        if target == "link":
            data = b"".join(map(encode, BEFORE[case["before"]])) + data
        if len(data) <= MOST_SEED_BYTES:
            yield from streams(data)


def streams(data: bytes) -> Iterator[bytes]:
    """A stream under each of the limits, whole and in pieces."""
    for limits in range(len(LIMITS)):
        yield bytes([limits, 0]) + data
        yield bytes([limits, 3, 1, 7, 40]) + data
