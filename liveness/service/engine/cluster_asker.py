"""Asks the cluster what the links ask about users of all hosts."""

from typing import NoReturn

import trio

from liveness.cluster.format import Place
from liveness.cluster.questions import ClusterQuestions, Unanswered
from liveness.core.effects import AskCluster
from liveness.core.links.cluster_questions import ClusterSession, Partial
from liveness.service.engine.engine import Engine


async def ask_cluster(
    engine: Engine, questions: ClusterQuestions, *, max_rows: int
) -> NoReturn:
    """Ask what the engine wants asked, all at once; the server bounds how many there are.

    Args:
        engine: Has the questions, and takes the answers.
        questions: Asks the cluster.
        max_rows: Most sessions in an answer, unless there are more users.
    """

    async def ask(question: AskCluster) -> None:
        most = max(max_rows, len(question.uids))
        found: list[ClusterSession] | Partial
        try:
            places = await questions.places(question.uids, limit=most + 1)
        except Unanswered as error:
            found = Partial.SLOW if error.is_slow else Partial.AWAY
        else:
            found = Partial.LARGE if len(places) > most else [*map(_session, places)]
        with engine.shell as server:
            server.cluster_answered(question.ticket, found, engine.instant())

    async with trio.open_nursery() as nursery:
        while True:
            await engine.shell.cluster_wanted.wait()
            while engine.shell.cluster_questions:
                nursery.start_soon(ask, engine.shell.cluster_questions.popleft())


def _session(place: Place) -> ClusterSession:
    return ClusterSession(
        place.uid, place.gateway, place.session, place.host, place.since
    )
