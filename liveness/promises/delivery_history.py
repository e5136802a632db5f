"""What the receiver of a webhook got, and what the sidecar said of it meanwhile."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class WebhookTerms:
    """The settings of a webhook that say what its receiver is owed."""

    kinds: Sequence[str]
    gateway: str  # of this one only; empty: of all
    users_only: bool
    settle_s: float
    begins_at_oldest: bool
    batch: int
    timeout_s: float
    waits_s: Sequence[float]
    max_dead: int


@dataclass(slots=True)
class Request:
    """One request that came whole."""

    at: float
    process: int  # of the sidecar
    connection: int
    id: str
    stamp: int
    is_signed: bool
    body: bytes
    status: int | None = None  # of the answer, if all of its head was sent

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it brought."""
        return list(json.loads(self.body))

    @property
    def is_accepted(self) -> bool:
        """Whether its receiver said that it has the records."""
        return self.status is not None and 200 <= self.status < 300


class Letter(NamedTuple):
    """A dead letter that there was before anybody had it sent again."""

    seq: int
    record: dict[str, Any]
    attempts: int
    status: int | None


class OutletReading(NamedTuple):
    """What the sidecar said of the webhook at a moment."""

    at: float
    process: int
    state: str
    lag_records: int
    lag_s: float
    sent: int
    dead: int
    dead_deleted: int
    latency_s: float  # the sum of all


@dataclass(slots=True)
class Outbound:
    """All of one webhook."""

    terms: WebhookTerms
    requests: list[Request] = field(default_factory=list)
    readings: list[OutletReading] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)


class ClusterReading(NamedTuple):
    """What the sidecar said of the cluster's outlet at a moment."""

    at: float
    process: int
    state: str
    lag_records: int
    lag_s: float
    lease_age_s: float


@dataclass(slots=True)
class ClusterOutbound:
    """What Redis has in the end, of one host that is alone, and what was said meanwhile."""

    linger_s: float
    online: list[str] = field(default_factory=list)
    # The kind, the user and the session of each, in order.
    events: list[tuple[str, str, int]] = field(default_factory=list)
    # By session: by Redis' clock, when it began, as it was told when that was new.
    since_s: dict[int, float] = field(default_factory=dict)
    readings: list[ClusterReading] = field(default_factory=list)
