"""A reader's chain against a partition that a test scripts: no Redis, no clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import pack
from typing import Any, Final

import pytest

from liveness.cluster.chain import Chain, Request
from liveness.cluster.events import ClusterGap, Delivery, Listed, Rollback
from liveness.cluster.format import (
    ClusterRecord,
    HostState,
    Place,
    place_bytes,
    session_bytes,
)

LEASE_S: Final = 30.0
BORN_US: Final = 1_000_000
KINDS: Final = {"online": b"\x92\x01", "offline": b"\x92\x02"}


@dataclass
class Stored:
    """What Redis has of a partition whose one host, "a", has incarnation 1."""

    name: str = f"0.1-{BORN_US}"
    entries: list[tuple[int, dict[bytes, bytes]]] = field(default_factory=list)
    users: dict[bytes, bytes] = field(default_factory=dict)
    beat_us: int = BORN_US + int(LEASE_S * 1e6)
    is_listing: bool = False  # the host lists its sessions

    def change(self, version: int, *changes: str) -> None:
        """One entry: "+ada" brings a user online, "-ada" offline."""
        records = b""
        for change in changes:
            user, is_online = change[1:], change[0] == "+"
            place = place_bytes(Place(user, "a", "gw", 5, 9, "login"))
            records += KINDS["online" if is_online else "offline"] + place
            if is_online:
                value = session_bytes(1, 5, 9, b"gw", b"")
                self.users[user.encode()] = value
            else:
                del self.users[user.encode()]
        fields = {b"p": self.name.encode(), b"t": b"7", b"r": records}
        fields[b"n"] = b"%d" % len(changes)
        self.entries.append((version, fields))
        self.name = f"{version + len(changes) - 1}.7"

    def copy(self) -> "Stored":
        """The data of a replica."""
        return Stored(self.name, [*self.entries], {**self.users}, self.beat_us)

    @property
    def newest(self) -> list[bytes]:
        return self.name.encode().split(b".")

    def answer(self, request: Request) -> Any:
        match request:
            case "meta", _:
                return self.newest
            case "everything", _:
                state = HostState.ASSERTING if self.is_listing else HostState.LIVE
                its = (1, 1, state, 0, 0, 0, 0, self.beat_us, 3)
                return {
                    **dict(zip((b"v", b"t"), self.newest, strict=True)),
                    b"conf": b"1 1 - %d" % BORN_US,
                    b"ha": pack(">dIBdIIIdd", *its) + b"log",
                    b"i1": b"a\nlog",
                }
            case "scan", (cursor, _):  # a user a step
                users = sorted(self.users.items())
                at = cursor + 1 if cursor + 1 < len(users) else 0
                return at, dict(users[cursor : cursor + 1]), self.newest
            case "entries", (after, limit):
                later = [entry for entry in self.entries if entry[0] > after]
                return [(b"%d-0" % at, fields) for at, fields in later[:limit]]
            case _, (until, limit):
                earlier = [entry for entry in self.entries if entry[0] <= until]
                return [(b"%d-0" % at, its) for at, its in earlier[::-1][:limit]]
            case _:
                raise AssertionError(request)


def read(
    chain: Chain,
    stored: Stored,
    *,
    now: float = 0.0,
    between: Callable[[Request], None] = lambda _: None,
) -> list[object]:
    """Everything that the chain delivers until it has caught up; records as "+ada"."""
    delivered = []
    while True:
        request = chain.request
        between(request)
        delivered += chain.answer(stored.answer(request), now)
        if chain.is_caught_up:
            return [shown(event) for event, _ in delivered]


def deliveries_of(chain: Chain, stored: Stored) -> list[Delivery]:
    """The first that the chain delivers."""
    while True:
        if deliveries := chain.answer(stored.answer(chain.request), 0):
            return deliveries


def shown(event: object) -> object:
    if isinstance(event, ClusterRecord):
        return f"{'-' if event.kind == 'offline' else '+'}{event.user}"
    if isinstance(event, Listed):
        return event.version, {place.user for place in event.places}
    return event


def chain(**options: Any) -> Chain:
    return Chain(0, lease_s=LEASE_S, **options)


@pytest.fixture
def stored() -> Stored:
    return Stored()


def test_a_reader_begins_behind_the_newest_entry(stored: Stored) -> None:
    stored.change(100, "+ada")
    reader = chain()
    assert read(reader, stored) == []
    stored.change(200, "+bob", "-ada")
    assert read(reader, stored) == ["+bob", "-ada"]
    assert reader.position == "201.7"


def test_a_position_is_finished_with_the_last_record_of_an_entry(
    stored: Stored,
) -> None:
    stored.change(100, "+ada", "+bob")
    deliveries = deliveries_of(chain(position=""), stored)
    assert [position for _, position in deliveries] == [
        f"0.1-{BORN_US}",
        "101.7",
    ]
    assert read(chain(position=deliveries[0][1]), stored) == ["+ada", "+bob"]


def test_what_a_failover_lost_is_void_and_what_came_instead_follows(
    stored: Stored,
) -> None:
    reader = chain()
    read(reader, stored)
    stored.change(100, "+ada")
    replica = stored.copy()
    stored.change(200, "+bob")
    assert read(reader, stored) == ["+ada", "+bob"]
    assert read(reader, replica) == [
        Rollback(0, 100)
    ]  # before anything else is written
    replica.change(300, "+eve")
    assert read(reader, replica) == ["+eve"]


def test_nothing_of_another_life_of_the_partition_stays_true(stored: Stored) -> None:
    """Redis was emptied, its clock is behind, and what came first is trimmed."""
    reader = chain()
    read(reader, stored)
    stored.change(100, "+ada")
    stored.change(300, "+bob")
    read(reader, stored)
    emptied = Stored("0.2-5")
    emptied.change(150, "+eve")
    emptied.change(200, "+kim")
    del emptied.entries[0]
    assert read(reader, emptied) == [Rollback(0, 0), ClusterGap(0, 1, 151), "+kim"]


def test_a_trimmed_stream_leaves_a_gap(stored: Stored) -> None:
    reader = chain()
    read(reader, stored)
    stored.change(100, "+ada")
    stored.change(200, "+bob")
    stored.change(300, "+eve")
    del stored.entries[:2]
    assert read(reader, stored) == [ClusterGap(0, 1, 201), "+eve"]


def test_a_position_whose_entry_alone_was_trimmed_has_no_gap(stored: Stored) -> None:
    stored.change(100, "+ada")
    position = stored.name
    stored.change(200, "+bob")
    del stored.entries[0]
    assert read(chain(position=position), stored) == ["+bob"]


def test_a_list_is_true_at_its_version_though_users_change_meanwhile(
    stored: Stored,
) -> None:
    stored.change(100, "+ada", "+bob", "+eve")
    changes = iter([("-ada",), ("+kim",), ("-eve", "+ada")])

    def between(request: Request) -> None:
        if request[0] == "scan":
            stored.change(200 + 10 * request[1][0], *next(changes, ("+zoe",)))

    reader = chain(lists=True)
    *records, listed = read(reader, stored, between=between)
    assert listed == (reader.version, {user.decode() for user in stored.users})
    assert reader.name == stored.name
    assert "-ada" in records


def test_a_list_waits_for_a_host_that_needs_longer_than_a_lease(stored: Stored) -> None:
    stored.change(100, "+ada")
    stored.beat_us, stored.is_listing = BORN_US + 100_000_000, True
    reader = chain(lists=True)
    for now in range(0, 100, 10):
        assert read(reader, stored, now=now) == []
    stored.change(200, "+bob")
    stored.is_listing = False
    assert read(reader, stored, now=100) == ["+bob", (200, {"ada", "bob"})]


def test_a_list_that_saw_what_a_failover_lost_is_made_again(stored: Stored) -> None:
    """The reader had not come by that version, so that its chain is whole."""
    stored.change(100, "+ada", "+bob")
    reader = chain(lists=True, position=stored.name + "!")
    replica = stored.copy()

    def between(request: Request) -> None:
        if request[0] == "everything" and not reads:
            stored.change(200, "-ada", "+eve")  # lost, once users were read
        if request[0] == "scan" and not reads:
            reads.append(request)
        elif len(reads) == 1:
            reads.append(request)
            stored.__dict__.update(replica.copy().__dict__)

    reads: list[object] = []
    assert read(reader, stored, between=between) == [(101, {"ada", "bob"})]


def test_what_is_not_of_this_schema_is_an_error(stored: Stored) -> None:
    stored.entries.append((100, {b"p": b"0.1", b"t": b"7", b"n": b"1", b"r": b"\xc1"}))
    stored.name = "100.7"
    with pytest.raises(ValueError, match="entry b'100-0' of partition 0"):
        read(chain(position=f"0.1-{BORN_US}"), stored)
