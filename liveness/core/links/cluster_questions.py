"""Questions about the users of all hosts, while the shell asks the cluster.

A `where` for the cluster waits up to 2 s for an answer from outside. Nothing else waits:
on its link, answers to later frames overtake it. Only these answers keep their order among
themselves, as a link matches them by that.

Two bounds limit the memory for questions and the load of the cluster. Beyond them a link's
questions are answered at once, without the other hosts.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from liveness.core.effects import AskCluster, Effect
from liveness.core.limits import Limits
from liveness.core.links.link import Link
from liveness.core.records import Instant, Uid, identity
from liveness.core.wire.frames import CLUSTER
from liveness.core.wire.framing import encode

# Readers allow for frames of 2 MiB.
MOST_ANSWER_BYTES: Final = 2**21

Row: TypeAlias = tuple[Uid, str, int, int | None, str, int | None]


class Partial(StrEnum):
    """Why an answer lacks the sessions on other hosts."""

    AWAY = "away"  # the cluster could not be asked
    SLOW = "slow"  # it did not answer in time
    BUSY = "busy"  # too many questions were under way
    LARGE = "large"  # the answer would be too large; ask for fewer users
    ENDED = "ended"  # the link or the sidecar ended first


class ClusterSession(NamedTuple):
    """A session, by the cluster's data."""

    uid: Uid
    gateway: str
    session: int
    host: str
    since: int  # Unix milliseconds by the cluster's clock; 0: not known


@dataclass(slots=True, eq=False)
class ClusterQuestion:
    """Which of these users are online on any host?

    `n` is the number of its frame. `found` is the cluster's answer; None until it arrives.
    """

    link: Link
    uids: Sequence[Uid]
    n: int
    found: Sequence[ClusterSession] | None = None
    partial: Partial | None = None


class PendingQuestions:
    """The questions under way; *answer* sends the answer to a question that has one."""

    def __init__(
        self,
        effects: deque[Effect],
        answer: Callable[[ClusterQuestion, Instant], None],
        *,
        limits_met: Counter[str],
        limits: Limits,
    ) -> None:
        self._effects = effects
        self._answer = answer
        self._limits_met = limits_met
        self._limits = limits
        self._tickets = count(1)
        # All questions that the shell asks, by ticket; also those answered without it.
        self._asked: dict[int, ClusterQuestion] = {}
        self._of_link: dict[int, deque[ClusterQuestion]] = {}  # by number of the link

    def ask(self, question: ClusterQuestion, at: Instant) -> None:
        """Have the shell ask the cluster; a question with an answer is only queued."""
        number = question.link.number
        if (limit := self._limit_met_by(question)) is not None:
            self._limits_met[limit] += 1
            self.give_up(question.link, Partial.BUSY, at)
            if question.found is None:
                _note(question, Partial.BUSY)
        self._of_link.setdefault(number, deque()).append(question)
        if question.found is None:
            ticket = next(self._tickets)
            self._asked[ticket] = question
            self._effects.append(AskCluster(ticket, question.uids))
        else:
            self._send_answered(number, at)

    def answered(
        self, ticket: int, found: Sequence[ClusterSession] | Partial, at: Instant
    ) -> None:
        question = self._asked.pop(ticket)
        if question.found is None:
            _note(question, found)
            self._send_answered(question.link.number, at)

    def give_up(self, link: Link, why: Partial, at: Instant) -> None:
        """Answer the questions of a link without waiting for the cluster."""
        for question in self._of_link.get(link.number, ()):
            if question.found is None:
                _note(question, why)
        self._send_answered(link.number, at)

    def give_up_all(self, why: Partial, at: Instant) -> None:
        for question in [*self._asked.values()]:
            self.give_up(question.link, why, at)

    def forget(self, link: Link) -> None:
        for question in self._of_link.pop(link.number, ()):
            _note(question, Partial.ENDED)

    def _limit_met_by(self, question: ClusterQuestion) -> str | None:
        of_link = self._of_link.get(question.link.number, ())
        if len(of_link) >= self._limits.max_link_questions:
            return "cluster.max_link_questions"
        if question.found is None and len(self._asked) >= self._limits.max_questions:
            return "cluster.max_questions"
        return None

    def _send_answered(self, number: int, at: Instant) -> None:
        waiting = self._of_link.get(number)
        while waiting and waiting[0].found is not None:
            self._answer(waiting.popleft(), at)
        if not waiting:
            self._of_link.pop(number, None)


def _note(question: ClusterQuestion, found: Sequence[ClusterSession] | Partial) -> None:
    if isinstance(found, Partial):
        question.found, question.partial = (), found
    else:
        question.found = found


def cluster_answer(
    question: ClusterQuestion,
    here: Sequence[tuple[Uid, str, int, int | None]],
    *,
    host: str,
    most: int,
) -> list[object]:
    """The answer to a question, as a frame, with at most *most* sessions.

    *here* are the current sessions on this *host*. The cluster lags behind it: only
    `since` is from there.
    """
    found, partial = question.found or (), question.partial
    since = {
        (identity(row.uid), row.session): row.since or None
        for row in found
        if row.host == host
    }
    rows: list[Row] = [
        (*row, host, since.get((identity(row[0]), row[2]))) for row in here
    ]
    others: list[Row] = [
        (row.uid, row.gateway, row.session, None, row.host, row.since or None)
        for row in found
        if row.host != host
    ]
    if len(rows) + len(others) > most or (
        others and len(encode([rows, others])) > MOST_ANSWER_BYTES
    ):
        others, partial = [], Partial.LARGE
    terms: dict[str, object] = {CLUSTER: True}
    if partial is not None:
        terms["partial"] = partial.value
    return ["where", rows + others, terms]
