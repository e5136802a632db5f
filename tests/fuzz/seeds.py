"""The fuzzer's first inputs: the published vectors, in the form that each target reads."""

from collections.abc import Iterator
from typing import Any, Final

from liveness.core.wire.framing import encode
from tests.core.wire.test_vectors import BEFORE, TO_SIDECAR, octets
from tests.fuzz.targets import LIMITS

# Of longer ones all but a few bytes are one and the same.
MOST_SEED_BYTES: Final = 200

# How a script of `presence` begins: a link of its own, one that has said hello, or bytes.
CONNECT_MUTE: Final = bytes([5 | 8 << 4])
CONNECT: Final = bytes([5])
SAY: Final = 0
MOST_SAID: Final = 255
# How a script of `server` begins and ends: a link, bytes of it; the disk writes, a minute
# passes, and the disk writes again.
OPEN: Final = bytes([0])
READ: Final = 4
SETTLE: Final = bytes([7, 6 | 5 << 3, 7])
# Then a minute passes in which the links are read, the sidecar crashes, and another does.
AFTERWARDS: Final = bytes([3 | 6 << 4, 0, 7, 3 | 6 << 4, 0])


def seeds(target: str) -> Iterator[bytes]:
    """The first inputs of a target."""
    for case in TO_SIDECAR:
        data = octets(case)
        if len(data) > MOST_SEED_BYTES:
            continue
        before = b"".join(map(encode, BEFORE[case["before"]]))
        match target:
            case "wire":
                yield from streams(data)
            case "link":
                yield from streams(before + data)
            case "presence":
                yield script(case, before + data)
            case "server":
                whole = (before + data)[:MOST_SAID]
                yield OPEN + bytes([READ, len(whole)]) + whole + SETTLE
            case _:
                raise ValueError(target)


def streams(data: bytes) -> Iterator[bytes]:
    """A stream under each of the limits, whole and in pieces."""
    for limits in range(len(LIMITS)):
        yield bytes([limits, 0]) + data
        yield bytes([limits, 3, 1, 7, 40]) + data


def script(case: dict[str, Any], data: bytes) -> bytes:
    """A gateway that says this, and what becomes of it."""
    begin = CONNECT_MUTE
    if case["before"] == "welcome":
        begin, data = CONNECT, octets(case)
    said = [data[at : at + MOST_SAID] for at in range(0, len(data), MOST_SAID)]
    return (
        begin
        + b"".join(bytes([SAY, len(piece)]) + piece for piece in said)
        + AFTERWARDS
    )
