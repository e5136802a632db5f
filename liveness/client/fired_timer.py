"""What a gateway answers when a timer has fired."""

from collections.abc import Callable

from liveness.client.protocol import Client
from liveness.client.reconnecting_link import ReconnectingLink
from liveness.client.tasks import Attempt


class Timer:
    """A timer that has fired and needs an answer; from `Sidecar.timers` or in a task.

    The first answer counts. Its message is for people who look at the timer; 4,096 bytes
    of it are kept.

    Attributes:
        key: As given to `after`; so are `payload` and `ext`, None if there was none.
        due: When this attempt was due, in Unix milliseconds.
        attempt: The number of this attempt, from 1.
        seq: The number of its record.
    """

    def __init__(self, link: ReconnectingLink, attempt: Attempt) -> None:
        self.key = attempt.key
        self.payload = attempt.payload
        self.ext = attempt.ext
        self.due = attempt.due
        self.attempt = attempt.attempt
        self.seq = attempt.seq
        self._link = link
        self._fired = attempt
        self._is_answered = False

    def __repr__(self) -> str:
        return f"<Timer {self.key!r}, attempt {self.attempt}, seq {self.seq}>"

    def done(self, message: str | None = None) -> None:
        """Answer that the work is done; from any thread.

        Raises:
            ReportError: The message is not a string.
        """
        self._answer(lambda client: client.done(self._fired, message))

    def fail(self, message: str, *, final: bool = False) -> None:
        """Answer that the work failed: the timer fires again later, unless *final*.

        Raises:
            ReportError: The message is not a string.
        """
        self._answer(lambda client: client.fail(self._fired, message, final=final))

    def _answer(self, answer: Callable[[Client], None]) -> None:
        with self._link.lock:
            if not self._is_answered:
                answer(self._link.client)
                self._is_answered = True
        self._link.write_soon()
