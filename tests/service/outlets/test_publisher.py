"""What must not end the sidecar while it publishes to other hosts."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from liveness.config.cluster import ClusterSettings
from liveness.service.outlets.cluster import publisher, session_changes
from liveness.service.outlets.cluster.publisher import LISTS_AT_ONCE, Publisher
from tests.service.rig import Rig, running


class FakeRedis:
    """Redis that takes what it is sent."""

    error = None

    def __init__(self, _settings: ClusterSettings, *, must_keep: bool) -> None:
        assert must_keep
        self.begun: list[Any] = [b"keep", 0, 1, 1, 1, 1]
        self.looked: list[Any] = [b"later", 30_000_000]
        self.changes: list[Any] = []

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def call(self, function: str, _partition: int, args: Sequence[Any]) -> Any:
        await trio.sleep(0.001)
        match function:
            case "begin":
                return self.begun
            case "apply" | "assert":
                self.changes += args[10:]
                return [b"ok", 1, 1, 1, 1, 1, 1, 1, 1]
            case "beat":
                return [b"ok", 1, 0, 0, 1, 1, 1, 1, 1]
            case _:
                return self.looked


@pytest.fixture
async def rig(
    tmp_path: Path,
    jumping: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Rig]:
    """A host of one partition, or of those in `pytest.mark.rig(partitions=...)`."""
    monkeypatch.setattr(publisher, "Redis", FakeRedis)
    marker = request.node.get_closest_marker("rig")
    partitions = marker.kwargs["partitions"] if marker else 1
    settings = ClusterSettings(url="redis://127.0.0.1", host="a", partitions=partitions)
    async with running(tmp_path, cluster=settings) as rig:
        yield rig


@pytest.fixture
def cluster(rig: Rig) -> Publisher:
    assert rig.sidecar.outlets is not None
    assert rig.sidecar.outlets.cluster is not None
    return rig.sidecar.outlets.cluster


@pytest.fixture
def redis(cluster: Publisher) -> FakeRedis:
    assert isinstance(cluster.redis, FakeRedis)
    return cluster.redis


async def test_a_log_that_cannot_be_read_now_is_read_later(
    rig: Rig, redis: FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0

    def fail(**_: Any) -> None:
        nonlocal failures
        failures += 1
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(rig.sidecar.feed, "reaches", lambda _: False)
    with monkeypatch.context() as failing:
        failing.setattr(rig.store, "read", fail)
        await rig.gateway_of("ada")
        await rig.until(lambda: failures > 2)
    await rig.until(lambda: b"ada" in redis.changes)


async def test_a_list_that_cannot_be_read_now_is_made_again(
    rig: Rig, cluster: Publisher, redis: FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0

    def fail(*_: object) -> None:
        nonlocal failures
        failures += 1
        raise OSError("Input/output error")

    await rig.gateway_of("ada")
    redis.begun = [b"reset", 0, 2, 1, 1, 1]
    (part,) = cluster.host.partitions
    with monkeypatch.context() as failing:
        failing.setattr(session_changes, "read_rows", fail)
        part.lose_records()
        await rig.until(lambda: failures > 2)
    redis.changes.clear()
    await rig.until(lambda: b"ada" in redis.changes)


@pytest.mark.parametrize(
    ("answer", "state", "detail"),
    [
        (None, "away", "another program wrote to its keys"),
        ([b"config", b"\xff"], "refused", "use the same settings"),
        ([b"replaced", 5, 77], "replaced", "give each host a name of its own"),
    ],
)
async def test_an_answer_that_refuses_the_host_is_reported(
    rig: Rig, cluster: Publisher, redis: FakeRedis, answer: Any, state: str, detail: str
) -> None:
    redis.begun = answer
    (part,) = cluster.host.partitions
    part.lose_records()
    await trio.sleep(60.0)
    now = cluster.now()
    assert now.state == state
    assert detail in now.detail
    if answer is None:
        assert now.errors["other"] > 1
    else:
        assert now.calls["begin", answer[0].decode()] > 1
    redis.begun = [b"keep", 0, 1, 1, 1, 1]
    await rig.until(lambda: cluster.now().state == "following")


@pytest.mark.rig(partitions=2 * LISTS_AT_ONCE)
@pytest.mark.parametrize("function", ["begin", "assert"])
async def test_after_an_error_of_its_own_all_partitions_are_published_again(
    rig: Rig,
    cluster: Publisher,
    redis: FakeRedis,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
) -> None:
    call = redis.call

    async def fail(name: str, partition: int, args: Sequence[Any]) -> Any:
        if name == function:
            await trio.sleep(0.01)  # others are on their way meanwhile
            raise ValueError("odd")
        return await call(name, partition, args)

    monkeypatch.setattr(session_changes, "CALL_CHANGES", 1)  # lists have many pieces
    await rig.gateway_of([f"u{number}" for number in range(100)])
    redis.begun = [b"reset", 0, 2, 1, 1, 1]
    with monkeypatch.context() as failing:
        failing.setattr(redis, "call", fail)
        for part in cluster.host.partitions:
            part.lose_records()
        await rig.until(
            lambda: cluster.now().detail == "ValueError: odd; please report this"
        )
    await rig.until(lambda: cluster.now().state == "following")
    await rig.gateway_of("ada", "h")
    await rig.until(lambda: b"ada" in redis.changes)


async def test_another_lease_of_another_host_is_reported(
    rig: Rig, cluster: Publisher, redis: FakeRedis
) -> None:
    redis.looked[-1] = 60_000_000
    await rig.until(lambda: "lease_s 60 and this one 30" in cluster.now().detail)
    assert cluster.now().state == "following"
    redis.looked[-1] = 30_000_000
    await rig.until(lambda: cluster.now().detail == "")
    assert cluster.now().users == 1  # as Redis answers
