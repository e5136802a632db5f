"""A watch of all partitions against a real Redis."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

import liveness
from liveness.cluster.cluster_watch import OLDEST, ClusterWatch
from liveness.cluster.connection import CallError
from liveness.cluster.events import ClusterEvent, Listed
from liveness.cluster.format import ClusterRecord, keys_of
from liveness.errors import LivenessError, ReportError
from tests.helpers.cluster_publisher import ClusterPublisher
from tests.helpers.redis_servers import SOON_S, RedisServer

Watching = Callable[..., ClusterWatch]


@pytest.fixture
def host(redis: RedisServer) -> ClusterPublisher:
    return ClusterPublisher(redis)


@pytest.fixture
async def watching(redis: RedisServer) -> AsyncIterator[Watching]:
    with anyio.fail_after(SOON_S):
        yield lambda **options: ClusterWatch(redis.settings(lease_s=3), **options)


def shown(event: ClusterEvent) -> str:
    if isinstance(event, ClusterRecord):
        return f"{'-' if event.kind == 'offline' else '+'}{event.user}"
    if isinstance(event, Listed):
        return f"listed {' '.join(sorted(str(place.uid) for place in event.places))}"
    return event.kind


async def read(watch: ClusterWatch, count: int) -> list[str]:
    """The next events, in the order of their text: that of partitions is any."""
    return sorted([shown(await anext(watch)) for _ in range(count)])


async def settle(watch: ClusterWatch) -> str:
    """Wait for nothing, until each partition was read; the position then."""
    while watch.position is None:
        with anyio.move_on_after(0.05):
            await anext(watch)
    return watch.position


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_records_of_all_partitions_come_from_now_on(
    redis: RedisServer, host: ClusterPublisher, backend: str
) -> None:
    async def main() -> None:
        host.online("before", "ada")
        with anyio.fail_after(SOON_S):
            async with ClusterWatch(redis.settings()) as watch:
                await settle(watch)
                host.online("bob", "eve", 7)
                host.offline("ada")
                assert await read(watch, 4) == ["+7", "+bob", "+eve", "-ada"]
                assert await watch.online(["ada", 7]) == {7}

    anyio.run(main, backend=backend)


async def test_another_watch_goes_on_behind_what_is_finished(
    host: ClusterPublisher, watching: Watching
) -> None:
    users = [f"u{n}" for n in range(8)]
    async with watching() as watch:
        await settle(watch)
        for user in users:
            host.online(user)
        first = await read(watch, 3)
        # The third is not finished.
        position = watch.position
        assert await read(watch, 5) == sorted({f"+{user}" for user in users} - {*first})
    async with watching(position=position) as watch:
        again = await read(watch, 6)
    assert len({*first, *again}) == 8


async def test_a_batch_is_finished_as_a_whole(
    host: ClusterPublisher, watching: Watching
) -> None:
    async with watching(position=OLDEST) as watch:
        host.online("ada", "bob", "eve")
        found = 0
        async for batch in watch.batches():
            found += len(batch)
            if found == 3:
                break
        assert watch.take() is None
        position = watch.position
    host.online("kim")
    async with watching(position=position) as watch:
        assert await read(watch, 1) == ["+kim"]


async def test_nothing_is_left_out_if_the_first_host_begins_later(
    redis: RedisServer, watching: Watching
) -> None:
    async with watching() as watch, anyio.create_task_group() as tasks:
        found: list[str] = []

        async def reading() -> None:
            found.extend(await read(watch, 2))

        tasks.start_soon(reading)
        while not redis.info("commandstats", "cmdstat_hmget"):  # noqa: ASYNC110 - no event says so
            await anyio.sleep(0.01)
        ClusterPublisher(redis).online("ada", "bob")
    assert found == ["+ada", "+bob"]


async def test_who_is_online_is_listed_at_first_and_after_redis_was_emptied(
    redis: RedisServer, host: ClusterPublisher, watching: Watching
) -> None:
    host.age()
    host.online("ada", "tom")  # one in each partition
    async with watching(lists=True) as watch:
        assert await read(watch, 2) == ["listed ada", "listed tom"]
        redis("FLUSHALL")
        host = ClusterPublisher(redis)
        host.online("ada")
        found = await read(watch, 3)
        host.age()
        assert found + await read(watch, 2) == [
            *("+ada", "rollback", "rollback"),
            *("listed ", "listed ada"),
        ]


async def test_closing_ends_the_iteration_and_its_wait(
    host: ClusterPublisher, watching: Watching
) -> None:
    async with watching() as watch, anyio.create_task_group() as tasks:
        await settle(watch)
        tasks.start_soon(watch.aclose)
        assert [event async for event in watch] == []


async def test_a_read_that_begins_as_the_watch_ends_is_no_failure(
    host: ClusterPublisher, watching: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    host.online("ada")
    async with watching() as watch:
        await watch.connected()
    await watch._read_all()
    assert caplog.messages == []


async def told(lines: list[str], count: int, watch: ClusterWatch) -> None:
    """Wait for lines, while a loop waits for events."""
    while len(lines) < count:
        with anyio.move_on_after(0.05):
            await anext(watch)


async def test_it_waits_while_redis_is_away_and_says_so_once(
    redis: RedisServer, host: ClusterPublisher, watching: Watching
) -> None:
    lines: list[str] = []
    async with watching(report_line=lines.append) as watch:
        await settle(watch)
        redis.kill()
        await told(lines, 1, watch)
        redis.start()
        ClusterPublisher(redis).online("ada")
        assert "+ada" in await read(watch, 1)
        await told(lines, 2, watch)  # once the other partition was read, too
    away, back = lines
    assert away.startswith(f"Redis at {redis.address}: ")
    assert away.endswith("; trying again")
    assert back == f"{redis.url} answers again: reading on"


async def test_a_strict_watch_raises_at_first(
    redis: RedisServer, watching: Watching
) -> None:
    redis.kill()
    async with watching(strict=True) as watch:
        with pytest.raises(CallError):
            await anext(watch)


@pytest.mark.parametrize("position", ["newest", "0:1.2,", "0", "0:1.2,1:x"])
async def test_a_text_that_is_no_position_is_refused(
    watching: Watching, position: str
) -> None:
    with pytest.raises(ReportError, match="position"):
        watching(position=position)


async def test_the_position_of_another_cluster_is_refused(
    host: ClusterPublisher, watching: Watching
) -> None:
    async with watching(position="0:5.1,1:5.1,2:5.1") as watch:
        with pytest.raises(ReportError, match="has 3 partitions, and the cluster 2"):
            await anext(watch)


@pytest.mark.parametrize(
    ("conf", "said"),
    [("2 16 - 5", "have schema 2, and this program 1"), ("cake", "correct cluster")],
)
async def test_what_other_programs_wrote_is_refused(
    redis: RedisServer, watching: Watching, conf: str, said: str
) -> None:
    redis("HSET", keys_of("lv", 0).meta, "conf", conf)
    async with watching() as watch:
        with pytest.raises(LivenessError, match=said):
            await anext(watch)


async def test_a_watch_is_used_with_async_with(watching: Watching) -> None:
    with pytest.raises(ReportError, match="async with"):
        await anext(watching())


async def test_the_library_watches_a_cluster_by_its_url(
    redis: RedisServer, host: ClusterPublisher
) -> None:
    host.online("ada")
    with anyio.fail_after(SOON_S):
        async with liveness.watch(cluster=redis.url, position=OLDEST) as watch:
            event = await anext(watch)
            shown = {"kind": "online", "uid": "ada", "host": "a", "gateway": "gw"}
            assert event.as_map().items() >= shown.items()


def test_a_program_with_threads_watches_a_cluster(
    redis: RedisServer, host: ClusterPublisher
) -> None:
    host.online("ada", "bob")
    with liveness.watch_sync(cluster=redis.settings(), position=OLDEST) as watch:
        watch.connected()
        assert [shown(next(watch)) for _ in range(2)] == ["+ada", "+bob"]
        host.online("eve", "lea")
        assert [shown(event) for event in next(watch.batches())] == ["+eve", "+lea"]
        assert watch.online(["ada", "kim"]) == {"ada"}
        assert [place.host for place in watch.where("bob")] == ["a"]
        assert [row.host for row in watch.hosts()] == ["a"]
        assert watch.position is not None


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("", "it must be redis://HOST:PORT"),
        ("http://redis:1", "it must be redis://"),
        ("redis", "it must be HOST:PORT"),
        ("redis://u@redis:1", "it must not name a user or a password"),
    ],
)
def test_a_text_that_names_no_server_is_refused(cluster: str, said: str) -> None:
    with pytest.raises(ReportError, match=f"^cluster: {said}"):
        liveness.watch(cluster=cluster)


def test_coredis_is_imported_by_a_connection_only() -> None:
    """Programs that watch no cluster need not have it."""
    show = "import sys, liveness; liveness.watch('a'); liveness.ClusterWatch;"
    told = subprocess.run(
        [sys.executable, "-I", "-c", f"{show} print('coredis' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "False\n"
