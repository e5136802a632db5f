"""The frames of reports: how many users one has, how long it may be, and its age."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

from liveness.core.records import Uid
from liveness.core.wire.framing import encode

UidByConn: TypeAlias = dict[int, Uid]

# One frame of logins has one age, so ages are rounded: to a tenth of a second, and from a
# quarter of an hour on to between an 8,192nd and a 16,384th of the age. With that, a
# million connections that opened over one day take about ten thousand frames.
AGE_STEP_S: Final = 0.1
AGE_STEPS: Final = 8_192


def rounded_age(age: float) -> float:
    """Round an age down to a step that grows with it; see `AGE_STEPS`."""
    octave = 1 << max(int(age).bit_length() - 1, 0)
    step = max(octave / AGE_STEPS, AGE_STEP_S)
    return max(round(age // step * step, 3), 0.0)


def split(users: UidByConn, most: int) -> Iterable[UidByConn]:
    if len(users) <= most:
        return (users,) if users else ()
    items = iter(users.items())
    return iter(lambda: dict(islice(items, most)), {})


def encode_frames(
    event: str,
    batch: UidByConn,
    options: dict[str, object],
    max_frame_bytes: int,
    moments: dict[int, float] | None = None,
) -> Iterator[bytes]:
    """Encode one frame, or several if it would be too long."""
    all_options: dict[str, object] = {**options, "conn": list(batch)}
    if moments is not None:
        all_options["began"] = [moments.get(conn) for conn in batch]
    frame = encode([event, list(batch.values()), all_options])
    if len(frame) <= max_frame_bytes or len(batch) == 1:
        yield frame
        return
    for half in split(batch, len(batch) // 2 or 1):
        yield from encode_frames(event, half, options, max_frame_bytes, moments)
