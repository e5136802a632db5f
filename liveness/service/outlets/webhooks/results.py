"""Results of requests, and records that were given up."""

from typing import NamedTuple

from liveness.errors import StateError


class SendResult(NamedTuple):
    """The result of one request."""

    is_accepted: bool
    status: int | None  # of HTTP; None: there was no answer
    answer: str  # the beginning of the answer's body, or why there was none
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
