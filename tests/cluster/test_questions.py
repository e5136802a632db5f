"""Questions about all hosts, on a real Redis."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

import anyio
import pytest

from liveness.cluster import questions
from liveness.cluster.connection import CallError, connected
from liveness.cluster.format import HostState, Place, keys_of
from liveness.cluster.questions import ClusterQuestions, HostRow, hosts
from liveness.core.records import Uid
from tests.helpers.cluster_publisher import PARTITIONS, ClusterPublisher, There
from tests.helpers.redis_servers import RedisServer

Ask = Callable[[ClusterQuestions], Coroutine[Any, Any, Any]]

UIDS: Final[list[Uid]] = ["ada", "bob", 7, "7", "eve", 2**63 - 1]


def asked(
    redis: RedisServer, ask: Ask, *, separator: str = "", backend: str = "trio"
) -> Any:
    """What comes of some questions."""

    async def main() -> Any:
        async with connected(redis.settings()) as connection:
            return await ask(
                ClusterQuestions(connection, partitions=PARTITIONS, separator=separator)
            )

    return anyio.run(main, backend=backend)


def places(redis: RedisServer, *uids: Uid, limit: int = 100, **options: Any) -> Any:
    return asked(redis, lambda cluster: cluster.places(uids, limit=limit), **options)


def all_hosts(redis: RedisServer) -> list[HostRow]:
    async def main() -> list[HostRow]:
        async with connected(redis.settings()) as connection:
            return await hosts(connection, PARTITIONS)

    return anyio.run(main, backend="trio")


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_users_are_found_on_every_host_the_newest_session_first(
    redis: RedisServer, backend: str
) -> None:
    ClusterPublisher(redis, "a").publish(There("ada"), There(7, session=2))
    ClusterPublisher(redis, "b").publish(
        There("ada", "gw-2", 44, 2_000), There(2**63 - 1)
    )
    assert places(redis, *UIDS, backend=backend) == [
        Place("ada", "b", "gw-2", 44, 2_000, ""),
        Place("ada", "a", "gw", 1, 1_000, ""),
        Place(7, "a", "gw", 2, 1_000, ""),
        Place(2**63 - 1, "b", "gw", 1, 1_000, ""),
    ]
    assert places(redis) == []


def test_a_user_is_found_by_both_names_and_each_session_has_that_of_its_login(
    redis: RedisServer,
) -> None:
    ClusterPublisher(redis, "a").publish(There(7, session=2), There("07"))
    ClusterPublisher(redis, "b").publish(There("7", session=3, since=2_000))
    found = [Place("7", "b", "gw", 3, 2_000, ""), Place(7, "a", "gw", 2, 1_000, "")]
    for asked_by in ([7], ["7"], [7, "7"]):
        assert places(redis, *asked_by) == found
        assert places(redis, *asked_by, separator="/") == found


def test_more_users_than_a_call_has_are_asked_in_several(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "USERS_IN_CALL", 7)
    users = [f"u-{n}" for n in range(300)]
    ClusterPublisher(redis, "a").publish(*map(There, users))
    assert [place.user for place in places(redis, *users, limit=300)] == users
    assert len(places(redis, *users, limit=20)) == 20


def test_a_device_is_asked_for_by_itself_or_by_its_user(redis: RedisServer) -> None:
    ClusterPublisher(redis).publish(
        There("ada", device="/phone"),
        There("ada", session=2, since=2_000, device="/desk"),
        There("ada", session=3, since=3_000),
    )

    def found(*uids: Uid, limit: int = 100) -> list[Uid]:
        rows = places(redis, *uids, limit=limit, separator="/")
        return [place.uid for place in rows]

    assert found("ada") == ["ada", "ada/desk", "ada/phone"]
    assert found("ada/phone", "ada/tv") == ["ada/phone"]
    # Users that were not asked for do not use up the limit.
    assert found("ada/phone", limit=1) == ["ada/phone"]
    assert found("ada/phone", "ada") == ["ada", "ada/desk", "ada/phone"]


def test_hosts_are_merged_over_the_partitions(redis: RedisServer) -> None:
    users = [There(f"u-{n}") for n in range(40)]
    ClusterPublisher(redis, "b").publish(*users)
    ClusterPublisher(redis)
    a, b = all_hosts(redis)
    assert a == HostRow("a", HostState.LIVE, 0, a.heard_ms, "log", PARTITIONS, 0)
    assert b == HostRow("b", HostState.LIVE, 40, b.heard_ms, "log", PARTITIONS, 0)
    assert 0 <= a.heard_ms <= b.heard_ms


def unanswered(redis: RedisServer, ask: Ask) -> CallError:
    with pytest.raises(CallError) as caught:
        asked(redis, ask)
    return caught.value


def test_without_redis_there_is_no_answer(redis: RedisServer) -> None:
    redis.kill()
    error = unanswered(redis, lambda all_: all_.places(["u"], limit=1))
    assert "Redis cannot be asked" in str(error)
    assert error.kind != "timeout"


def test_a_redis_that_stands_still_is_not_waited_for(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "QUESTION_S", 0.05)
    redis.pause()
    error = unanswered(redis, lambda all_: all_.places(["u"], limit=1))
    assert str(error) == "Redis did not answer within 0.05 s"
    assert error.kind == "timeout"


def test_what_is_no_host_is_no_answer(redis: RedisServer) -> None:
    ClusterPublisher(redis, "a").publish(There("ada"))
    redis("HSET", keys_of("lv", 0).meta, "hx", "y")
    with pytest.raises(ValueError, match="not the bytes of a host"):
        all_hosts(redis)
