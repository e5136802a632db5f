"""What a replay has sent and received, and what was refused that was not before."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from liveness.text import escaped

# Refusals whose messages are kept; the others are counted.
MAX_MESSAGES: Final = 10

# A link's number, and the code of an error that it got.
LinkError = tuple[int, str]


@dataclass(slots=True)
class ReplayTotals:
    """Counts of one replay. `pieces` are bytes that were recorded as such."""

    links: int = 0
    unreachable: int = 0
    frames: int = 0
    pieces: int = 0
    sent_bytes: int = 0
    unsent: int = 0  # frames and pieces, of links that had ended only in the replay
    changed: Counter[str] = field(default_factory=Counter)  # by name
    own: Counter[str] = field(default_factory=Counter)  # that no gateway had sent
    received: Counter[str] = field(default_factory=Counter)  # by name
    records: Counter[str] = field(default_factory=Counter)  # by kind
    received_bytes: int = 0
    errors: Counter[LinkError] = field(default_factory=Counter)
    recorded_errors: Counter[LinkError] = field(default_factory=Counter)
    messages: dict[LinkError, str] = field(default_factory=dict)
    seconds: float = 0.0
    late_s: float = 0.0  # the sum over all frames
    most_late_s: float = 0.0

    def count_late(self, late_s: float) -> None:
        """Count how long after its time a frame or piece was written."""
        self.late_s += max(late_s, 0.0)
        self.most_late_s = max(late_s, self.most_late_s)

    def count_received(self, link: int, frame: list[Any]) -> None:
        """Count a frame of the sidecar."""
        match frame:
            case ["error", {"code": code, "message": message}, *_]:
                error = link, f"{code}"
                self.errors[error] += 1
                if len(self.messages) < MAX_MESSAGES:
                    self.messages.setdefault(error, f"{message}")
            case ["notices", [*records], *_]:
                self.records.update(
                    f"{record.get('kind')}"
                    for record in records
                    if type(record) is dict
                )
            case _:
                pass
        self.received[f"{frame[0]}"] += 1

    @property
    def new_errors(self) -> Counter[LinkError]:
        """What this sidecar refused, and the recorded one had not."""
        return self.errors - self.recorded_errors

    @property
    def is_as_recorded(self) -> bool:
        """Whether all was sent, and nothing was refused that had not been."""
        return not (self.new_errors or self.unsent)

    def as_map(self) -> dict[str, Any]:
        """All of it, for JSON."""
        sent = self.frames + self.pieces
        return {
            "links": self.links,
            "unreachable": self.unreachable,
            "frames": self.frames,
            "pieces": self.pieces,
            "sent_bytes": self.sent_bytes,
            "unsent": self.unsent,
            "changed": dict(self.changed),
            "own": dict(self.own),
            "received": dict(self.received),
            "records": dict(self.records),
            "received_bytes": self.received_bytes,
            "errors": sum(self.errors.values()),
            "recorded_errors": sum(self.recorded_errors.values()),
            "new_errors": [
                {"link": link, "code": code, "count": count, "message": message}
                for link, code, count, message in self._refusals()
            ],
            "seconds": round(self.seconds, 3),
            "late_mean_s": round(self.late_s / sent, 6) if sent else 0.0,
            "late_max_s": round(self.most_late_s, 6),
        }

    def lines(self) -> Iterator[str]:
        """The same for a person."""
        found = self.as_map()
        yield f"links      {self.links:,}, {self.unreachable:,} without a sidecar"
        yield (
            f"sent       {self.frames:,} frames, {self.pieces:,} pieces, "
            f"{self.sent_bytes:,} bytes in {self.seconds:.1f} s"
        )
        yield f"changed    {_shown(self.changed)}"
        yield f"own        {_shown(self.own)}"
        yield f"unsent     {self.unsent:,}"
        yield f"received   {_shown(self.received)}"
        yield f"records    {_shown(self.records)}"
        yield f"errors     {found['errors']:,}, in the recording {found['recorded_errors']:,}"
        yield (
            f"late       mean {1000 * found['late_mean_s']:.1f} ms, "
            f"max {1000 * found['late_max_s']:.1f} ms"
        )
        for link, code, count, message in self._refusals():
            yield f"refused    link {link}: {code} {count}  {message}"

    def _refusals(self) -> Iterator[tuple[int, str, int, str]]:
        for (link, code), count in self.new_errors.most_common(MAX_MESSAGES):
            message = escaped(self.messages.get((link, code), ""))
            yield link, escaped(code), count, message


def _shown(counts: Counter[str]) -> str:
    """Names and counts, the most frequent first."""
    shown = (f"{escaped(name)} {count:,}" for name, count in counts.most_common(20))
    return ", ".join(shown) or "none"
