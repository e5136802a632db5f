"""Peers that are no gateways, or speak as none does; time is virtual."""

from pathlib import Path
from typing import Final

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from liveness.core.wire.framing import encode
from tests.helpers import disk
from tests.service.rig import LONG_S, running

HELLO: Final = encode(["hello", {"protocol": 1, "name": "slow"}])
FRAME: Final = encode(["login", "cut off", {"conn": 5}])
OTHERS: Final = {
    "POST": b"POST /v1 HTTP/1.1\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    "JSON": b'["hello", {"protocol": 1, "name": "json"}]\n',
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
async def test_a_peer_of_another_protocol_is_refused_with_which_one_is_spoken(
    tmp_path: Path, jumping: MockClock, data: bytes
) -> None:
    async with running(tmp_path) as rig:
        gateway, stranger = await rig.gateway("good"), await rig.connect()
        await stranger.send_bytes(data)
        (refusal,) = await stranger.expect("error")
        assert (refusal["code"], refusal["fatal"]) == ("bad-frame", True)
        expected = "this socket speaks msgpack, not HTTP, TLS or text"
        assert expected in refusal["message"]
        assert await stranger.receive() is None
        await gateway.sync()


async def test_a_hello_that_trickles_is_cut_at_its_time(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, hello_s=3) as rig:
        began, slow = trio.current_time(), await rig.connect()
        for byte in HELLO[:-1]:
            await slow.send_bytes(bytes([byte]))
            with trio.move_on_after(3 / 20):
                (error,) = await slow.expect("error")
                break
        else:
            raise AssertionError("it was never cut")
        assert error["code"] == "too-slow"
        assert trio.current_time() - began == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("size", [1, len(FRAME) - 1])
async def test_a_frame_that_is_cut_off_is_not_applied_and_is_no_offence(
    tmp_path: Path, jumping: MockClock, size: int
) -> None:
    async with running(tmp_path) as rig:
        with capture_logs() as lines:
            link = await rig.gateway("gw")
            await link.send_bytes(FRAME[:size])
            link.close()
            await rig.until(lambda: not rig.registry.named, LONG_S)
        (down,) = [line for line in lines if line["event"] == "link down"]
        assert down["why"] == "closed by the other side"
        assert not rig.counts.refused.total()
        assert len(rig.presence) == 0


async def test_a_gateway_cannot_log_out_list_acknowledge_or_cancel_for_another(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        victim = await rig.gateway("victim", kinds=["online"])
        thief = await rig.gateway("thief")
        await victim.send(["login", ["u"], {"conn": [5]}], ["after", "k", 600])
        assert (await victim.records(1))[0]["seq"] == 1
        await thief.apply(
            ["logout", ["u"]],
            ["keepalive", ["u"], {"conn": [5]}],
            ["cancel", {"key": "k"}],
            ["ack", 1],
        )
        for caller, rows in ((thief, []), (victim, [["u", "victim", 1, 5]])):
            await caller.send(["list"])
            assert (await caller.expect("list"))[0] == rows
        assert rig.presence.ignored["other_gateway"] == 2
        timers = "select gateway, key from timers where next is not null"
        table = rig.log_writer.timers.table.path
        assert disk.rows(table, timers) == [("victim", "k")]
        assert rig.registry.unacked("victim") == 1
