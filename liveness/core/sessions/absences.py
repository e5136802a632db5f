"""Times in which gateways were not read, which must not count against them."""

from collections import deque
from typing import Final

# At most this many absences are kept of each gateway; above, the oldest two are merged.
MOST_ABSENCES: Final = 100


class Absences:
    """Spans of time in which one gateway, or every gateway, was not read.

    All seconds are those of the state's clock. No gateway was read before the start.
    """

    def __init__(self, since: float) -> None:
        self._since = since
        # Oldest first; under None those of all gateways.
        self._spans: dict[str | None, deque[tuple[float, float]]] = {None: deque()}

    def add(self, since: float, until: float, gateway: str | None) -> None:
        """Note an absence, which begins no earlier than the gateway's last one.

        Without a gateway it is of all. No moment may be noted both for one and for all.
        """
        spans = self._spans.setdefault(gateway, deque())
        if spans and spans[-1][1] >= since:
            first, last = spans[-1]
            spans[-1] = (first, max(last, until))
            return
        spans.append((since, until))
        if len(spans) > MOST_ABSENCES:
            (first, last), (later, end) = spans.popleft(), spans.popleft()
            spans.appendleft((later - (last - first), end))

    def listened_s(self, gateway: str, since: float, until: float) -> float:
        """Seconds between two moments in which a gateway was read."""
        since = max(since, self._since)
        listened = until - since
        for spans in (self._spans[None], self._spans.get(gateway, ())):
            for first, last in spans:
                listened -= max(0.0, min(until, last) - max(since, first))
        return listened
