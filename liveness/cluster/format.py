"""The format of the cluster's data on Redis: keys, fields and values (`proto/cluster.md`).

A *partition* has three keys with one hash tag, so that Redis Cluster keeps them together:

    <prefix>:{p}:m   hash: the state of the partition, and of its hosts
    <prefix>:{p}:u   hash: user -> sessions, the newest first
    <prefix>:{p}:s   stream: the changes, one entry for each call that changed something

Everything here is a plain function of bytes.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

import msgpack

from liveness.core.records import MOVED, OFFLINE, ONLINE, Uid, identity

SCHEMA: Final = 1

# The head of a session: incarnation, session, since, and lengths of gateway and device.
_SESSION: Final = struct.Struct(">I6s6sBB")
# A host of a partition; the id of its log follows.
_HOST: Final = struct.Struct(">dIBdIIIdd")
_KINDS: Final = {1: ONLINE, 2: OFFLINE, 3: MOVED}
# The mark before the gateway of a session whose uid is an integer.
INTEGER: Final = "\x01"


def configuration_of(partitions: int, separator: str) -> str:
    """The parameters that all hosts share: schema, partitions, device separator in hex."""
    return f"{SCHEMA} {partitions} {separator.encode().hex() or '-'}"


class PartitionKeys(NamedTuple):
    """The keys of one partition."""

    meta: str
    users: str
    stream: str


def keys_of(prefix: str, partition: int) -> PartitionKeys:
    tag = f"{prefix}:{{{partition}}}"
    return PartitionKeys(f"{tag}:m", f"{tag}:u", f"{tag}:s")


def field_of(user: Uid) -> bytes:
    return identity(user).encode()


def gateway_of(gateway: str, uid: Uid) -> str:
    """The gateway of a session as it is stored, with a mark if the uid is an integer."""
    return INTEGER + gateway if isinstance(uid, int) else gateway


def partition_of(field: bytes, partitions: int) -> int:
    """The partition of a user: the CRC-32 of its field (zlib's), modulo their number."""
    return zlib.crc32(field) % partitions


def session_bytes(
    incarnation: int, session: int, since_ms: int, gateway: bytes, device: bytes
) -> bytes:
    """One session of a user.

    *incarnation* is of its host; *session* is its seq in the log there; *since_ms* is by
    Redis' clock; *device* follows the user in the uid.
    """
    number, since, sizes = (
        session.to_bytes(6),
        since_ms.to_bytes(6),
        map(len, (gateway, device)),
    )
    return _SESSION.pack(incarnation, number, since, *sizes) + gateway + device


def ending_bytes(session: int) -> bytes:
    return session.to_bytes(6)


class StoredSession(NamedTuple):
    """A session of a user in the hash of users."""

    incarnation: int
    session: int
    since: int  # Unix milliseconds
    gateway: str
    device: str


def sessions_of(value: bytes) -> Iterator[StoredSession]:
    """The sessions in the value of a user, the newest first.

    Raises:
        ValueError: The bytes are not those of sessions.
    """
    at = 0
    while at < len(value):
        begin = at + _SESSION.size
        if begin > len(value):
            raise ValueError(f"not the bytes of sessions: {value!r}")
        incarnation, session, since, gateway, device = _SESSION.unpack_from(value, at)
        middle, at = begin + gateway, begin + gateway + device
        if at > len(value):
            raise ValueError(f"not the bytes of sessions: {value!r}")
        yield StoredSession(
            incarnation,
            int.from_bytes(session),
            int.from_bytes(since),
            value[begin:middle].decode(),
            value[middle:at].decode(),
        )


class HostState(IntEnum):
    """The state of a host in a partition."""

    LIVE = 1
    ASSERTING = 2  # it is listing its sessions anew
    LOST = 3  # its sessions are being ended


class StoredHost(NamedTuple):
    """The data of a host in a partition."""

    epoch: int
    incarnation: int
    state: HostState
    last: int  # the seq of its log up to which everything is applied
    sessions: int  # the number of its sessions, of any incarnation
    current: int  # those of `incarnation`
    total: int  # the sum of their numbers, modulo 2^32
    beat: int  # of its last call: microseconds of Redis' clock
    nonce: int  # of its process; a later start has a larger one
    log: str


def host_of(value: bytes) -> StoredHost:
    """A host from its field in the hash of the partition.

    Raises:
        ValueError: The bytes are not those of a host.
    """
    if len(value) < _HOST.size:
        raise ValueError(f"not the bytes of a host: {value!r}")
    epoch, incarnation, state, *numbers = map(int, _HOST.unpack_from(value))
    log = value[_HOST.size :].decode()
    return StoredHost._make((epoch, incarnation, HostState(state), *numbers, log))


class Place(NamedTuple):
    """One session of a user: on which host, through which gateway."""

    user: Uid
    host: str
    gateway: str
    session: int
    since: int  # Unix milliseconds by Redis' clock; 0: not known
    reason: str
    device: str = ""

    @property
    def uid(self) -> Uid:
        return f"{self.user}{self.device}" if self.device else self.user


def unmarked(place: Place) -> Place:
    """A place as it is shown, from one as it is stored: see `gateway_of`."""
    if not place.gateway.startswith(INTEGER):
        return place
    return place._replace(user=int(place.user), gateway=place.gateway[1:])


def place_bytes(place: Place) -> bytes:
    """A place in a record: msgpack, without the device if there is none."""
    fields = place if place.device else place[:-1]
    packed: bytes = msgpack.packb(fields)
    return packed


class ClusterRecord(NamedTuple):
    """A user came online, went offline, or its newest session became another.

    A user is online from its first session on any host until its last one ends.
    """

    partition: int
    version: int  # microseconds of Redis' clock, strictly increasing in a partition
    kind: str
    place: Place  # for an offline the session that ended; else the newest
    lost: Place | None = None  # for a move: the session that was the newest before

    @property
    def user(self) -> Uid:
        return self.place.user

    @property
    def at(self) -> int:
        """Unix milliseconds, roughly, by Redis' clock."""
        return self.version // 1000

    def as_map(self) -> dict[str, object]:
        """The record as every reader shows it; absent keys are left out."""
        place, lost = self.place, self.lost
        shown: dict[str, object] = {
            "partition": self.partition,
            "version": self.version,
            "kind": self.kind,
            "uid": place.user,
            "host": place.host,
            "gateway": place.gateway,
            "session": place.session,
            "reason": place.reason,
            "at": self.at,
        }
        if place.since:
            shown["since"] = place.since
        if place.device:
            shown["device"] = place.uid
        if lost is not None:
            shown["from_host"], shown["from"] = lost.host, lost.gateway
            shown["from_session"] = lost.session
        return shown


class StreamEntry(NamedTuple):
    """One entry of a partition's stream: the records of one call."""

    before: str  # the name of the version before it
    name: str  # of the version after it: "version.token"
    records: tuple[ClusterRecord, ...]


Fields: TypeAlias = Mapping[bytes, bytes]


def version_name(version: int | bytes | None, token: bytes | None) -> str:
    """The name of a version: two versions of one number differ by their tokens."""
    return "" if version is None else f"{int(version)}.{(token or b'').decode()}"


def entry_of(partition: int, entry_id: bytes, fields: Fields) -> StreamEntry:
    """Decode an entry of a stream.

    Raises:
        ValueError: It is not an entry of this schema.
    """
    try:
        first = int(entry_id.partition(b"-")[0])
        records = tuple(_records(partition, first, fields[b"r"]))
        last = first + int(fields[b"n"]) - 1
        if len(records) != int(fields[b"n"]):
            raise ValueError("its number of records is another")
        return StreamEntry(
            fields[b"p"].decode(), version_name(last, fields[b"t"]), records
        )
    except (
        AttributeError,  # a user that is not text
        KeyError,
        TypeError,
        ValueError,
        msgpack.UnpackException,
    ) as error:
        raise ValueError(
            f"entry {entry_id!r} of partition {partition}: {error!r}"
        ) from error


def _records(partition: int, first: int, packed: bytes) -> Iterable[ClusterRecord]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(packed)
    for version, (kind, subject, *lost) in enumerate(unpacker, first):
        places = [unmarked(Place(*fields)) for fields in (subject, *lost)]
        yield ClusterRecord(partition, version, _KINDS[kind], *places)
