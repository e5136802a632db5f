"""A gateway's state and reports while the sidecar refuses it, or another has its name.

Against the scripted sidecar, which runs the real server, on trio's virtual time.
"""

import itertools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest
import trio
from anyio.from_thread import start_blocking_portal
from trio.testing import MockClock

import liveness
from liveness.client.protocol import Client
from liveness.testing import ScriptedSidecar, scripted_sidecar
from tests.helpers.peer import SOON_S

States = list[liveness.LinkState]

# Longer than the longest pause after a refusal.
PATIENCE_S = 40.0


@pytest.fixture
async def script() -> AsyncIterator[ScriptedSidecar]:
    async with scripted_sidecar(within=PATIENCE_S) as script:
        yield script


@pytest.fixture
def states() -> States:
    return []


async def reached(sidecar: liveness.Sidecar, state: str) -> None:
    """Wait until the link has this state."""
    with anyio.fail_after(PATIENCE_S):
        while sidecar.state != state:  # noqa: ASYNC110 - virtual: this is how time passes
            await anyio.sleep(0.01)


async def replaced(sidecar: liveness.Sidecar, script: ScriptedSidecar) -> None:
    """Have another process take the name, for a moment."""
    async with liveness.connect(script.path, name=sidecar.name) as other:
        await other.connected()
        await reached(sidecar, "replaced")


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.message for line in caplog.records if line.levelno == logging.ERROR]


async def test_a_refused_gateway_goes_on_and_is_taken_up_when_the_sidecar_accepts(
    script: ScriptedSidecar,
    autojump_clock: MockClock,
    states: States,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with liveness.connect(
        script.path, name="gw", on_state=states.append
    ) as sidecar:
        await sidecar.connected()
        sidecar.login("ada", conn=1)
        await sidecar.flush()
        tries = list[float]()
        script.refuse("gw", "not-allowed")
        for n in range(10):
            await script.until(lambda n=n: len(script.refused) > n)  # type: ignore[misc]
            tries.append(trio.current_time())
            if n < 9:
                script.refuse("gw", "not-allowed")
        assert sidecar.state == "refused"
        sidecar.login("eve", conn=2)
        sidecar.keepalive("ada", conn=1)
        await sidecar.flush()
        assert sidecar.state == "linked"
        assert states == ["linked", "refused", "linked"]
        assert {uid: user.conn for uid, user in script.users.items()} == {
            "ada": 1,
            "eve": 2,
        }
        assert sidecar.stats().refusals == len(script.refused) >= 10
        assert sidecar.stats().replacements == 0
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    for n, pause in enumerate(pauses):
        longest = min(2.0**n, 30.0)
        assert longest / 2 <= pause <= longest + 0.1, (n, pause)
    (line,) = errors(caplog)
    assert "not-allowed" in line
    assert "[access]" in line
    assert caplog.messages[-1] == f"gw: linked to the sidecar at {script.path}"


async def test_pauses_begin_anew_after_a_link_that_has_lasted(
    script: ScriptedSidecar, autojump_clock: MockClock
) -> None:
    async def refused(times: int) -> float:
        """Refuse the gateway so often; return how long it took to be linked again."""
        began = trio.current_time()
        for n in range(times):
            script.refuse("gw", "not-allowed")
            await script.until(lambda n=n: len(script.refused) > seen + n)  # type: ignore[misc]
        await reached(sidecar, "refused")
        await reached(sidecar, "linked")
        return trio.current_time() - began

    async with liveness.connect(script.path, name="gw") as sidecar:
        await sidecar.connected()
        seen = 0
        assert await refused(4) > 7  # 0.5 + 1 + 2 + 4 at least
        seen = len(script.refused)
        assert await refused(1) > 8  # the link has just begun
        await trio.sleep(11)
        seen = len(script.refused)
        assert await refused(1) < 1.2


async def test_a_gateway_refused_for_load_is_away_and_not_refused(
    script: ScriptedSidecar, autojump_clock: MockClock, states: States
) -> None:
    async with liveness.connect(
        script.path, name="gw", on_state=states.append
    ) as sidecar:
        await sidecar.connected()
        script.refuse("gw", "overloaded")
        await reached(sidecar, "away")
        await sidecar.connected()
        script.stop()
        await reached(sidecar, "away")
        script.start()
        await sidecar.connected()
        assert states == ["linked", "away", "linked", "away", "linked"]
        assert sidecar.stats().refusals == 1


async def test_a_gateway_whose_name_is_taken_serves_on_and_takes_it_over_again(
    script: ScriptedSidecar,
    autojump_clock: MockClock,
    states: States,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        liveness.connect(script.path, name="gw", on_state=states.append) as sidecar,
        anyio.create_task_group() as tasks,
    ):
        ended = sidecar.ended()
        tasks.start_soon(anext, ended)
        for conn, uid in enumerate(("ada", "eve", "bob")):
            sidecar.login(uid, conn=conn)
        await sidecar.flush()
        async with liveness.connect(script.path, name="gw") as other:
            # It says `fresh`: for the sidecar, all users above are lost.
            await anyio.sleep(1)
            await script.pass_time(1)
            other.login("eve", conn=11)
            await other.flush()
            assert set(script.users) == {"eve"}
            await reached(sidecar, "replaced")
            await anyio.sleep(45)  # it does not fight
            assert sidecar.state == "replaced"
            assert other.stats().links == 1
            sidecar.logout("bob", conn=2)
            sidecar.login("may", conn=3)
            sidecar.keepalive("ada", conn=0)
            await sidecar.resume()
            assert sidecar.state == "linked"
            await reached(other, "replaced")
            await sidecar.flush()
        users = {uid: user.conn for uid, user in script.users.items()}
        assert users == {"ada": 0, "eve": 11, "may": 3}
        assert sidecar.stats().open == 3, "nobody is cut off"
        assert states == ["linked", "replaced", "away", "linked"]
        assert sidecar.stats()[-2:] == (0, 1)
        tasks.cancel_scope.cancel()
    assert len(errors(caplog)) == 2, "each of them was replaced once"
    assert "resume()" in errors(caplog)[0]
    assert "said hello as 'gw'" in errors(caplog)[0]
    assert f"users of this process, {os.getpid()}, are not" in errors(caplog)[0]


async def test_resume_fails_if_another_is_faster(
    script: ScriptedSidecar, autojump_clock: MockClock
) -> None:
    async with liveness.connect(script.path, name="gw") as sidecar:
        await sidecar.connected()
        await replaced(sidecar, script)
        script.refuse("gw", "replaced")  # before its hello is welcomed
        with pytest.raises(liveness.Replaced):
            await sidecar.resume()
        assert sidecar.state == "replaced"
        assert sidecar.stats().replacements == 2


async def test_resume_ends_when_connect_is_left(
    script: ScriptedSidecar, autojump_clock: MockClock
) -> None:
    async with (
        anyio.create_task_group() as tasks,
        liveness.connect(script.path, name="gw") as sidecar,
    ):
        await sidecar.connected()
        await replaced(sidecar, script)
        script.stop()

        async def resume() -> None:
            with pytest.raises(anyio.ClosedResourceError):
                await sidecar.resume()

        tasks.start_soon(resume)
        await reached(sidecar, "away")


async def test_what_on_state_raises_is_logged_and_ends_nothing(
    script: ScriptedSidecar, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(state: liveness.LinkState) -> None:
        raise ValueError(f"my own fault at {state}")

    async with liveness.connect(script.path, name="gw", on_state=fail) as sidecar:
        await sidecar.connected()
        await sidecar.flush()
    (line,) = errors(caplog)
    assert line == "gw: on_state failed at linked"
    assert "my own fault at linked" in caplog.text


async def _async(_state: liveness.LinkState) -> None: ...


@pytest.mark.parametrize("on_state", [_async, "linked"])
async def test_on_state_must_be_a_plain_function(
    script: ScriptedSidecar,
    autojump_clock: MockClock,
    on_state: Callable[[liveness.LinkState], object],
) -> None:
    with pytest.raises(liveness.ReportError, match=r"on_state is .* plain function"):
        async with liveness.connect(script.path, name="gw", on_state=on_state):
            pass


async def test_a_fault_of_the_library_does_not_end_its_gateway(
    script: ScriptedSidecar,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with liveness.connect(script.path, name="gw") as sidecar:
        with monkeypatch.context() as patched:
            patched.setattr(Client, "hello", lambda *_: 1 / 0)
            await script.until(lambda: "ZeroDivisionError" in caplog.text)
        sidecar.login("ada", conn=1)
        await script.online("ada")
    assert "a fault of this library" in caplog.text


FORKING = """
import os, sys
import liveness

def tries(sidecar, keepalive, watch):
    for use in (lambda: sidecar.keepalive("ada", conn=1), lambda: sidecar.state,
                lambda: next(sidecar.ended()), lambda: keepalive("ada", conn=1),
                lambda: watch.position):
        try:
            use()
        except liveness.ReportError as error:
            print(error, flush=True)

watch = liveness.watch(sys.argv[1])
with liveness.connect_sync(sys.argv[1], name="gw") as sidecar:
    sidecar.login("ada", conn=1)
    keepalive = sidecar.keepalive
    if not (child := os.fork()):
        tries(sidecar, keepalive, watch)
    else:
        assert os.waitpid(child, 0)[1] == 0
        keepalive("ada", conn=1)
if child:
    print("parent", os.getpid())
"""


def test_a_gateway_of_threads_is_replaced_serves_on_and_resumes() -> None:
    states: States = []
    threads = set[str]()

    def note(state: liveness.LinkState) -> None:
        states.append(state)
        threads.add(threading.current_thread().name)

    with (
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(scripted_sidecar(within=SOON_S)) as script,
        liveness.connect_sync(script.path, name="gw", on_state=note) as sidecar,
    ):
        sidecar.login("ada", conn=1)
        sidecar.flush()
        with liveness.connect_sync(script.path, name="gw") as other:
            other.connected()
            portal.call(script.until, lambda: sidecar.state == "replaced")
            sidecar.keepalive("ada", conn=1)
            sidecar.message("ada", conn=1)
            sidecar.login("eve", conn=2)
            sidecar.resume()
            sidecar.flush()
        assert sidecar.state == "linked"
        assert set(portal.call(lambda: script.users)) == {"ada", "eve"}
        assert sidecar.stats()[-2:] == (0, 1)
    assert states == ["linked", "replaced", "away", "linked"]
    assert threads == {"liveness"}


def test_a_sidecar_from_before_a_fork_is_refused_in_the_child(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, tmp_path / "none"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=20,
        check=True,
    )
    *lines, last = done.stdout.splitlines()
    word, parent = last.split()
    assert word == "parent"
    assert len(lines) == 5
    for line in lines:
        assert f"made before a fork, in process {parent}" in line
        assert 'name=f"gw-1:{worker}"' in line
