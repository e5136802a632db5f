"""The parameters that all hosts of a cluster share; readers take them from Redis first."""

from typing import NamedTuple

from liveness.cluster.connection import Redis
from liveness.cluster.format import SCHEMA
from liveness.errors import LivenessError


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
    """The error for data on Redis that is not of this schema."""
    return LivenessError(
        f"{server}: {error}: another program wrote this, or another version of liveness; "
        "correct cluster.prefix"
    )
