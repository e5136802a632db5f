"""Settings that are read anew: wrong ones, and where what holds them does not answer."""

import os
import signal
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from liveness.config import sources
from liveness.config.settings import Config, HttpSettings
from liveness.service.app import wait_for_stop
from liveness.service.http.bearer import read_token
from liveness.service.http.event_stream import NOT_ALLOWED
from liveness.service.reload import READ_S, Reloader
from tests.service.http.asgi import Event, ask, reading
from tests.service.rig import Rig, running

READ = "settings read anew"
WRONG: Final = (
    "the settings are wrong, and nothing was changed; correct them, and reload again"
)
HOME: Final = {"XDG_RUNTIME_DIR": "/run/user/7", "HOME": "/home/7"}
# Of the real time: by then a test has failed, and no sooner on a busy machine.
HANG_S = 20.0


class Mount:
    """Has the settings, and gives them once it answers."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.answers = threading.Event()
        self.begun = threading.Semaphore(0)  # once for each reading

    def read(self) -> Config:
        self.begun.release()
        assert self.answers.wait(HANG_S), "nobody went on while it was read"
        return self._config


def reloader(rig: Rig, mount: Mount) -> Reloader:
    return Reloader(rig.sidecar.config, mount.read, rig.sidecar, group=os.getegid())


async def test_the_sidecar_goes_on_while_settings_are_read(rig: Rig) -> None:
    async with trio.open_nursery() as nursery:
        mount = Mount(rig.sidecar.config)
        with structlog.testing.capture_logs() as logs:
            nursery.start_soon(reloader(rig, mount).reload)
            await wait_all_tasks_blocked()
            mount.answers.set()
            await rig.until(lambda: logs)
        assert [line["event"] for line in logs] == [READ]


async def test_a_reading_that_hangs_takes_one_thread(
    rig: Rig, jumping: MockClock
) -> None:
    mount, access = Mount(rig.sidecar.config), rig.registry.access
    settings = reloader(rig, mount)
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(settings.reload)
            await wait_all_tasks_blocked()
            assert mount.begun.acquire(timeout=HANG_S)
            jumping.jump(READ_S)
        await settings.reload()
    hung, refused = logs
    assert hung["limit_s"] == READ_S
    assert "an earlier reload still hangs" in refused["event"]
    assert not mount.begun.acquire(blocking=False)
    mount.answers.set()
    async with settings._limiter:
        pass  # it has ended
    with structlog.testing.capture_logs() as logs:
        await settings.reload()
    assert [line["event"] for line in logs] == [READ]
    assert rig.registry.access == access


@pytest.mark.parametrize("target", ["/v1/feed?kind=offline", "/v1/live"])
async def test_a_new_token_ends_only_streams_of_the_old_one(
    tmp_path: Path, jumping: MockClock, target: str
) -> None:
    path = tmp_path / "token"
    path.write_text("the-token-until-now")
    path.chmod(0o600)
    http = HttpSettings(token_file=path)
    async with running(tmp_path, http=http) as rig:
        sidecar = rig.sidecar
        sidecar.http.token = read_token(path)
        assert sidecar.http.token
        mount = Mount(sidecar.config)
        mount.answers.set()
        settings = reloader(rig, mount)
        door = sidecar.http.app("http", lambda _: None)
        headers = {"authorization": "Bearer the-token-until-now"}
        async with (
            reading(door, target, headers=headers) as reader,
            reading(sidecar.http.app("admin", lambda _: None), target) as admin,
        ):
            await reader.events(1)
            await admin.events(1)
            await settings.reload()
            await wait_all_tasks_blocked()
            assert sidecar.streams.open.total() == 2  # the token is the same
            path.write_text("the-token-from-now-on")
            await settings.reload()
            with trio.fail_after(0.1):  # not only when there is more to tell
                *_, end = await reader.rest()
            assert end == Event("end", {"why": NOT_ALLOWED}, None)
            assert (await ask(door, "GET", target, headers=headers)).status == 401
            gateway = await rig.gateway("gw")
            await gateway.send(["login", "ada"], ["logout", "ada"])
            while "ada" not in str(await admin.event()):
                pass


async def test_a_stop_waits_for_no_reload() -> None:
    begun, goes_on = 0, trio.Event()

    async def reload() -> None:
        nonlocal begun
        begun += 1
        await goes_on.wait()
        if begun == 2:
            await trio.sleep_forever()

    async def signals() -> AsyncGenerator[int, None]:
        for _ in range(100):
            yield signal.SIGHUP
            await wait_all_tasks_blocked()
        assert begun == 1
        goes_on.set()
        await wait_all_tasks_blocked()
        assert begun == 2
        yield signal.SIGTERM

    async with aclosing(signals()) as coming:
        with trio.fail_after(HANG_S):
            number = await wait_for_stop(coming, {signal.SIGTERM}, reload)
    assert number == signal.SIGTERM
    assert begun == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("slots = 1", "slots is 1 ("),
        ('[access]\nadmin = "no-such-user"', "access.admin names the user"),
        (" \n", "it is empty, "),
    ],
    ids=["setting", "user", "empty"],
)
async def test_wrong_settings_are_told_and_change_nothing(
    rig: Rig, tmp_path: Path, said: list[Any], text: str, told: str
) -> None:
    file = tmp_path / "liveness.toml"
    read = partial(sources.load, file=file, environ=HOME, unix_user=7, is_reload=True)
    reloader = Reloader(rig.sidecar.config, read, rig.sidecar, group=os.getegid())
    file.write_text('[access]\nwatchers = "own"')
    await reloader.reload()
    access = rig.registry.access
    file.write_text(text)
    await reloader.reload()
    assert (said[-1]["event"], said[-1]["log_level"]) == (WRONG, "error")
    assert told in said[-1]["error"]
    assert rig.registry.access is access
