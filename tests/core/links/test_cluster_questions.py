"""Questions about all hosts: which answers come, in which order, and the bounds."""

from dataclasses import replace
from typing import Any, Final

import pytest

from liveness.core.access import Allowed
from liveness.core.effects import AskCluster
from liveness.core.links.cluster_questions import ClusterSession, Partial
from liveness.core.links.link import Link
from liveness.core.wire.framing import Reader
from tests.core.server_shell import Shell

ANYWHERE: Final = {"cluster": True}
THERE: Final = ClusterSession("u", "g", 7, "b", 1_000)
FEW: Final = {"max_link_questions": 2, "max_questions": 3}


class Cluster(Shell):
    """A server of host `a`; the test is the cluster."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(host="a", **limits)

    def asks(self, link: Link, *uids: object) -> list[AskCluster]:
        """Have a link ask about these users, each by itself; what the shell is to ask."""
        effects = self.says(link, *(["where", uid, ANYWHERE] for uid in uids))
        return [effect for effect in effects if isinstance(effect, AskCluster)]

    def answers(self, question: AskCluster, *found: ClusterSession) -> None:
        self.server.cluster_answered(question.ticket, found, self.at)
        self.effects()

    def fails(self, question: AskCluster, why: Partial = Partial.AWAY) -> None:
        self.server.cluster_answered(question.ticket, why, self.at)
        self.effects()

    def read(self, link: Link) -> list[Any]:
        """The frames that a link is sent."""
        self.write()
        reader = Reader(max_frame_bytes=2**24, max_batch=100_000)
        return [*reader.feed(link.outbox.take_frames())]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def partials(frames: list[Any]) -> list[object]:
    return [frame[2].get("partial") for frame in frames]


def test_an_answer_has_the_sessions_here_as_they_are_and_those_of_other_hosts(
    cluster: Cluster,
) -> None:
    link = cluster.gateway()
    cluster.says(link, ["login", ["u", "v"], {"conn": [4, None]}])
    (question,) = cluster.asks(link, ["u", "v", "w"])
    assert question.uids == ("u", "v", "w")
    cluster.says(link, ["logout", "v"])  # while the cluster is asked
    own = ClusterSession("u", "g", 1, "a", 500)
    ended = ClusterSession("v", "g", 2, "a", 500)
    cluster.answers(question, THERE, own, ended, THERE._replace(uid="w", since=0))
    rows = (
        ("u", "g", 1, 4, "a", 500),
        ("u", "g", 7, None, "b", 1_000),
        ("w", "g", 7, None, "b", None),
    )
    assert cluster.read(link) == [("where", rows, ANYWHERE)]


def test_only_other_answers_of_the_cluster_wait_for_one(cluster: Cluster) -> None:
    link = cluster.gateway()
    first, second = cluster.asks(link, "u", "v")
    cluster.answers(second, THERE._replace(uid="v"))
    cluster.says(link, ["ping", 1], ["where", "u"])
    assert cluster.read(link) == [("pong", 1), ("where", ())]
    cluster.answers(first, THERE)
    assert [frame[1][0][0] for frame in cluster.read(link)] == ["u", "v"]


@pytest.mark.parametrize("why", [Partial.AWAY, Partial.SLOW, Partial.LARGE])
def test_without_the_cluster_an_answer_has_the_sessions_here_and_says_why(
    cluster: Cluster, why: Partial
) -> None:
    link = cluster.gateway()
    cluster.says(link, ["login", "u"])
    (question,) = cluster.asks(link, "u")
    cluster.fails(question, why)
    ((_, rows, terms),) = cluster.read(link)
    assert rows == (("u", "g", 1, None, "a", None),)
    assert terms == {"cluster": True, "partial": why.value}


def test_a_link_with_too_many_questions_gets_its_answers_at_once() -> None:
    cluster = Cluster(**FEW)
    link = cluster.gateway()
    asked = cluster.asks(link, "u", "v", "w")
    assert [question.uids for question in asked] == [("u",), ("v",)]
    assert partials(cluster.read(link)) == ["busy"] * 3
    assert cluster.counts.limits_met == {"cluster.max_link_questions": 1}
    cluster.answers(asked[0], THERE)  # nobody waits for it any more
    assert cluster.read(link) == []


def test_questions_that_were_given_up_count_until_the_cluster_answers() -> None:
    cluster = Cluster(**FEW)
    links = [cluster.gateway(name) for name in ("g", "h")]
    asked = cluster.asks(links[0], "u", "v", "w")  # the third had both given up
    asked += cluster.asks(links[1], "u")
    assert cluster.asks(links[1], "v") == []
    assert partials(cluster.read(links[1])) == ["busy", "busy"]
    assert cluster.counts.limits_met["cluster.max_questions"] == 1
    cluster.fails(asked[0])
    assert len(cluster.asks(links[1], "v")) == 1


def test_more_sessions_than_an_answer_has_are_left_out() -> None:
    cluster = Cluster(max_where_rows=2)
    link = cluster.gateway()
    cluster.says(link, ["login", "u"])
    (question,) = cluster.asks(link, "u")
    cluster.answers(question, THERE, THERE._replace(host="c"))
    ((_, rows, terms),) = cluster.read(link)
    assert [row[4] for row in rows] == ["a"]
    assert terms["partial"] == "large"


def test_an_answer_too_large_in_bytes_is_left_out(cluster: Cluster) -> None:
    link = cluster.gateway()
    (question,) = cluster.asks(link, "u")
    long = THERE._replace(uid="u" * 255, gateway="g" * 64, host="b" * 64)
    cluster.answers(question, *[long._replace(session=n) for n in range(9_000)])
    assert cluster.read(link) == [("where", (), {"cluster": True, "partial": "large"})]


def test_who_may_not_see_everyone_gets_its_own_and_nothing_is_asked(
    cluster: Cluster,
) -> None:
    own, other = cluster.gateway(), cluster.gateway("h")
    cluster.says(own, ["login", "u"])
    cluster.says(other, ["login", "v"])
    (before,) = cluster.asks(own, ["u", "v"])
    registry = cluster.parts.registry
    registry.access = replace(registry.access, everyone=Allowed())
    assert cluster.asks(own, ["u", "v"]) == []
    cluster.answers(before, THERE)  # asked with the right, which is taken back
    rows = (("u", "g", 1, None, "a", None),)
    assert cluster.read(own) == [("where", rows, ANYWHERE)] * 2


def test_the_end_of_a_link_or_of_the_sidecar_answers_questions_first(
    cluster: Cluster,
) -> None:
    links = [cluster.gateway(name) for name in ("g", "h")]
    asked = [cluster.asks(link, "u")[0] for link in links]
    cluster.server.received(links[0], b"", cluster.at, None)
    cluster.server.end_all("stop", cluster.at)
    cluster.effects()
    for link in links:
        assert partials(cluster.read(link)) == ["ended"]
        cluster.server.closed(link)
    for question in asked:
        cluster.answers(question, THERE)


def test_the_answer_to_a_link_that_is_gone_is_dropped(cluster: Cluster) -> None:
    link = cluster.gateway()
    first, second = cluster.asks(link, "u", "v")
    cluster.says(cluster.connect(), ["hello", {"protocol": 1, "name": "g"}])
    cluster.server.replace(link)
    cluster.answers(first, THERE)
    cluster.server.closed(link)
    cluster.answers(second, THERE)
    assert cluster.read(link) == []
