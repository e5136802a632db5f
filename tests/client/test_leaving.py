"""How `connect` begins and ends: refused at once, left by an error, cancelled, on time."""

import socket
from contextlib import closing
from pathlib import Path

import anyio
import pytest
import trio
from trio.testing import MockClock

import liveness
from liveness.client.task_runner import LAST_S
from liveness.testing import ScriptedSidecar, scripted_sidecar
from tests.helpers.log_peer import SOON_S


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(
    "error",
    [
        None,
        ValueError("mine"),
        ExceptionGroup("of one", [ValueError(1)]),
        BaseExceptionGroup("base", [KeyboardInterrupt()]),
    ],
    ids=["no error", "one", "group of one", "base group"],
)
def test_an_error_inside_comes_out_and_the_last_reports_are_written(
    backend: str, error: BaseException | None
) -> None:
    async def main() -> None:
        raised: BaseException | None = None
        async with scripted_sidecar(within=SOON_S) as script:
            try:
                async with liveness.connect(script.path, name="gw") as gateway:
                    gateway.login("ada", conn=1)
                    await gateway.flush()
                    gateway.logout("ada", conn=1)
                    gateway.login("eve", conn=2)
                    if error is not None:
                        raise error
            except (ValueError, BaseExceptionGroup) as caught:
                raised = caught
            # trio makes a group anew, whatever it passes through
            assert raised is error or isinstance(raised, BaseExceptionGroup)
            assert getattr(raised, "exceptions", ()) == getattr(error, "exceptions", ())
            await script.online("eve")
            assert set(script.users) == {"eve"}

    anyio.run(main, backend=backend)


def test_a_task_of_asyncio_can_be_cancelled_in_its_own_way() -> None:
    import asyncio  # noqa: TID251 - the loop that is tested

    async def serve(script: ScriptedSidecar, is_linked: asyncio.Event) -> None:
        async with liveness.connect(script.path, name="gw") as gateway:
            gateway.login("ada", conn=1)
            is_linked.set()
            async for _ in gateway.ended():
                pass

    async def main() -> None:
        async with scripted_sidecar(within=SOON_S) as script:
            is_linked = asyncio.Event()
            task = asyncio.create_task(serve(script, is_linked))
            await is_linked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await script.online("ada")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "name"),
    [("/" + "x" * 107, "gw"), ("/tmp/\0", "gw"), ("", "gw"), ("/tmp/x", "")],
    ids=["long path", "nul", "no path", "no name"],
)
async def test_a_path_or_name_that_cannot_be_is_refused_at_once(
    path: str, name: str
) -> None:
    with pytest.raises(liveness.ReportError):
        async with liveness.connect(path, name=name):
            raise AssertionError


async def test_a_link_is_tried_again_within_a_second_and_leaving_takes_two_at_most(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with liveness.connect(tmp_path / "s", name="gw") as gateway:
        await trio.sleep(5)
        with closing(trio.socket.socket(socket.AF_UNIX)) as listener:
            await listener.bind(str(tmp_path / "s"))
            listener.listen()
            began = trio.current_time()
            connection, _ = await listener.accept()
            assert trio.current_time() - began < 1
        connection.close()
        gateway.login("a", conn=1)
        left_at = trio.current_time()
    assert trio.current_time() - left_at <= 2 * LAST_S
