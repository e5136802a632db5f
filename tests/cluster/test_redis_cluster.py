"""Calls to a Cluster of six nodes: its failovers, and slots that move."""

from typing import Any, Final

import pytest
import trio

from liveness.cluster.connection import CallError, Redis, connected
from liveness.cluster.format import keys_of
from liveness.config.cluster import ClusterSettings
from tests.helpers.redis_servers import (
    Certificates,
    RedisCluster,
    RedisServer,
    redis_cluster_of_six,
    wait_until,
)

pytestmark = pytest.mark.long

PARTITIONS: Final = range(16)
TIMEOUT_S: Final = 0.5
SOON_S: Final = 30.0
Words = list[str | int | bytes]


async def begin(redis: Redis, partition: int) -> list[Any]:
    """Host A begins; the same epoch again is refused, which is an answer too."""
    args: Words = ["A", 1, 7, "log", 5, "1 16 -", 30_000_000, 1, 1, 9]
    answer: list[Any] = await redis.call("begin", partition, args)
    return answer


async def begin_all(redis: Redis) -> set[str]:
    """Begin in all partitions at once, until each was answered; the kinds of failures."""
    kinds = set[str]()

    async def begin_one(partition: int) -> None:
        while True:
            try:
                await begin(redis, partition)
                return
            except CallError as failure:
                kinds.add(failure.kind)
                await trio.sleep(0.05)

    with trio.fail_after(SOON_S):
        async with trio.open_nursery() as nursery:
            for partition in PARTITIONS:
                nursery.start_soon(begin_one, partition)
    return kinds


def masters(cluster: RedisCluster) -> dict[int, RedisServer]:
    """The master of each partition."""
    return {p: cluster.master_of(keys_of("lv", p).meta) for p in PARTITIONS}


async def test_each_partition_is_called_where_it_is(
    redis_cluster: RedisCluster,
) -> None:
    async with connected(redis_cluster.settings()) as redis:
        assert await begin_all(redis) == set()
        owners = masters(redis_cluster)
        for partition, master in owners.items():
            assert master("EXISTS", keys_of("lv", partition).meta) == 1
            assert await redis.meta(partition, "c") == [b"1"]
        assert len({*owners.values()}) == 3

    one = ClusterSettings(url=redis_cluster.nodes[0].url)
    async with connected(one) as redis:
        elsewhere = next(
            p for p in PARTITIONS if owners[p] is not redis_cluster.nodes[0]
        )
        with pytest.raises(CallError, match=r"; it is a Cluster: name cluster\.nodes"):
            await begin(redis, elsewhere)


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_replica_takes_over(redis_cluster: RedisCluster, how: str) -> None:
    settings = redis_cluster.settings()
    async with connected(settings, timeout_s=TIMEOUT_S) as redis:
        await begin_all(redis)
        master = redis_cluster.master_of(keys_of("lv", 3).meta)
        if how == "kill":
            master.kill()
        else:
            master.pause()
        kinds = await begin_all(redis)
        assert kinds <= {"connection", "timeout", "moving", "readonly"}
        assert kinds
        if how == "kill":
            master.start()
        else:
            master.resume()
        await begin_all(redis)
    others = [node for node in redis_cluster.nodes if node is not master]
    redis_cluster.nodes = [*others, master]
    # The node that is asked may hear of it after the new master has answered.
    wait_until(lambda: redis_cluster.master_of(keys_of("lv", 3).meta) is not master)


async def test_a_slot_that_moves(redis_cluster: RedisCluster) -> None:
    keys = keys_of("lv", 3)
    async with connected(redis_cluster.settings()) as redis:
        await begin_all(redis)
        source = redis_cluster.master_of(keys.meta)
        source("XADD", keys.stream, "1-0", "a", "b")
        source("HSET", keys.users, "a", "b")
        finish = redis_cluster.move_slot(keys.meta)
        (target,) = (
            node for node in redis_cluster.masters if b"-<-" in node("CLUSTER", "NODES")
        )

        def migrate(key: str) -> None:
            source("MIGRATE", "127.0.0.1", target.port, key, 0, 10_000)

        migrate(keys.meta)
        # A call needs all keys on one node.
        with pytest.raises(CallError) as caught:
            await begin(redis, 3)
        assert caught.value.kind == "moving"
        migrate(keys.users)
        migrate(keys.stream)
        # The other node has them, though the slot is not yet its own.
        assert (await begin(redis, 3))[0] == b"epoch"
        assert await redis.meta(3, "c") == [b"1"]
        finish()
        assert (await begin(redis, 3))[0] == b"epoch"
        assert redis_cluster.master_of(keys.meta) is target


async def test_a_cluster_that_is_away_at_the_start(redis_cluster: RedisCluster) -> None:
    for node in redis_cluster.nodes:
        node.pause()
    settings = redis_cluster.settings()
    async with connected(settings, timeout_s=TIMEOUT_S) as redis:
        with pytest.raises(CallError) as caught:
            await begin(redis, 3)
        assert caught.value.kind == "timeout"
        for node in redis_cluster.nodes:
            node.resume()
        await begin_all(redis)


async def test_a_cluster_with_tls(certificates: Certificates) -> None:
    files = {
        "tls_ca_file": certificates.ca,
        "tls_cert_file": certificates.client,
        "tls_key_file": certificates.client_key,
    }
    with redis_cluster_of_six(tls=certificates) as cluster:
        async with connected(cluster.settings(tls="on", **files)) as redis:
            assert await begin_all(redis) == set()
        assert len({*masters(cluster).values()}) == 3
