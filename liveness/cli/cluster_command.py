"""`liveness cluster`: the hosts of all sidecars, read from Redis itself.

No sidecar is asked, so it works while none runs.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import trio

from liveness.cli.options import Json, declared
from liveness.cluster.connection import Redis, connected
from liveness.cluster.questions import HostRow, hosts
from liveness.cluster.terms import of_another_form, read_terms
from liveness.config.cluster import ClusterSettings
from liveness.console.admin_client import CommandError
from liveness.console.cluster_lines import cluster_errors, configured_cluster
from liveness.text import escaped, relative, utc_time

# Redis has to answer within this time: an operator is waiting.
TIMEOUT_S: Final = 10.0


class PartitionRow(NamedTuple):
    """A partition, as Redis has it."""

    partition: int
    users: int
    newest_ms: int | None  # Unix milliseconds of Redis' clock; None: no record yet
    age_ms: int | None  # of the newest version
    born_ms: int


class ClusterPicture(NamedTuple):
    """The whole cluster at about one moment."""

    servers: list[dict[str, str]]
    hosts: list[HostRow]
    partitions: list[PartitionRow]

    @property
    def users(self) -> int:
        """Users online on any host."""
        return sum(row.users for row in self.partitions)


@asynccontextmanager
async def _redis_of(settings: ClusterSettings) -> AsyncIterator[Redis]:
    """Redis for a block; its errors and timeouts are a CommandError."""
    where = settings.url or settings.nodes
    try:
        with cluster_errors(), trio.fail_after(TIMEOUT_S):
            async with connected(settings) as redis:
                yield redis
    except trio.TooSlowError:
        late = f"{where}: Redis did not answer within {TIMEOUT_S:g} s"
        raise CommandError(f"{late}; see its log, and its load") from None
    except ValueError as error:
        raise of_another_form(error, where) from None


async def picture_of(redis: Redis) -> ClusterPicture:
    """Read all of the cluster but its users.

    Raises:
        CallError: Redis did not answer.
        CommandError: No host has published yet.
    """
    terms = await read_terms(redis)
    if terms is None:
        raise CommandError(
            "no host has published here yet: start a sidecar with these settings, or "
            "correct cluster.prefix"
        )
    return ClusterPicture(
        await redis.information(),
        await hosts(redis, terms.partitions),
        [await _partition(redis, number) for number in range(terms.partitions)],
    )


async def _partition(redis: Redis, number: int) -> PartitionRow:
    version, conf = await redis.meta(number, "v", "conf")
    now, newest = int(await redis.read("now", number, [])), int(version or 0)
    return PartitionRow(
        number,
        await redis.users(number),
        newest // 1_000 or None,
        max(0, now - newest) // 1_000 if newest else None,
        int(conf.rpartition(b" ")[2]) // 1_000 if conf else 0,
    )


def as_map(picture: ClusterPicture) -> dict[str, Any]:
    """The picture for JSON."""
    return {
        "users": picture.users,
        "servers": [_server(found) for found in picture.servers],
        "hosts": [
            row._asdict() | {"state": row.state.name.lower()} for row in picture.hosts
        ],
        "partitions": [row._asdict() for row in picture.partitions],
    }


def _server(found: dict[str, str]) -> dict[str, object]:
    names = {
        "version": found.get("valkey_version", found.get("redis_version")),
        "used_memory": found.get("used_memory_human"),
        "maxmemory": found.get("maxmemory_human"),
        "policy": found.get("maxmemory_policy"),
    }
    return {"address": found["address"], **names}


def as_text(picture: ClusterPicture) -> str:
    """The picture for a person: a line for each server, and two tables."""
    lines = [f"users online  {picture.users}"]
    for server in map(_server, picture.servers):
        known = server["version"] is not None
        what = "INFO is not permitted"
        if known:
            what = f"{server['version']}, {server['used_memory']} used"
            what += f" of {server['maxmemory']}" if server["maxmemory"] != "0B" else ""
            what += f", {server['policy']}"
        lines.append(f"redis         {server['address']}  {what}")
    lines += [
        "",
        *_table(
            ["host", "state", "sessions", "last heard", "log"],
            [
                [
                    escaped(row.host),
                    _state(row),
                    str(row.sessions),
                    relative(-row.heard_ms / 1_000),
                    escaped(row.log),
                ]
                for row in picture.hosts
            ],
        ),
    ]
    lines += [
        "",
        *_table(
            ["partition", "users", "newest version", "born"],
            [
                [
                    str(row.partition),
                    str(row.users),
                    "none" if row.age_ms is None else relative(-row.age_ms / 1_000),
                    utc_time(row.born_ms) if row.born_ms else "not yet",
                ]
                for row in picture.partitions
            ],
        ),
    ]
    return "".join(f"{line}\n" for line in lines)


def _state(row: HostRow) -> str:
    """The state of a host, and how far it is with the lists of its sessions."""
    state = row.state.name.lower()
    if not row.listing:
        return state
    return f"{state}, {row.partitions - row.listing} of {row.partitions} listed"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns, two blanks apart."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in (head, *rows)
    ]


async def show_status(settings: ClusterSettings, as_json: bool) -> None:
    """Prints the picture of a cluster.

    Raises:
        CommandError: Redis did not answer, or no host has published yet.
    """
    async with _redis_of(settings) as redis:
        picture = await picture_of(redis)
    text = f"{json.dumps(as_map(picture), indent=2)}\n" if as_json else as_text(picture)
    print(text, end="")


command: Final = declared(
    "cluster",
    "cluster status",
    help="Show the hosts of the cluster.",
)


@command.command(name="status", help_epilogue="Example: liveness cluster status --json")
def status_command(*, json: Json = False) -> None:
    """Show all hosts, partitions and servers, as Redis has them."""
    trio.run(show_status, configured_cluster(), json)
