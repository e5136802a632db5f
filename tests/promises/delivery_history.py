"""The requests to the receiver of a webhook, and the status that the sidecar showed."""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from liveness.config.outlet_settings import WebhookSettings


@dataclass(slots=True)
class Request:
    """One request that came whole."""

    at: float
    process: int  # of the sidecar
    id: str
    stamp: int
    is_signed: bool
    body: bytes
    status: int | None = None  # of the answer, if all of its head was sent

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events in it."""
        return list(json.loads(self.body))

    @property
    def is_accepted(self) -> bool:
        """Whether its receiver said that it has the records."""
        return self.status is not None and 200 <= self.status < 300


class Letter(NamedTuple):
    """A dead letter that there was before anybody had it sent again."""

    record: dict[str, Any]
    attempts: int
    status: int | None


class OutletReading(NamedTuple):
    """The status of an outlet at a moment."""

    at: float
    process: int
    state: str
    lag_records: int
    lag_s: float
    sent: int = 0
    latency_s: float = 0.0  # the sum of all
    lease_age_s: float = 0.0  # of the cluster's


@dataclass(slots=True)
class Outbound:
    """All of one webhook."""

    terms: WebhookSettings
    requests: list[Request] = field(default_factory=list)
    readings: list[OutletReading] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)


class ClusterEvent(NamedTuple):
    """A change of the users that are online on Redis."""

    kind: str
    user: str
    session: int
    since_s: float | None  # by its clock, where a session was reported as it began


@dataclass(slots=True)
class ClusterOutbound:
    """The final data of Redis for a single host, and the status shown before."""

    linger_s: float
    online: list[str] = field(default_factory=list)
    events: list[ClusterEvent] = field(default_factory=list)
    readings: list[OutletReading] = field(default_factory=list)
