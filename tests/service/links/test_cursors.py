"""Where a reader begins: its cursor, the place that its hello names, or now."""

from tests.helpers.wire import Record
from tests.service.rig import Caller, Rig


async def come_and_go(gateway: Caller, *uids: str) -> None:
    await gateway.apply(["login", [*uids]], ["logout", [*uids]])


async def test_a_gateway_without_acks_gets_what_came_while_it_was_away(
    rig: Rig,
) -> None:
    other = await rig.gateway("other")
    away = await rig.gateway_of("u", "away", ack=False)
    away.close()
    await rig.until(lambda: "away" not in str(rig.registry.named))
    await other.apply(["login", "u"])
    back = await rig.gateway("away", ack=False)
    assert [record["kind"] for record in await back.records(1)] == ["moved"]
    await back.send(["ack", 1])
    (error,) = await back.expect("error")
    assert error["code"] == "bad-frame"


async def test_a_place_in_a_hello_leaves_the_stored_cursor_alone(rig: Rig) -> None:
    gateway = await rig.gateway("g")
    await gateway.send(["login", ["s", "t"]], ["logout", ["s", "t"]])
    told = await gateway.records(2)
    await gateway.apply(["ack", told[-1]["seq"]])
    reader = await rig.gateway("g", after=0)
    assert await reader.records(2) == told
    reader = await rig.gateway("g")
    assert await reader.is_told_nothing(1)


async def test_a_watcher_has_a_cursor_only_if_it_acknowledges(rig: Rig) -> None:
    gateway = await rig.gateway("g", kinds=[])
    for ack, seqs in ((False, []), (False, []), (True, []), (True, [7, 8])):
        await come_and_go(gateway, "while away")
        reader = await rig.watcher("reader", ack=ack)
        records = await reader.records(len(seqs)) if seqs else []
        assert [record["seq"] for record in records] == seqs
        assert await reader.is_told_nothing(1)
        if ack and records:
            await reader.apply(["ack", records[-1]["seq"]])
        reader.close()


async def test_a_reader_gets_what_concerns_its_name_or_everyone_by_its_kinds(
    rig: Rig,
) -> None:
    left, right = await rig.gateway("left"), await rig.gateway("right")
    readers = {
        "everything": await rig.watcher("all"),
        "own": await rig.watcher("left", scope="own"),
        "moves": await rig.watcher("moves", kinds=["moved"]),
        "nobody's": await rig.watcher("nobody", scope="own"),
        "timers": await rig.gateway("timers", scope="all", kinds=["timer"]),
    }
    await left.apply(["login", "x"], ["after", "tea", 0.1])
    await right.send(["login", ["x", "y"]], ["logout", "y"])
    wanted = {
        "everything": ["online", "moved", "online", "offline", "timer"],
        "own": ["online", "moved", "timer"],
        "moves": ["moved"],
        "nobody's": [],
        "timers": ["timer"],
    }
    for name, kinds in wanted.items():
        records = list[Record]()
        while len(records) < len(kinds):
            records += await readers[name].records()
        assert [record["kind"] for record in records] == kinds, name
        assert await readers[name].is_told_nothing(1)
