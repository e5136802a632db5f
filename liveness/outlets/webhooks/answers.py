"""What came of an attempt, and what follows from it."""

from enum import Enum, auto
from typing import Final, NamedTuple

from liveness.outlets.webhooks.results import SendResult

# Request timeout, too early, too many requests: they say nothing of the records.
AGAIN: Final = frozenset({408, 425, 429})
# These usually mean that the url, the secret or something before the receiver is wrong.
OF_RECEIVER: Final = frozenset({401, 403, 404, 405, 407, 410})


class PostOutcome(Enum):
    """What an attempt says of its records."""

    ACCEPTED = auto()
    REFUSED = auto()  # the receiver does not want one of them
    FAILED = auto()  # nothing: it is tried again


class PostAnswer(NamedTuple):
    """What came of one attempt."""

    status: int | None  # of HTTP; None: there was no answer
    text: str  # the beginning of the answer's body, or why there was none
    seconds: float
    retry_after: str | None = None  # the header

    @property
    def outcome(self) -> PostOutcome:
        """What follows.

        A redirect is not followed: whoever may answer could send the records anywhere. It
        says nothing of the records, as it would come for any.
        """
        status = self.status
        if status is not None and 200 <= status < 300:
            return PostOutcome.ACCEPTED
        if status is None or status in AGAIN or not 400 <= status < 500:
            return PostOutcome.FAILED
        return PostOutcome.REFUSED

    @property
    def is_usually_of_receiver(self) -> bool:
        """Whether a refusal may well be one of any request, not of a record."""
        return self.status in OF_RECEIVER

    @property
    def result(self) -> SendResult:
        """As it is shown to a person."""
        outcome = self.outcome
        return SendResult(
            outcome is PostOutcome.ACCEPTED, self.status, self.text, self.seconds,
            outcome is PostOutcome.REFUSED,
        )  # fmt: skip

    @property
    def short(self) -> str:
        """What went wrong, for one line."""
        return self.text if self.status is None else f"it answered {self.status}"
