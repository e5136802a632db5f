"""Questions about all hosts: which users are online, which hosts there are, what they share.

A question makes some calls to each partition that it concerns: a user is one field in the
hash of its partition. It takes `QUESTION_S` at most, whatever Redis does.
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import anyio

from liveness.cluster.connection import CallError, Redis
from liveness.cluster.format import (
    SCHEMA,
    HostState,
    Place,
    StoredHost,
    field_of,
    host_of,
    partition_of,
    unmarked,
)
from liveness.core.records import Uid, identity
from liveness.core.wheel.devices import user_of
from liveness.errors import LivenessError

# How long a question may take: a gateway that routes a message, or an operator, is waiting.
QUESTION_S: Final = 2.0
# Users in one call, for which Redis needs about a millisecond.
USERS_IN_CALL: Final = 1_000
# Calls under way for one question: each partition of the default at once.
CALLS_AT_ONCE: Final = 16

T = TypeVar("T")


class ClusterTerms(NamedTuple):
    """The parameters that the hosts of a cluster share."""

    partitions: int
    separator: str  # of a user and its device; empty: there are no devices
    lease_s: float  # after which a silent host is lost


async def read_terms(redis: Redis) -> ClusterTerms | None:
    """The parameters that the hosts share; None: no host has begun.

    Raises:
        CallError: Redis did not answer.
        LivenessError: The data is of another version of liveness.
        ValueError: The data is not of liveness.
    """
    configuration, lease_us = await redis.meta(0, "conf", "lease")
    if configuration is None:
        return None
    schema, partitions, separator, _ = configuration.decode().split(" ")
    if int(schema) != SCHEMA:
        raise LivenessError(
            f"the hosts of the cluster have schema {schema}, and this program {SCHEMA}; "
            "install the version of liveness that they have"
        )
    text = "" if separator == "-" else bytes.fromhex(separator).decode()
    return ClusterTerms(int(partitions), text, int(lease_us or b"?") / 1e6)


def of_another_form(error: ValueError, server: str) -> LivenessError:
    return LivenessError(
        f"{server}: {error}: another program wrote this, or another version of liveness; "
        "correct cluster.prefix"
    )


class HostRow(NamedTuple):
    """A host, by the data of all partitions."""

    host: str
    state: HostState  # the worst of any partition
    sessions: int
    heard_ms: int  # milliseconds since it was last heard, by Redis' clock
    log: str
    partitions: int  # how many have it
    listing: int  # in how many of them it lists its sessions


async def places_of(
    redis: Redis,
    uids: Iterable[Uid],
    *,
    partitions: int,
    limit: int,
    separator: str = "",
) -> list[Place]:
    """The sessions of these users on all hosts, each once, and no more than *limit*.

    The name of a user stands for all of its devices; an empty separator: there are none.
    They are in the order of the users, the newest of a user first.

    Raises:
        CallError: Redis did not answer.
        ValueError: Its answer is of another form.
    """
    asked = {identity(uid): uid for uid in uids}
    users = asked
    if separator:
        named = (user_of(uid, separator) for uid in asked.values())
        users = {identity(user): user for user in named}
    fields = defaultdict[int, list[bytes]](list)
    for field in map(field_of, users.values()):
        fields[partition_of(field, partitions)].append(field)
    found = defaultdict[str, list[Place]](list)
    left = limit

    async def ask(call: tuple[int, Sequence[bytes]]) -> None:
        nonlocal left
        partition, part = call
        for row in await redis.read("where", partition, part) if left > 0 else ():
            place = _place(row)
            # A session whose host is unknown is about to be ended.
            is_wanted = asked.keys() & {identity(place.user), identity(place.uid)}
            if place.host and is_wanted and left > 0:
                found[identity(place.user)].append(place)
                left -= 1

    await _each(
        ask,
        (
            (partition, whole[at : at + USERS_IN_CALL])
            for partition, whole in fields.items()
            for at in range(0, len(whole), USERS_IN_CALL)
        ),
    )
    return [place for user in users for place in found.get(user, ())]


def _place(row: Any) -> Place:
    try:
        *names, session, since, device = row
        user, host, gateway = (name.decode() for name in names)
        numbers = int(session), int(since)
        return unmarked(Place(user, host, gateway, *numbers, "", device.decode()))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"not a session: {row!r:.200}") from error


async def hosts(redis: Redis, partitions: int) -> list[HostRow]:
    """All hosts, by name; raises as `places_of`."""
    known = defaultdict[str, list[tuple[StoredHost, int]]](list)

    async def ask(partition: int) -> None:
        meta = await redis.everything(partition)
        # Each partition may be on a server with a clock of its own.
        now = int(await redis.read("now", partition, []))
        for field, value in meta.items():
            if field.startswith(b"h"):
                stored = host_of(value)
                heard_ms = max(0, now - stored.beat) // 1000
                known[field[1:].decode()].append((stored, heard_ms))

    await _each(ask, range(partitions))
    return [
        HostRow(
            host,
            max(stored.state for stored, _ in rows),
            sum(stored.sessions for stored, _ in rows),
            min(heard_ms for _, heard_ms in rows),
            max(rows, key=lambda row: row[0].epoch)[0].log,
            len(rows),
            sum(stored.state is HostState.ASSERTING for stored, _ in rows),
        )
        for host, rows in sorted(known.items())
    ]


async def _each(ask: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Ask for each item, some at once; the first error ends all."""
    failures, left = list[CallError | ValueError](), iter(items)

    async def ask_some() -> None:
        try:
            for item in left:
                await ask(item)
        except (CallError, ValueError) as error:
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for _ in range(CALLS_AT_ONCE):
            group.start_soon(ask_some)
    if failures:
        raise failures[0]


class ClusterQuestions:
    """Asks about all hosts, with a bound of time: each question may be a `CallError`."""

    def __init__(self, redis: Redis, *, partitions: int, separator: str) -> None:
        self.answers = Counter[str]()  # how many were answered, slow, away
        self._redis = redis
        self._partitions = partitions
        self._separator = separator

    async def places(self, uids: Iterable[Uid], *, limit: int) -> list[Place]:
        places = places_of(
            self._redis,
            uids,
            partitions=self._partitions,
            limit=limit,
            separator=self._separator,
        )
        try:
            with anyio.fail_after(QUESTION_S):
                found = await places
        except TimeoutError:
            late = f"Redis did not answer within {QUESTION_S:g} s"
            failure = CallError("timeout", late)
        except CallError as error:
            failure = CallError(error.kind, f"Redis cannot be asked: {error}")
        except ValueError as error:
            why = f"Redis gave an answer of another form ({error}); is cluster.prefix ours?"
            failure = CallError("other", why)
        else:
            self.answers["answered"] += 1
            return found
        self.answers["slow" if failure.kind == "timeout" else "away"] += 1
        raise failure
