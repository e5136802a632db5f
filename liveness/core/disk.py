"""The state of the shell's disk, for the server to read."""

from collections.abc import Mapping
from typing import Protocol


class Disk(Protocol):
    """Which commits are durable. The server reads this; the disk's owner updates it."""

    @property
    def log(self) -> str:
        """The log's id."""

    @property
    def ancestors(self) -> Mapping[str, int]:
        """The logs that this one continues, each with the last seq in common."""

    @property
    def first(self) -> int:
        """The seq of the oldest kept record."""

    @property
    def durable_seq(self) -> int:
        """The seq of the newest durable record."""

    @property
    def log_ticket(self) -> int:
        """All changes up to this ticket are durable, except timer commands."""

    @property
    def records_pending(self) -> int:
        """The weight of the records that wait for the disk."""

    @property
    def pending_ends(self) -> int:
        """How many of these end a session or begin an attempt."""

    @property
    def commands_pending(self) -> int:
        """How many requests about timers wait for the disk."""

    @property
    def commands_by_gateway(self) -> Mapping[str, int]:
        """The same, by gateway; only those that have any."""

    @property
    def failure(self) -> str | None:
        """Why nothing can be written at present; None if it can."""

    def ticket_of(self, gateway: str) -> int:
        """All changes up to this ticket are durable, with timer commands of *gateway*."""
