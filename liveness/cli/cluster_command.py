"""`liveness cluster`: the hosts of all sidecars, read from Redis itself.

No sidecar is asked, so it works while none runs.
"""

from collections.abc import Mapping, Sequence
from json import dumps
from typing import Any, Final

import trio

from liveness.cli.options import Json, declared
from liveness.cluster.connection import Redis, connected
from liveness.cluster.questions import hosts, of_another_form, read_terms
from liveness.config.cluster import ClusterSettings
from liveness.console.admin_client import CommandError
from liveness.console.cluster_lines import cluster_errors, configured_cluster
from liveness.text import escaped, relative, utc_time

# Redis has to answer within this time: an operator is waiting.
TIMEOUT_S: Final = 10.0


async def picture_of(settings: ClusterSettings) -> dict[str, Any]:
    """All of the cluster but its users, at about one moment, as `--json` shows it.

    Raises:
        CommandError: Redis did not answer, or no host has published yet.
    """
    where = settings.url or settings.nodes
    try:
        with cluster_errors(), trio.fail_after(TIMEOUT_S):
            async with connected(settings) as redis:
                return await _read(redis)
    except trio.TooSlowError:
        late = f"{where}: Redis did not answer within {TIMEOUT_S:g} s"
        raise CommandError(f"{late}; see its log, and its load") from None
    except ValueError as error:
        raise of_another_form(error, where) from None


async def _read(redis: Redis) -> dict[str, Any]:
    terms = await read_terms(redis)
    if terms is None:
        raise CommandError(
            "no host has published here yet: start a sidecar with these settings, or "
            "correct cluster.prefix"
        )
    rows = [
        row._asdict() | {"state": row.state.name.lower()}
        for row in await hosts(redis, terms.partitions)
    ]
    partitions = [await _partition(redis, n) for n in range(terms.partitions)]
    users = sum(row["users"] for row in partitions)
    return {
        "users": users,
        "hosts": rows,
        "partitions": partitions,
    }


async def _partition(redis: Redis, number: int) -> dict[str, Any]:
    """A partition; moments are Unix milliseconds of Redis' clock, None: no record yet."""
    version, conf = await redis.meta(number, "v", "conf")
    now, newest = int(await redis.read("now", number, [])), int(version or 0)
    return {
        "partition": number,
        "users": await redis.users(number),
        "newest_ms": newest // 1_000 or None,
        "age_ms": max(0, now - newest) // 1_000 if newest else None,
        "born_ms": int(conf.rpartition(b" ")[2]) // 1_000 if conf else 0,
    }


def as_text(picture: Mapping[str, Any]) -> str:
    """The picture for a person: two tables."""
    lines = [f"users online  {picture['users']}"]
    shown = [["host", "state", "sessions", "last heard", "log"]]
    for row in picture["hosts"]:
        state = row["state"]
        if row["listing"]:
            done = row["partitions"] - row["listing"]
            state += f", {done} of {row['partitions']} listed"
        heard = relative(-row["heard_ms"] / 1_000)
        host, log = escaped(row["host"]), escaped(row["log"])
        shown.append([host, state, str(row["sessions"]), heard, log])
    lines += ["", *_table(shown)]
    shown = [["partition", "users", "newest version", "born"]]
    for row in picture["partitions"]:
        age, born = row["age_ms"], row["born_ms"]
        newest = "none" if age is None else relative(-age / 1_000)
        when = utc_time(born) if born else "not yet"
        shown.append([str(row["partition"]), str(row["users"]), newest, when])
    return "".join(f"{line}\n" for line in [*lines, "", *_table(shown)])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns, two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


command: Final = declared(
    "cluster", "cluster status", help="Show the hosts of the cluster."
)


@command.command(name="status", help_epilogue="Example: liveness cluster status --json")
def status_command(*, json: Json = False) -> None:
    """Show all hosts and partitions, as Redis has them."""
    picture = trio.run(picture_of, configured_cluster())
    print(f"{dumps(picture, indent=2)}\n" if json else as_text(picture), end="")
