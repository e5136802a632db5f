"""Outlets do not affect each other; and which records a later one has made untrue."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from liveness.config.outlet_settings import (
    KafkaSettings,
    OutletSettings,
    WebhookSettings,
)
from liveness.config.settings import (
    Config,
    PresenceSettings,
    SocketSettings,
    StateSettings,
)
from liveness.core.records import Record
from liveness.errors import StartError
from liveness.metrics.now import OutletNow
from liveness.service.outlets.common.outlet import Outlet
from liveness.service.outlets.supervisor import (
    RESTART_S,
    Outlets,
    is_superseded,
    outlets_of,
)
from tests.service.outlets.outlet_rig import PLAIN, OutletRig
from tests.service.rig import Caller, Rig, running


class Scripted(Outlet):
    """An outlet with scripted runs: each raises an error, or with None runs for ever."""

    def __init__(self, name: str, rig: OutletRig, *ends: Exception | None) -> None:
        super().__init__(name, PLAIN, rig.access)
        self.began = list[float]()
        self._ends = iter(ends)

    async def run(self) -> None:
        self.now_is("following")
        self.began.append(trio.current_time())
        end = next(self._ends)
        if end is not None:
            raise end
        await trio.sleep_forever()


async def run_for(
    seconds: float, outlets: Outlets, look: Callable[[], object] = lambda: None
) -> object:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outlets.run)
        await trio.sleep(seconds)
        seen = look()
        nursery.cancel_scope.cancel()
    return seen


async def test_an_outlet_that_failed_says_why_and_others_go_on(rig: OutletRig) -> None:
    bad = Scripted("webhooks.bad", rig, StartError("no file; make one"))
    good = Scripted("webhooks.good", rig, None)
    outlets = Outlets([bad, good], rig.store, retention_s=60)
    seen = await run_for(
        1, outlets, lambda: [(row.state, row.detail) for row in outlets.now()]
    )
    assert seen == [("stopped", "no file; make one"), ("following", "")]


async def test_an_error_of_its_own_is_shown_and_tried_again(rig: OutletRig) -> None:
    odd = ExceptionGroup("of a nursery", [ValueError("odd")])
    bad = Scripted("webhooks.bad", rig, odd, None)
    outlets = Outlets([bad], rig.store, retention_s=60)
    why = await run_for(1, outlets, lambda: outlets.now()[0].detail)
    assert why == "ValueError: odd; please report this"
    bad = Scripted("webhooks.bad", rig, ValueError("odd"), None)
    outlets = Outlets([bad], rig.store, retention_s=60)
    seen = await run_for(RESTART_S + 1, outlets, lambda: outlets.now()[0])
    assert isinstance(seen, OutletNow)
    assert (seen.state, seen.since, len(bad.began)) == (
        "following",
        round(bad.began[1] * 1000),
        2,
    )


async def test_a_damaged_file_stops_outlets_and_nothing_else(rig: OutletRig) -> None:
    rig.store.path.write_bytes(b"no database" * 1_000)
    outlet = Scripted("webhooks.any", rig, None)
    outlets = Outlets([outlet], rig.store, retention_s=60)
    why = await run_for(1, outlets, lambda: outlets.now()[0].detail)
    assert "outlets.db cannot be read" in str(why)
    assert "left as it is: restore a backup, or move it" in str(why)
    assert outlet.began == []


async def test_each_section_of_the_settings_has_its_outlet(
    rig: OutletRig, tmp_path: Path
) -> None:
    presence: Any = None  # it is asked about no record
    access = rig.access
    build = partial(
        outlets_of,
        presence=presence,
        log_writer=access.log_writer,
        feed=access.feed,
        clock=access.clock,
        turnstile=access.turnstile,
    )
    config = partial(
        Config,
        socket=SocketSettings(path=tmp_path / "g.sock"),
        state=StateSettings(dir=tmp_path),
    )
    assert build(config()) is None
    url, kafka = "https://example.com/", KafkaSettings(brokers="h:1", topic="t")
    webhook = WebhookSettings(url=url, secret_file=Path("secret"))
    outlets = build(config(webhooks={"mail": webhook}, kafka={"out": kafka}))
    assert outlets is not None
    assert [outlet.name for outlet in outlets.webhooks] == ["webhooks.mail"]
    names = [outlet.name for outlet in outlets.with_cursors]
    assert names == ["webhooks.mail", "kafka.out"]


# --- records that a later one has made untrue -------------------------------------------


@pytest.fixture
async def sidecar(tmp_path: Path, jumping: MockClock) -> AsyncIterator[Rig]:
    settings = PresenceSettings(device_separator="/")
    async with running(tmp_path, presence=settings) as rig:
        yield rig


async def done(rig: Rig, gateway: Caller, *events: list[Any]) -> None:
    """Send events, each of which makes a record of each uid, and wait for the log."""
    until = rig.log_writer.durable_seq + sum(
        len(uids) if isinstance(uids, list) else 1 for _, uids in events
    )
    await gateway.send(*events)
    await rig.until(lambda: rig.log_writer.durable_seq == until)


def flags(rig: Rig, **settings: Any) -> list[bool]:
    """Of each record of the log, for a reader with these settings."""
    chosen = OutletSettings(**settings)
    return [
        is_superseded(rig.presence, rig.log_writer, record, chosen)
        for record in rig.log()
        if isinstance(record, Record)
    ]


async def test_what_a_later_record_takes_back_is_superseded(sidecar: Rig) -> None:
    gateway = await sidecar.gateway_of("ada")
    assert flags(sidecar) == [False]
    await done(sidecar, gateway, ["logout", "ada"])
    assert flags(sidecar) == [True, False]
    await done(sidecar, gateway, ["login", "ada"])
    assert flags(sidecar) == [False, True, False]


async def test_what_the_reader_does_not_get_supersedes_nothing(sidecar: Rig) -> None:
    first = await sidecar.gateway_of(["ada", "bob"], "g1")
    second = await sidecar.gateway("g2")
    await done(sidecar, second, ["login", "ada"])
    await done(sidecar, first, ["logout", "bob"])
    await done(sidecar, second, ["login", "bob"])
    # Online, online, moved, offline, online.
    assert flags(sidecar) == [True, True, False, True, False]
    assert flags(sidecar, kinds="online,offline") == [False, False, False, True, False]


async def test_with_users_only_any_device_keeps_its_user_online(sidecar: Rig) -> None:
    gateway = await sidecar.gateway_of(["ada/a", "ada/b"])
    await done(sidecar, gateway, ["logout", "ada/a"])
    assert flags(sidecar)[0]
    assert not flags(sidecar, users_only=True)[0]
    await done(sidecar, gateway, ["logout", "ada/b"])
    assert flags(sidecar, users_only=True) == [True, True, False, False]
    await done(sidecar, gateway, ["login", "ada/a"])
    assert flags(sidecar, users_only=True)[3]
