"""When a gateway was not listened to, so that it is not blamed for that time."""

from collections import deque
from typing import Final

# So many absences are kept of each gateway; the oldest is then added to the next.
MOST_ABSENCES: Final = 100


class Absences:
    """Spans of monotonic time in which one gateway, or every gateway, was not read.

    Args:
        since: The start. No gateway was listened to before it.
    """

    def __init__(self, since: float) -> None:
        self._since = since
        # The latest last; under None those of all gateways.
        self._spans: dict[str | None, deque[tuple[float, float]]] = {None: deque()}

    def add(self, since: float, until: float, gateway: str | None) -> None:
        """Note an absence, which begins no earlier than the gateway's last one.

        Args:
            since: Monotonic seconds.
            until: Monotonic seconds.
            gateway: Its name; None: all. The same moment is noted for one or for all.
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
        """Seconds between two moments in which a gateway was listened to."""
        since = max(since, self._since)
        listened = until - since
        for spans in (self._spans[None], self._spans.get(gateway, ())):
            for first, last in spans:
                listened -= max(0.0, min(until, last) - max(since, first))
        return listened
