"""Which records are superseded: a later record has made them untrue."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from liveness.config.outlet_settings import OutletSettings
from liveness.config.settings import PresenceSettings
from liveness.core.records import Record
from liveness.service.outlets.supervisor import is_superseded
from tests.service.rig import Caller, Rig, running


@pytest.fixture
async def rig(tmp_path: Path, jumping: MockClock) -> AsyncIterator[Rig]:
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


async def test_what_a_later_record_takes_back_is_superseded(rig: Rig) -> None:
    gateway = await rig.gateway_of("ada")
    assert flags(rig) == [False]
    await done(rig, gateway, ["logout", "ada"])
    assert flags(rig) == [True, False]
    await done(rig, gateway, ["login", "ada"])
    assert flags(rig) == [False, True, False]


async def test_what_the_reader_does_not_get_supersedes_nothing(rig: Rig) -> None:
    first = await rig.gateway_of(["ada", "bob"], "g1")
    second = await rig.gateway("g2")
    await done(rig, second, ["login", "ada"])
    await done(rig, first, ["logout", "bob"])
    await done(rig, second, ["login", "bob"])
    # Online, online, moved, offline, online.
    assert flags(rig) == [True, True, False, True, False]
    assert flags(rig, kinds="online,offline") == [False, False, False, True, False]


async def test_with_users_only_any_device_keeps_its_user_online(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada/a", "ada/b"])
    await done(rig, gateway, ["logout", "ada/a"])
    assert flags(rig)[0]
    assert not flags(rig, users_only=True)[0]
    await done(rig, gateway, ["logout", "ada/b"])
    assert flags(rig, users_only=True) == [True, True, False, False]
    await done(rig, gateway, ["login", "ada/a"])
    assert flags(rig, users_only=True)[3]
