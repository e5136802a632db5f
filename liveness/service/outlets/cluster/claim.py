"""A host's claim to its name in one partition, and the calls it makes once it is granted."""

from collections.abc import Sequence
from typing import Any

from liveness.service.outlets.cluster.host_state import HostIdentity
from liveness.service.outlets.cluster.partition_clock import PartitionClock
from liveness.service.outlets.cluster.session_changes import (
    Call,
    Change,
    SessionList,
    packed_changes,
)


class Claim:
    """What Redis checks in each call: who we are."""

    _epoch: int  # of the newest `begin`
    _incarnation: int  # once it is granted
    _nonce: int  # then, ours as this partition knows it

    def __init__(self, host: HostIdentity, clock: PartitionClock) -> None:
        self.may_keep = host.may_keep  # what Redis has of our sessions
        self.is_clock_compared = False  # just now, as a call was late
        self._host = host
        self._clock = clock
        self._may_take = True
        self._rival: tuple[int, float] | None = None  # another's beat, and since when

    def begin(self, now: float) -> Call:
        host = self._host
        host.epoch += 1
        self._epoch = host.epoch
        return Call(
            "begin",
            [
                host.name,
                self._epoch,
                host.nonce,
                host.log,
                host.newest,
                host.configuration,
                round(host.lease_s * 1e6),
                int(self.may_keep),
                self._takes(now),
                host.token(),
            ],
        )

    def _takes(self, now: float) -> int:
        """Whether to take the name from a process that has it, as `begin` wants to know.

        By our own clock that one was silent for a lease: Redis' clock may jump.
        """
        if self._may_take and self._host.may_take:
            return 1
        if self._rival is not None and now - self._rival[1] >= self._host.lease_s:
            return self._rival[0]
        return 0

    def granted(self, incarnation: int, nonce: int) -> None:
        host = self._host
        host.is_stopped, host.why_refused = False, ""
        host.nonce = max(host.nonce, nonce)
        self._may_take, self._rival = False, None
        self._incarnation, self._nonce = incarnation, nonce

    def denied(self, word: str, answer: Sequence[Any], now: float) -> float:
        """Take another answer to `begin`; return the seconds until the next try."""
        host = self._host
        if word == "epoch":
            if answer[1] < self._epoch:
                raise ValueError("it refuses an epoch for a lower one")
            host.epoch = max(host.epoch, answer[1])  # Redis knows it of our name
            return 0.0
        if word == "replaced":
            if self._rival is None or self._rival[0] != answer[2]:
                self._rival = answer[2], now
            host.replaced()
        else:
            host.why_refused = text_of(answer[1])
        return host.lease_s / 3

    def unanswered(self) -> None:
        """The call had no answer: a rival may have had none either."""
        self._rival = None

    def changes(
        self,
        function: str,
        before: int,
        last: int,
        taken: Sequence[Change],
        now: float,
        now_ms: int,
        listing: SessionList | None = None,
    ) -> Call:
        """A call that takes the host from *before* to *last*: seqs, or a piece's number."""
        host = self._host
        clock_ms = self._clock.estimate(now) // 1000
        is_compared, self.is_clock_compared = self.is_clock_compared, False
        head: list[str | int | bytes] = [host.name, self._epoch, self._nonce]
        head += [self._incarnation, before, last, self._clock.floor(now), host.token()]
        head += ["" if is_compared else clock_ms, len(taken)]
        packed = packed_changes(
            *(taken, host.name, self._incarnation), clock_ms=clock_ms, now_ms=now_ms
        )
        return Call(function, [*head, *packed], last, len(taken), listing)


def text_of(value: bytes) -> str:
    return value.decode(errors="replace")
