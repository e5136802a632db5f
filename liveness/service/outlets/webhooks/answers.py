"""Answers to attempts, what to do next, and records that were given up."""

from enum import Enum, auto
from typing import Final, NamedTuple

from liveness.errors import StateError

# Request timeout, too early, too many requests: none is about the records.
AGAIN: Final = frozenset({408, 425, 429})
# These usually mean that the url, the secret or something before the receiver is wrong.
OF_RECEIVER: Final = frozenset({401, 403, 404, 405, 407, 410})


class SendResult(NamedTuple):
    """The result of one request."""

    is_accepted: bool
    status: int | None  # as in `PostAnswer`
    answer: str  # its text
    seconds: float
    is_refused: bool = False  # the receiver does not want the record; else it failed


class Unfinished(StateError):
    """A part was done before the disk failed; the message says both."""


class DeadLetter(NamedTuple):
    """A record that was given up."""

    number: int  # unique; a newer one has a higher number
    log: str
    seq: int
    record: str  # as JSON
    id: str  # the `webhook-id` of the last request that had it
    attempts: int
    at_ms: int  # when it was given up, in Unix milliseconds
    status: int | None  # as in `SendResult`
    answer: str


class PostOutcome(Enum):
    """The result of an attempt for its records."""

    ACCEPTED = auto()
    REFUSED = auto()  # the receiver rejects one of them
    FAILED = auto()  # no decision about them: try again


class PostAnswer(NamedTuple):
    """The answer to one attempt, or why there was none."""

    status: int | None  # of HTTP; None: there was no answer
    text: str  # the beginning of the answer's body, or why there was none
    seconds: float
    retry_after: str | None = None  # the header

    @property
    def outcome(self) -> PostOutcome:
        """The result for the records, by the status.

        A redirect is a failure, and is not followed: it could lead the records anywhere.
        """
        status = self.status
        if status is not None and 200 <= status < 300:
            return PostOutcome.ACCEPTED
        if status is None or status in AGAIN or not 400 <= status < 500:
            return PostOutcome.FAILED
        return PostOutcome.REFUSED

    @property
    def is_usually_of_receiver(self) -> bool:
        """Whether the receiver may be refusing every request, with any records."""
        return self.status in OF_RECEIVER

    @property
    def result(self) -> SendResult:
        """The result to show to a person."""
        outcome = self.outcome
        return SendResult(
            outcome is PostOutcome.ACCEPTED, self.status, self.text, self.seconds,
            outcome is PostOutcome.REFUSED,
        )  # fmt: skip

    @property
    def short(self) -> str:
        """The failure, for one line."""
        return self.text if self.status is None else f"it answered {self.status}"
