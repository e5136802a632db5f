"""The scripted sidecar: it passes the tests of the real one, and does what it is told.

The first half is tests of the real sidecar, imported from where they are and collected
again here, where the `sidecar` they ask for is a scripted one: all of them in which nobody
falls silent and nobody looks at the process. What time they take passes there too.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from itertools import pairwise
from pathlib import Path
from random import Random
from time import CLOCK_MONOTONIC, clock_gettime, perf_counter, time_ns
from typing import Any, Final

import anyio
import anyio.abc
import msgpack
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from trio.testing import MockClock

import liveness
from liveness.core.link import LinkLimits
from liveness.core.records import EVENTS
from liveness.core.records import Record as Decided
from liveness.core.timers import LADDER
from liveness.testing import (
    MAX_REPLIES,
    START_WALL_MS,
    Event,
    ScriptedSidecar,
    Session,
    Timer,
    scripted_sidecar,
)
from tests.core.test_vectors import BEFORE, TO_SIDECAR, exact, name_of, octets
from tests.e2e.client import Client, Record, packed
from tests.e2e.conftest import Start
from tests.e2e.sidecar import Line, Sidecar, eventually
from tests.e2e.test_delivery import (  # noqa: F401
    test_a_gap_comes_whatever_kinds_were_asked_for,
    test_a_gateway_is_told_of_the_gap_only_if_what_is_gone_concerned_it,
    test_a_gateway_without_acks_is_told_what_came_while_it_was_away,
    test_a_hello_may_name_where_to_read_on,
    test_a_new_name_begins_at_now_and_a_crash_right_after_welcome_does_not_lose_that,
    test_a_watcher_without_acks_has_no_cursor_and_one_with_them_has,
    test_hard_uids_stay_who_they_are_on_every_way_and_over_a_crash,
    test_list_gives_a_gateway_its_own_and_a_watcher_everyone,
    test_one_who_comes_from_another_log_begins_at_the_oldest_record_kept,
    test_reading_on_from_a_named_place_leaves_the_stored_cursor_alone,
    test_watchers_see_what_they_asked_for,
    test_what_was_not_acknowledged_comes_again_after_a_reconnect,
    test_where_tells_of_those_online_only_and_of_everyones,
    test_whoever_has_a_place_in_the_log_learns_whether_it_was_known,
)
from tests.e2e.test_holds import (  # noqa: F401
    test_a_fresh_gateway_ends_its_old_sessions_before_anything_else,
    test_a_fresh_gateway_ends_nobody_elses_sessions,
)
from tests.e2e.test_main_job import (  # noqa: F401
    test_a_keepalive_of_an_unknown_user_opens_a_session_and_says_so,
    test_a_late_logout_of_an_older_conn_does_not_end_the_newer_one_of_its_gateway,
    test_a_late_logout_or_keepalive_of_another_gateway_does_not_touch_the_newer_session,
    test_broken_bytes_close_their_link_only_and_end_nobody,
)
from tests.e2e.test_refusals import (  # noqa: F401
    FEW_REFUSED,
    offender,
    online,
    test_a_bad_frame_is_refused_alone_and_the_link_goes_on,
    test_a_gateway_that_reads_all_its_pongs_is_never_refused,
    test_a_newer_link_of_the_same_name_replaces_the_older_after_what_that_had_sent,
    test_a_watcher_that_sends_events_is_refused_them_and_goes_on,
    test_after_a_bad_stream_nothing_is_applied_and_the_link_ends,
    test_an_ack_is_taken_below_next_and_refused_at_it,
    test_bad_uids_count_as_refused_frames,
    test_each_bad_frame_of_a_run_is_refused_by_its_own_number,
    test_too_many_refused_frames_end_the_link_and_what_follows_is_not_applied,
    test_without_a_good_hello_nothing_is_applied_and_the_link_ends,
)
from tests.e2e.test_restart import (  # noqa: F401
    test_a_gateway_that_reconnects_after_a_restart_goes_on_without_a_record,
    test_a_gateway_that_starts_anew_ends_what_it_left_and_begins_at_now,
    test_after_a_crash_seq_and_cursors_go_on_without_a_gap_or_reuse,
    test_after_a_crash_users_sessions_and_conns_are_as_they_were,
)
from tests.e2e.test_timer_scenes import (  # noqa: F401
    test_a_cancelled_timer_never_fires_nor_does_one_of_a_cancelled_ext,
    test_a_run_that_was_not_acknowledged_comes_again_after_a_reconnect,
    test_a_timer_fires_once_for_its_gateway_with_all_that_it_was_given,
    test_a_watcher_has_no_timers,
    test_others_are_told_of_timers_only_if_they_ask_for_everyones_and_for_that_kind,
    test_the_same_key_again_replaces_and_fires_once_with_the_newer_payload,
    test_timers_outlast_a_crash_and_what_came_due_meanwhile_fires_once,
    test_what_came_due_while_its_gateway_was_away_comes_when_it_is_back_fresh,
)

SOON_S: Final = 10.0
TICK_S: Final = 0.02


# --- the tests of the real thing ----------------------------------------------------------


class Scripted(Sidecar):
    """A scripted sidecar in the place of a process."""

    def __init__(self, script: ScriptedSidecar, portal: BlockingPortal) -> None:
        super().__init__(script.path.parent)
        assert self.socket == script.path
        self.script = script
        self._portal = portal

    def start(self, timeout_s: float | None = None, **settings: object) -> "Scripted":
        assert timeout_s is None
        assert not settings
        self._hang_up()
        self._portal.call(self.script.start)
        return self

    def stop(self, *_: object, **__: object) -> int:
        self._portal.call(self.script.stop)
        for client in self._clients:
            client.leave()
        return 0

    def kill(self) -> None:
        self._portal.call(self.script.crash)

    def line(self, event: str, within_s: float = SOON_S, **fields: object) -> Line:
        assert event == "link down"
        eventually(lambda: fields["name"] not in self._linked())
        return {}

    def metric(self, name: str, **labels: str) -> float:
        assert name == "liveness_events_ignored_total"
        return self._portal.call(lambda: self.script._presence.ignored[labels["why"]])

    def _linked(self) -> dict[str, int]:
        return self._portal.call(lambda: self.script.links)


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def portal(request: pytest.FixtureRequest) -> Iterator[BlockingPortal]:
    with start_blocking_portal(request.param) as started:
        yield started


@pytest.fixture
def sidecar(portal: BlockingPortal) -> Iterator[Scripted]:
    with (
        portal.wrap_async_context_manager(scripted_sidecar()) as script,
        Scripted(script, portal) as running,
        ticking(script, portal),
    ):
        yield running


@contextmanager
def ticking(script: ScriptedSidecar, portal: BlockingPortal) -> Iterator[None]:
    """Lets time pass there as it does here."""

    async def tick() -> None:
        while True:
            await anyio.sleep(TICK_S)
            await script.pass_time(TICK_S)

    task = portal.start_task_soon(tick)
    yield
    task.cancel()


@pytest.fixture
def start(sidecar: Scripted) -> Start:
    return lambda: sidecar


@pytest.fixture
def name() -> str:
    return "gw"


@pytest.fixture
def tight(sidecar: Scripted) -> Scripted:
    """One with little patience."""
    sidecar.script._limits = LinkLimits(max_refused=FEW_REFUSED)
    return sidecar


@pytest.fixture
def aged(sidecar: Scripted) -> Scripted:
    """One that has let go all but the last of eight old records."""
    sidecar.kill()
    disk = sidecar.script._disk
    disk.records = [
        Decided(seq, "offline", f"u-{seq}", gateway, seq, None, "logout", 1)
        for seq, gateway in enumerate(["left"] * 3 + ["right"] * 5, start=1)
    ]
    disk.first = 8
    disk.cursors = {("gateway", "left"): 3, ("gateway", "right"): 3}
    return sidecar.start()


@pytest.fixture
def watchful(sidecar: Scripted) -> Iterator[Client]:
    """A gateway whose link and user do not notice what others do."""
    link = sidecar.gateway("watchful")
    link.send("login", "unharmed")
    link.settle()
    yield link
    assert online(link, ["unharmed"]) == {"unharmed"}
    assert not link.records


@pytest.mark.parametrize("case", TO_SIDECAR, ids=name_of)
def test_the_bytes_of_a_vector_are_refused_and_applied_as_it_says(
    case: dict[str, Any], sidecar: Scripted, portal: BlockingPortal
) -> None:
    script = sidecar.script
    script._disk.records = [  # the vectors' `next` is 1,000
        Decided(seq, "offline", "u", "nobody", 1, None, "logout", 1)
        for seq in range(1, 1_000)
    ]
    script._presence.decided.next_seq = 1_000
    before: list[Any] = BEFORE[case["before"]]
    link = sidecar.connect()
    link.send_bytes(packed(*before) + octets(case))
    if "error" in case:
        while (frame := link.receive()) is not None and frame[0] != "error":
            assert frame[0] in ("welcome", "pong", "where", "list")
        assert frame is not None
        assert frame[1].pop("message")
        assert exact(frame[1]) == exact(case["error"])
        if case["error"]["fatal"]:
            assert link.receive() is None
    events = [
        frame["frame"]
        for frame in case["frames"]
        if frame["frame"] in EVENTS
        for _ in range(uids_in(frame))
    ]
    portal.call(script.until, lambda: len(script.events) == len(events))
    assert [it.event for it in script.events] == events
    assert len(script.refused) == ("error" in case)


def uids_in(frame: dict[str, Any]) -> int:
    uids = frame["uids"]
    return int(uids["repeat"][1] if isinstance(uids, dict) else len(uids))


# --- the script, under every loop ---------------------------------------------------------


LOOPS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "asyncio": lambda: {"backend": "asyncio"},
    "trio": lambda: {"backend": "trio"},
    "jumping": lambda: {
        "backend": "trio",
        "backend_options": {"clock": MockClock(autojump_threshold=0)},
    },
}
Story = Callable[[ScriptedSidecar], Awaitable[None]]


def under(*loops: str) -> Callable[[Story], Callable[[str], None]]:
    """Makes a test of a story: a sidecar for it, and each of these loops."""

    def test_of(story: Story) -> Callable[[str], None]:
        async def told() -> None:
            async with scripted_sidecar(within=SOON_S) as script:
                await story(script)

        @pytest.mark.parametrize("loop", loops)
        def test(loop: str) -> None:
            anyio.run(told, **LOOPS[loop]())

        return test

    return test_of


everywhere = under(*LOOPS)
# Where a client waits before it connects again: only there is that no real waiting.
without_waiting = under("jumping")


class Gateway:
    """One that speaks raw msgpack, and reads only when asked to."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.welcome: dict[str, Any] = {}
        self._stream = stream
        self._unpacker = msgpack.Unpacker()

    async def send(self, *frames: list[Any]) -> None:
        await self._stream.send(packed(*frames))

    async def receive(self) -> list[Any] | None:
        """The next frame; None at the end of the stream."""
        with anyio.fail_after(SOON_S):
            while True:
                for frame in self._unpacker:
                    told: list[Any] = frame
                    return told
                try:
                    self._unpacker.feed(await self._stream.receive())
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return None

    async def expect(self, name: str) -> list[Any]:
        frame = await self.receive()
        assert frame is not None, f"the stream ended before {name}"
        assert frame[0] == name, frame
        return frame[1:]

    async def records(self) -> list[Record]:
        (records,) = await self.expect("notices")
        told: list[Record] = records
        return told

    async def records_of(self, count: int) -> list[Record]:
        """The next records, at least so many: what came at its moment came by itself."""
        told: list[Record] = []
        while len(told) < count:
            told += await self.records()
        return told

    async def settle(self) -> None:
        await self.send(["ping", 0])
        assert await self.expect("pong") == [0]

    async def is_told_nothing(self) -> bool:
        """Whether a pong is the next that comes; a second for what is told after one."""
        await self.settle()
        await self.settle()
        return True


@asynccontextmanager
async def gateways(
    script: ScriptedSidecar, *names: str, **options: Any
) -> AsyncIterator[Any]:
    """Gateways that were welcomed: one, or a list of several."""
    async with AsyncExitStack() as stack:
        linked = []
        for name in names:
            stream = await stack.enter_async_context(
                await anyio.connect_unix(script.path)
            )
            linked.append(Gateway(stream))
            hello = {"protocol": 1, "name": name, **options}
            await linked[-1].send(["hello", hello])
            linked[-1].welcome = (await linked[-1].expect("welcome"))[0]
        yield linked[0] if len(names) == 1 else linked


def told(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(r["uid"], r["kind"], r["reason"], r.get("conn")) for r in records]


# --- time


@everywhere
async def test_a_user_falls_silent_at_its_timeout_and_not_before(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["login", "ada", {"conn": 1}])
        await gateway.send(["login", "own", {"timeout": 10}])
        await script.pass_time(9.999)
        assert set(script.users) == {"ada", "own"}
        await script.pass_time(0.001)
        assert set(script.users) == {"ada"}
        assert told(await gateway.records()) == [("own", "offline", "silence", None)]
        await script.pass_time(19.999)
        assert set(script.users) == {"ada"}
        await script.pass_time(0.001)
        (record,) = await gateway.records()
        assert told([record]) == [("ada", "offline", "silence", 1)]
        assert (record["at"], record["seen"]) == (START_WALL_MS + 30_000, START_WALL_MS)
        assert (record["silence"], record["last"]) == (30, "login")
        assert script._presence.early == 0


@everywhere
async def test_time_in_pieces_is_as_long_as_in_one(script: ScriptedSidecar) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["login", "ada"])
        for _ in range(299):
            await script.pass_time(0.1)
        assert script.users
        await script.pass_time(0.1)
        assert not script.users


@everywhere
async def test_in_a_long_time_each_falls_silent_at_its_own_moment(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        for n in range(1, 10):
            await gateway.send(["login", n, {"timeout": 100 * n + n / 7}])
        began = perf_counter()
        await script.pass_time(3_600)
        assert perf_counter() - began < SOON_S
        records = await gateway.records()
        assert [record["uid"] for record in records] == list(range(1, 10))
        late = [
            record["silence"] - 100 * n - n / 7 for n, record in enumerate(records, 1)
        ]
        assert min(late) >= -0.0005
        assert max(late) < 0.02


@everywhere
async def test_what_was_written_before_time_passes_counts(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw", ping=0.1) as gateway:
        await gateway.send(["login", ["ada", "eve"]])
        for _ in range(10):
            await script.pass_time(20)
            await gateway.send(["keepalive", "ada"])
        assert set(script.users) == {"ada"}
        assert told(await gateway.records()) == [("eve", "offline", "silence", None)]


@everywhere
async def test_users_of_a_gateway_that_went_are_lost_with_it(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["login", ["ada", "eve"]], ["login", "bob", {"timeout": 1}])
        await script.online("bob")
    await script.until(lambda: not script.links)
    await script.pass_time(1)
    assert set(script.users) == {"ada", "bob", "eve"}, "it has a second to come back"
    await script.pass_time(0.1)
    assert (await script.offline("bob"))["reason"] == "gateway_lost"
    await script.pass_time(28)
    async with gateways(script, "gw") as gateway:
        assert told(await gateway.records()) == [
            ("bob", "offline", "gateway_lost", None)
        ]
        await gateway.send(["keepalive", "ada"])
        await script.pass_time(2)
        assert (await script.offline("eve"))["reason"] == "silence"
        assert set(script.users) == {"ada"}


@without_waiting
async def test_the_newer_connection_is_newer_by_the_clock_that_ages_are_told_by(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw", "other", kinds=[]) as (gateway, other):
        await gateway.send(["login", "ada", {"conn": 1}])
        await script.online("ada")
        await anyio.sleep(10)
        for conn, age in ((2, 11), (3, 9), (4, 9.5), (5, 7200)):
            await other.send(["login", "ada", {"conn": conn, "age": age}])
        await other.settle()
        assert script.users == {"ada": ("other", 2, 3)}, "of 1 s after the first"
        await script.pass_time(25)
        await anyio.sleep(10)
        await gateway.send(["login", "ada", {"conn": 1, "age": 20}])
        await gateway.send(["login", "ada", {"conn": 6, "age": 0.5}])
        await gateway.settle()
        assert script.users == {"ada": ("gw", 3, 6)}
        await script.pass_time(1)
        await gateway.send(["login", "ada", {"conn": 7}])
        await script.until(lambda: script.users["ada"].conn == 7)
        assert [r["session"] for r in script.records] == [1, 2, 3, 4]


def host_clock() -> list[float]:
    return [clock_gettime(CLOCK_MONOTONIC), time_ns() / 1e9]


@without_waiting
async def test_in_virtual_time_no_beginning_is_told_by_the_clock_of_the_host(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw", clock=host_clock()) as gateway:
        assert gateway.welcome["began"] is False


@under("asyncio", "trio")
async def test_the_newer_connection_is_newer_by_the_clock_of_the_host(
    script: ScriptedSidecar,
) -> None:
    """In whatever order logins are read, and however much time is passed in between."""
    async with gateways(script, "gw", "other", kinds=[], clock=host_clock()) as (
        gateway,
        other,
    ):
        (older, _), (newer, _) = host_clock(), host_clock()
        await other.send(["login", "ada", {"conn": 2, "began": newer}])
        await other.settle()
        await gateway.send(["login", "ada", {"conn": 1, "began": older}])
        await gateway.settle()
        assert script.users == {"ada": ("other", 1, 2)}
        await script.pass_time(5)
        newest, _ = host_clock()
        await gateway.send(["login", "ada", {"conn": 3, "began": newest}])
        await gateway.settle()
        await other.send(["login", "ada", {"conn": 4, "began": newer}])
        await other.settle()
        assert script.users == {"ada": ("gw", 3, 3)}
        await other.send(["login", "ada", {"conn": 5, "began": newest + 60}])
        await other.settle()
        assert script.users == {"ada": ("other", 5, 5)}, "no word on what is to come"


@everywhere
async def test_time_goes_forward_only(script: ScriptedSidecar) -> None:
    for seconds in (-1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="cannot pass"):
            await script.pass_time(seconds)


# --- looking and waiting


@everywhere
async def test_everything_reported_can_be_seen_in_order(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw", "other") as (gateway, other):
        await gateway.send(
            ["login", ["ada", "eve"], {"conn": [1, 2]}],
            ["keepalive", "ada", {"conn": 1}],
            ["message", ["eve", None]],
            ["login", ["bob", ""]],
            ["keepalive", []],
        )
        await script.online("eve")
        await other.send(["login", "ada", {"conn": 7}], ["logout", 9])
        assert await script.next_event(9) == ("logout", 9, None, "other")
        assert script.events == [
            ("login", "ada", 1, "gw"),
            ("login", "eve", 2, "gw"),
            ("keepalive", "ada", 1, "gw"),
            ("message", "eve", None, "gw"),
            ("login", "ada", 7, "other"),
            ("logout", 9, None, "other"),
        ]
        assert [await script.next_event("ada") for _ in range(3)] == [
            Event("login", "ada", 1, "gw"),
            Event("keepalive", "ada", 1, "gw"),
            Event("login", "ada", 7, "other"),
        ]
        assert script.users == {
            "ada": Session("other", 3, 7), "eve": Session("gw", 2, 2)
        }  # fmt: skip
        assert [record["kind"] for record in script.records] == [
            "online", "online", "moved",
        ]  # fmt: skip
        assert [(name, refusal.code) for name, refusal in script.refused] == [
            ("gw", "bad-uid"), ("gw", "bad-uid"),
        ]  # fmt: skip
        assert script.links == {"gw": 1, "other": 1}
        await gateway.send(["ack", 3])
        await script.until(lambda: script.links["gw"] == 0)


@everywhere
async def test_what_is_waited_for_may_still_be_to_come(script: ScriptedSidecar) -> None:
    async with gateways(script, "gw") as gateway, anyio.create_task_group() as tasks:
        tasks.start_soon(script.online, "ada")
        tasks.start_soon(script.next_event, "ada")
        tasks.start_soon(script.until, lambda: script.users and script.links)
        tasks.start_soon(script.until, lambda: script.links and script.users)
        tasks.start_soon(script.linked, "late")
        tasks.start_soon(script.offline, "ada")
        await anyio.sleep(0.01)  # idle: with a clock that jumps, for ever if not
        await gateway.send(["login", "ada"])
        await gateway.settle()
        await gateway.send(["logout", "ada"])
        async with gateways(script, "late"):
            pass


@everywhere
async def test_a_wait_that_fails_tells_what_is_known(script: ScriptedSidecar) -> None:
    async def said(wait: Callable[..., Awaitable[object]], *args: Any) -> str:
        with pytest.raises(AssertionError) as failed:
            await wait(*args, within=0.01)
        return str(failed.value)

    assert await said(script.online, "ada") == (
        "'ada' is not online after 0.01 s; nothing was heard of it; linked: no gateway"
    )
    async with gateways(script, "gw") as gateway:
        await gateway.send(["login", 7], ["login", ""], ["logout", 7])
        await gateway.expect("error")
        text = await said(script.online, 7)
        assert "heard last: Event(event='logout', uid=7, conn=None" in text
        assert "recorded last: {'seq': 2, 'kind': 'offline'" in text
        assert "linked: gw; refused last: gw, bad-uid: '' is no uid" in text
        with script.not_reading(), script.disk_full():
            text = await said(script.linked, "other")
        assert text.startswith("other has no link after 0.01 s; linked: gw; ")
        assert "it does not read; its disk is full" in text
        script.crash()
        text = await said(script.until, lambda: False)
        assert "linked: no gateway; the sidecar is not running" in text
        assert "'eve' did not go offline" in await said(script.offline, "eve")
        assert "no event of 'eve'" in await said(script.next_event, "eve")


# --- faults of links


@everywhere
async def test_a_dropped_link_ends_without_a_word_and_what_it_had_not_acknowledged_comes_again(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["login", ["ada", "eve"]], ["logout", ["ada", "eve"]])
        first = await gateway.records()
        await gateway.send(["ack", first[0]["seq"]])
        script.drop("gw")
        assert script.links == {}
        assert await gateway.receive() is None
    async with gateways(script, "gw") as gateway:
        assert await gateway.records() == first[1:]
        script.drop("gw")
    with pytest.raises(ValueError, match="gw has no link to drop; linked: no gateway"):
        script.drop("gw")


@everywhere
async def test_a_link_is_refused_with_any_code_that_ends_one(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw", "other") as (gateway, other):
        await gateway.send(["ping", 1])
        script.refuse("gw", "overloaded")
        assert await gateway.expect("pong") == [1]
        (error,) = await gateway.expect("error")
        assert error.pop("message")
        assert error == {"code": "overloaded", "fatal": True, "n": 2}
        assert await gateway.receive() is None
        await other.settle()
    for code in ("bad-uid", "no-code"):
        with pytest.raises(ValueError, match=code):
            script.refuse("gw", code)


@everywhere
async def test_the_next_hello_is_refused_where_there_is_no_link(
    script: ScriptedSidecar,
) -> None:
    script.refuse("gw", "not-allowed")
    with pytest.raises(AssertionError, match=r"'error', .*'not-allowed'"):
        async with gateways(script, "gw"):
            pass
    async with gateways(script, "gw") as gateway:
        await gateway.settle()


@everywhere
async def test_a_sidecar_that_does_not_read_takes_nobody_for_silent(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["login", "ada"])
        await script.pass_time(29)
        with script.not_reading():
            await gateway.send(["keepalive", "ada"], ["ping", 1])
            await script.pass_time(600)
            assert script.events == [("login", "ada", None, "gw")]
            async with await anyio.connect_unix(script.path):
                pass  # it is listened to all the same
            await anyio.sleep(0.01)  # idle: with a clock that jumps, for ever if not
        assert await gateway.expect("pong") == [1]
        await script.pass_time(29.9)
        assert set(script.users) == {"ada"}
        await script.pass_time(0.1)
        (record,) = await gateway.records()
        assert (record["silence"], record["last"]) == (30, "keepalive")


@everywhere
async def test_one_who_leaves_its_replies_unread_is_refused(
    script: ScriptedSidecar,
) -> None:
    pings = [["ping", "x" * 1_000]] * (2 * MAX_REPLIES)

    async def send_all() -> None:
        with suppress(anyio.BrokenResourceError):
            await gateway.send(*pings)

    async with gateways(script, "gw") as gateway, anyio.create_task_group() as tasks:
        tasks.start_soon(send_all)
        await script.until(lambda: script.refused)
        ((name, refusal),) = script.refused
        assert (name, refusal.code) == ("gw", "overloaded")
        while await gateway.receive() is not None:
            pass
        tasks.cancel_scope.cancel()


@everywhere
async def test_what_an_older_link_had_sent_counts_even_if_the_newer_one_is_read_first(
    script: ScriptedSidecar,
) -> None:
    async with await anyio.connect_unix(script.path) as stream:
        await script.until(lambda: script._links)
        async with gateways(script, "gw") as older:
            with script.not_reading():
                await stream.send(packed(["hello", {"protocol": 1, "name": "gw"}]))
                await older.send(["login", "ada"])
            assert set(script.users) == {"ada"}
            (error,) = await older.expect("error")
            assert error["code"] == "replaced"
            assert script.links == {"gw": 0}


# --- disk and restarts


@everywhere
async def test_while_the_disk_is_full_nothing_is_told_and_afterwards_everything(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["login", "ada", {"conn": 1}])
        await gateway.settle()
        with script.disk_full():
            await script.pass_time(30)
            await gateway.send(["login", "ada", {"conn": 2}], ["ping", 1], ["list"])
            assert await script.online("ada") == ("gw", 3, 2)
            assert len(script.records) == 1
        assert await gateway.expect("pong") == [1]
        assert await gateway.expect("list") == [[["ada", "gw", 3, 2]], 3]
        # Of the connection before: its gateway has a newer one.
        assert told(await gateway.records()) == [("ada", "offline", "silence", 1)]
        assert [record["kind"] for record in script.records] == [
            "online", "offline", "online",
        ]  # fmt: skip


@everywhere
async def test_a_crash_forgets_what_no_pong_has_covered(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["login", "ada"])
        await gateway.settle()
        with script.disk_full():
            await gateway.send(["login", "eve"], ["logout", "ada"], ["ping", 1])
            await script.online("eve")
            script.crash()
        assert await gateway.receive() is None
    script.start()
    assert script.users == {"ada": ("gw", 1, None)}
    assert len(script.records) == 1
    async with gateways(script, "gw") as gateway:
        assert gateway.welcome["next"] == 2


@everywhere
async def test_a_full_disk_holds_back_a_welcome_and_not_the_reason_of_an_end(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        with script.disk_full():
            newer = await anyio.connect_unix(script.path)
            await newer.send(packed(["hello", {"protocol": 1, "name": "gw"}]))
            await gateway.send(["ping", "never answered"])
            (error,) = await gateway.expect("error")
            assert error["code"] == "replaced"
            await script.linked("gw")
        assert (await Gateway(newer).expect("welcome"))[0]["next"] == 1
        await newer.aclose()


@everywhere
async def test_what_was_trimmed_is_a_gap_for_whom_it_concerned(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "late", "done", "other") as (late, done, other):
        for gateway, uid in ((late, "ada"), (done, "eve")):
            await gateway.send(["login", uid], ["logout", uid])
            (record,) = await gateway.records()
        await done.send(["ack", record["seq"]])
        await script.until(lambda: script.links == {"late": 1, "done": 0, "other": 0})
        script.trim()
        assert script.records == []
        for gateway in (late, done, other):
            assert await gateway.is_told_nothing()
    await script.until(lambda: not script.links)
    async with gateways(script, "late", "done", "other") as (late, done, other):
        (gap,) = await late.records()
        assert (gap["kind"], gap["first"], gap["until"]) == ("gap", 1, 5)
        for gateway in (late, done, other):
            assert await gateway.is_told_nothing()
        await late.send(["ack", gap["seq"]])
        await late.settle()
        script.drop("late")
    async with gateways(script, "late") as late:
        assert await late.is_told_nothing()


@everywhere
async def test_after_a_planned_stop_everyone_goes_on_with_the_time_it_had(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw", timeout=20) as gateway:
        await gateway.send(["login", "ada"])
        await script.pass_time(15)
        await gateway.send(["message", "ada"], ["ping", 1])
        await script.pass_time(4)
        script.stop("a new version")
        assert await gateway.expect("pong") == [1]
        assert await gateway.expect("bye") == [{"reason": "a new version"}]
        assert await gateway.receive() is None
    with pytest.raises(FileNotFoundError):
        await anyio.connect_unix(script.path)
    await script.pass_time(60)
    script.start()
    async with gateways(script, "gw") as gateway:
        await script.pass_time(15.9)
        assert set(script.users) == {"ada"}
        await script.pass_time(0.1)
        (record,) = await gateway.records()
        assert (record["last"], record["silence"]) == ("message", 80)
        assert record["at"] - record["seen"] == 80_000


@everywhere
async def test_after_a_restart_a_gateway_has_a_second_to_come_back(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["login", "ada"])
        await script.pass_time(29.5)
        script.stop()
    script.start()
    await script.pass_time(1)
    assert set(script.users) == {"ada"}
    await script.pass_time(10)
    record = await script.offline("ada")
    assert record["reason"] == "gateway_lost"
    assert 30.51 <= float(str(record["silence"])) <= 30.53


@everywhere
async def test_after_a_crash_everyone_has_a_whole_timeout_and_is_restored(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw", timeout=20) as gateway:
        await gateway.send(["login", ["ada", "eve"]], ["login", "eve", {"timeout": 5}])
        await script.pass_time(4)
        script.crash()
        assert await gateway.receive() is None
    script.start()
    async with gateways(script, "gw") as gateway:
        await script.pass_time(4.9)
        assert set(script.users) == {"ada", "eve"}
        await script.pass_time(0.1)
        assert [r["uid"] for r in await gateway.records()] == ["eve"]
        await script.pass_time(15)
        (record,) = await gateway.records()
        assert record["restored"] is True
        assert "seen" not in record


@everywhere
async def test_under_a_new_log_nobody_is_known(script: ScriptedSidecar) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["login", "ada"], ["logout", "ada"], ["login", "ada"])
        await gateway.records()
        log = gateway.welcome["log"]
        script.crash()
    script.start(new_log=True)
    assert script.users == {}
    assert script.records == []
    async with gateways(script, "gw", after=2, log=log) as gateway:
        assert gateway.welcome["log"] != log
        assert gateway.welcome["next"] == 1
        assert await gateway.is_told_nothing()


@everywhere
async def test_what_runs_is_not_started_and_what_does_not_is_not_stopped(
    script: ScriptedSidecar,
) -> None:
    with pytest.raises(ValueError, match="running"):
        script.start()
    script.stop()
    for end in (script.stop, script.crash):
        with pytest.raises(ValueError, match="not running"):
            end()
    script.start()


# --- timers


def fired(records: list[Record]) -> list[tuple[str, int, int]]:
    """Key, attempt, and the seconds after the start at which it fired."""
    return [(r["key"], r["attempt"], r["at"] - START_WALL_MS) for r in records]


@everywhere
async def test_a_timer_fires_at_its_moment_and_not_before(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await script.pass_time(0.3)
        for _ in range(3):
            await gateway.send(["after", "tea", 0.7, {"payload": "green"}])
            await script.pass_time(0.1)
        assert script.timers == {
            ("gw", "tea"): Timer("pending", "green", None, 0, 0.6, None)
        }
        await script.pass_time(0.599)
        assert await gateway.is_told_nothing()
        await script.pass_time(0.001)
        (record,) = await gateway.records()
        assert fired([record]) == [("tea", 1, 1_200)]
        assert record["due"] == record["at"]
        assert script.timers["gw", "tea"].left == 60


@everywhere
async def test_timers_of_any_moments_fire_and_time_passes_to_its_end(
    script: ScriptedSidecar,
) -> None:
    random = Random(1)
    async with gateways(script, "gw") as gateway:
        for n in range(200):
            await gateway.send(["after", f"k{n}", random.uniform(0.1, 60)])
        for _ in range(4):
            await script.pass_time(15)
        keys = {record["key"] for record in await gateway.records_of(200)}
        assert len(keys) == 200


@everywhere
async def test_timers_and_silences_come_in_the_order_of_their_moments(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["login", 10, {"timeout": 10}], ["after", "20", 20])
        await gateway.send(["login", 30, {"timeout": 30}], ["after", "5000", 5_000])
        await script.pass_time(2 * 86_400)
        seen = [r.get("uid") or r["key"] for r in await gateway.records_of(34)]
        assert [*dict.fromkeys(seen)] == [10, "20", 30, "5000"]


@everywhere
async def test_what_is_not_answered_comes_again_until_the_ladder_ends(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["after", "never", 1])
        await script.pass_time(2 * 86_400)
        attempts = fired(await gateway.records_of(16))
        assert [attempt for _, attempt, _ in attempts] == [*range(1, 17)]
        waits_ms = [
            later - sooner - LADDER.run_ms
            for (_, _, sooner), (_, _, later) in pairwise(attempts)
        ]
        assert waits_ms == [*LADDER.waits_ms]
        timer = await script.timer("gw", "never", "failed")
        assert (timer.attempts, timer.left) == (16, None)
        assert timer.message == "no answer within 60 s"


@everywhere
async def test_a_timer_is_what_its_gateway_answers(script: ScriptedSidecar) -> None:
    async with gateways(script, "gw") as gateway:
        for key in ("done", "again", "failed", "cancelled"):
            await gateway.send(["after", key, 1])
        await script.pass_time(1)
        await gateway.records_of(4)
        await gateway.send(
            ["done", "done", "well"],
            ["fail", "again", "busy"],
            ["fail", "failed", "hopeless", {"final": True}],
            ["cancel", {"key": "cancelled"}],
        )
        assert (await script.timer("gw", "cancelled", "cancelled")).left is None
        assert (await script.timer("gw", "done", "done")).message == "well"
        assert (await script.timer("gw", "failed", "failed")).message == "hopeless"
        assert await script.timer("gw", "again", "pending") == Timer(
            "pending", None, None, 1, 15, "busy"
        )
        await script.pass_time(15)
        assert fired(await gateway.records()) == [("again", 2, 16_000)]


@everywhere
async def test_a_run_that_its_gateway_was_not_told_of_goes_on(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["after", "tea", 1])
        await gateway.settle()
    await script.until(lambda: not script.links)
    await script.pass_time(3_600)
    assert (await script.timer("gw", "tea", "fired")).attempts == 1
    async with gateways(script, "gw") as gateway:
        assert fired(await gateway.records()) == [("tea", 1, 1_000)]


@everywhere
async def test_what_came_due_while_the_sidecar_was_away_fires_once_when_it_is_back(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["after", "soon", 10], ["after", "later", 100])
        await gateway.settle()
        script.stop()
    await script.pass_time(60)
    script.start()
    async with gateways(script, "gw") as gateway:
        (record,) = await gateway.records()
        assert fired([record]) == [("soon", 1, 60_000)]
        assert record["at"] - record["due"] == 50_000
        with script.not_reading():
            await script.pass_time(60)
        assert fired(await gateway.records()) == [("later", 1, 120_000)]


@everywhere
async def test_a_full_disk_lets_timers_fire_and_settles_what_was_asked_afterwards(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["after", "known", 1])
        await gateway.settle()
        with script.disk_full():
            await gateway.send(["after", "asked", 1])
            await script.pass_time(3_600)
            await gateway.send(["cancel", {"key": "known"}])
            assert script.records == []
            assert list(script.timers) == [("gw", "known")]
            assert script.timers["gw", "known"] == ("pending", None, None, 0, 0, None)
        # The one had fired before it was cancelled, the other was not on disk.
        assert fired(await gateway.records_of(2)) == [
            ("known", 1, 1_000), ("asked", 1, 3_600_000),
        ]  # fmt: skip
        assert script.timers["gw", "known"].state == "cancelled"


@everywhere
async def test_a_crash_forgets_timers_that_no_pong_has_covered(
    script: ScriptedSidecar,
) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["after", "kept", 1], ["after", "gone", 1])
        await gateway.settle()
        with script.disk_full():
            await gateway.send(["cancel", {"key": "kept"}], ["after", "lost", 1])
            script.crash()
    script.start()
    assert list(script.timers) == [("gw", "kept"), ("gw", "gone")]
    script.crash()
    script.start(new_log=True)
    assert script.timers == {}


@everywhere
async def test_trimming_lets_go_of_timers_that_ended(script: ScriptedSidecar) -> None:
    async with gateways(script, "gw") as gateway:
        await gateway.send(["after", "ended", 1], ["after", "live", 1])
        await gateway.send(["cancel", {"key": "ended"}])
        script.trim()
        assert list(script.timers) == [("gw", "live")]
        await gateway.send(["after", "ended", 2])
        await script.pass_time(2)
        keys = [key for key, *_ in fired(await gateway.records_of(2))]
        assert keys == ["live", "ended"]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_timer_too_many_is_refused_and_taken_once_there_is_room(loop: str) -> None:
    async def main() -> None:
        async with (
            scripted_sidecar(max_timers=1) as script,
            gateways(script, "gw") as gateway,
        ):
            await gateway.send(["after", "one", 1], ["after", "two", 1])
            (error,) = await gateway.expect("error")
            assert "there are 1 timers already" in error.pop("message")
            assert error == {
                "code": "too-many-timers",
                "fatal": False,
                "n": 3,
                "frame": "after",
                "key": "two",
            }
            await gateway.send(["cancel", {"key": "one"}])
            await gateway.settle()
            await gateway.send(["after", "two", 1])
            await script.timer("gw", "two", "pending")

    anyio.run(main, **LOOPS[loop]())


@everywhere
async def test_a_wait_for_a_timer_tells_what_is_known_of_it(
    script: ScriptedSidecar,
) -> None:
    with pytest.raises(AssertionError, match=r"'tea' of gw is not done .*not known"):
        await script.timer("gw", "tea", "done", within=0.01)
    async with gateways(script, "gw") as gateway:
        await gateway.send(["after", "tea", 10])
        await script.timer("gw", "tea", "pending")
        with pytest.raises(AssertionError, match=r"it is Timer\(state='pending'"):
            await script.timer("gw", "tea", "done", within=0.01)
    for state in ("replaced", "ready"):
        with pytest.raises(ValueError, match=f"never '{state}'"):
            await script.timer("gw", "tea", state)


# --- the sidecar as a whole


@pytest.mark.parametrize("loop", LOOPS)
def test_its_settings_are_told_and_hold(loop: str) -> None:
    async def main() -> None:
        async with (
            scripted_sidecar(timeout=5, flush=0.2, window=2) as script,
            gateways(script, "gw", kinds=["online"]) as gateway,
        ):
            assert gateway.welcome["timeout"] == 5
            assert gateway.welcome["flush"] == 0.2
            assert gateway.welcome["window"] == 2
            await gateway.send(["login", ["a", "b", "c", "d", "e"]])
            assert [r["seq"] for r in await gateway.records()] == [1, 2]
            assert await gateway.is_told_nothing()
            await gateway.send(["ack", 1])
            assert [r["seq"] for r in await gateway.records()] == [3]
            script.trim()
            assert await gateway.is_told_nothing()
            await gateway.send(["ack", 2])
            (gap,) = await gateway.records()
            assert (gap["kind"], gap["first"], gap["until"]) == ("gap", 4, 6)
            await script.pass_time(5)
            assert not script.users

    anyio.run(main, **LOOPS[loop]())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_failure_comes_out_as_it_is_and_nothing_is_left_behind(loop: str) -> None:
    folders: list[Path] = []

    async def main() -> None:
        async with scripted_sidecar() as script, gateways(script, "gw"):
            folders.append(script.path.parent)
            assert folders[0].stat().st_mode & 0o077 == 0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        anyio.run(main, **LOOPS[loop]())
    assert not folders[0].exists()


@pytest.mark.parametrize("loop", LOOPS)
def test_it_can_be_cancelled(loop: str) -> None:
    async def main() -> None:
        with anyio.move_on_after(0.01) as scope:
            async with scripted_sidecar() as script:
                await script.online("nobody")
        assert scope.cancelled_caught

    anyio.run(main, **LOOPS[loop]())


def test_it_brings_neither_a_loop_nor_a_test_runner_nor_the_sidecars_service() -> None:
    unwanted = "asyncio trio pytest hypercorn sqlite3 structlog liveness.client"
    program = f"import sys, liveness.testing; print({{*'{unwanted}'.split()}} & {{*sys.modules}})"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "set()\n"


# --- with the client library --------------------------------------------------------------


@everywhere
async def test_a_gateway_is_told_whose_connection_to_close(
    script: ScriptedSidecar,
) -> None:
    async with (
        liveness.connect(script.path, name="gw-1") as sidecar,
        liveness.connect(script.path, name="gw-2") as other,
    ):
        sidecar.login("ada", conn=1)
        sidecar.login("eve", conn=2)
        await sidecar.flush()
        assert script.users == {"ada": ("gw-1", 1, 1), "eve": ("gw-1", 2, 2)}
        other.login("eve", conn=9)
        await script.until(lambda: script.users["eve"].gateway == "gw-2")
        other.keepalive("eve", conn=9)
        assert (await script.next_event("eve")).gateway == "gw-1"
        await script.pass_time(30)
        ended = []
        with anyio.fail_after(SOON_S):
            async for end in sidecar.ended():
                ended.append((end.uid, end.conn, end.reason))
                if len(ended) == 2:
                    break
        assert ended == [("eve", 2, "moved"), ("ada", 1, "silence")]


@without_waiting
async def test_a_gateway_goes_on_after_whatever_ends_its_link(
    script: ScriptedSidecar,
) -> None:
    async with liveness.connect(script.path, name="gw") as sidecar:
        sidecar.login("ada", conn=1)
        await sidecar.flush()
        script.drop("gw")
        await script.linked("gw")
        script.refuse("gw", "overloaded")
        await script.linked("gw")
        script.stop()
        script.start()
        await script.linked("gw")
        with script.disk_full():
            sidecar.login("eve", conn=2)
            await script.online("eve")
            script.crash()
        script.start()
        assert set(script.users) == {"ada"}
        assert await script.online("eve") == ("gw", 2, 2), "what no pong has covered"
        script.crash()
        script.start(new_log=True)
        await script.online("ada")
        await script.online("eve")
        assert {uid: it.conn for uid, it in script.users.items()} == {
            "ada": 1,
            "eve": 2,
        }


@everywhere
async def test_a_gateway_whose_name_is_taken_stops(script: ScriptedSidecar) -> None:
    with pytest.raises(liveness.Replaced):  # noqa: PT012 - it comes from within
        async with liveness.connect(script.path, name="gw"):
            await script.linked("gw")
            script.refuse("gw", "replaced")
            await anyio.sleep_forever()


def test_a_gateway_with_threads_is_tested_from_its_own(portal: BlockingPortal) -> None:
    with (
        portal.wrap_async_context_manager(scripted_sidecar()) as script,
        liveness.connect_sync(script.path, name="gw") as sidecar,
    ):
        sidecar.login("ada", conn=1)
        sidecar.flush()
        portal.call(script.pass_time, 30)
        portal.call(script.offline, "ada")
        end = next(sidecar.ended())
        assert (end.uid, end.conn, end.reason) == ("ada", 1, "silence")
